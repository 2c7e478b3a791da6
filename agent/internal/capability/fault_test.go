package capability

import (
	"io"
	"strings"
	"testing"
)

// What keeps a command's output may fail inside: the output is drained on all the same, and the
// call that gets none of it hears so.
func TestAFaultWhileOutputIsKept(t *testing.T) {
	s := newStream(10, func([]byte) { panic("boom") })
	r := strings.NewReader(strings.Repeat("x", 1<<20))
	s.drain(r)
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("%d bytes weren't drained", r.Len()+1)
	}
	if got := s.take(); got.broke == nil || got.broke.What != "boom" || !strings.Contains(got.broke.Stack, "fault_test.go") {
		t.Errorf("the call hears of %+v", got.broke)
	}
}
