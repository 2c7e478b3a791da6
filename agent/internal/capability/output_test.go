package capability

import "testing"

// TestTheLatestLineAfterTheEnd: whoever asks for the latest line just when the output was taken
// for the answer gets none, also of a command that printed more than is kept.
func TestTheLatestLineAfterTheEnd(t *testing.T) {
	for _, size := range []int{0, 3, 10, 11, 95, 1000} {
		s := newStream(10, func([]byte) {})
		for range size { // so that the ring turns
			if _, err := s.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		before := s.last()
		if got := s.take(); got.total != int64(size) {
			t.Errorf("%d bytes of %d were counted", got.total, size)
		}
		if _, err := s.Write([]byte("what comes later")); err != nil {
			t.Fatal(err)
		}
		if after := s.last(); after != "" || (before == "") != (size == 0) {
			t.Errorf("after %d bytes the latest line was %q, and then %q", size, before, after)
		}
	}
}
