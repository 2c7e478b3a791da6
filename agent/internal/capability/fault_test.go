package capability

import (
	"io"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/fault"
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

// spoiled is a command's input that can't be written.
type spoiled struct{ closed bool }

func (*spoiled) Write([]byte) (int, error) { panic("boom") }

func (s *spoiled) Close() error { s.closed = true; return nil }

// A fault while a command is given its input ends that command's call: nobody knows what it got.
func TestAFaultWhileInputIsWritten(t *testing.T) {
	p := &pipes{stdin: "in", drained: make(chan struct{}), stdout: newStream(10, nil), stderr: newStream(10, nil)}
	close(p.drained)
	in := new(spoiled)
	p.feed(in)
	if !in.closed {
		t.Error("the command waits for more input")
	}
	defer func() {
		if broke, ok := recover().(*fault.Panic); !ok || broke.What != "boom" || !strings.Contains(broke.Stack, "fault_test.go") {
			t.Errorf("the call hears of %+v", broke)
		}
	}()
	p.finish(new(capability.ProcessOut), 10)
	t.Error("it ended as if it had got all of its input")
}
