package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
)

// ends are both ends of a pipe whose messages the test carries.
type ends struct {
	caller, holder *pipe
	sent           [][]byte // by the caller
	now            time.Time
	refused        int
}

func newEnds(t *testing.T) *ends {
	t.Helper()
	k, err := newKeys(serverKey(t))
	if err != nil {
		t.Fatal(err)
	}
	there, back, err := k.sequences("open", "accept")
	if err != nil {
		t.Fatal(err)
	}
	in, out, err := k.sequences("open", "accept")
	if err != nil {
		t.Fatal(err)
	}
	e := &ends{now: time.Unix(1_000_000, 0)}
	one := func(p *pipe) *pipe {
		p.come, p.ended, p.gone = make(chan []byte, waiting), make(chan struct{}), func() {}
		p.now, p.refused = func() time.Time { return e.now }, func(error) { e.refused++ }
		return p
	}
	e.caller = one(&pipe{to: "there", here: "back", out: there, in: back, publish: func(_ string, b []byte) error { e.sent = append(e.sent, bytes.Clone(b)); return nil }})
	e.holder = one(&pipe{to: "back", here: "there", in: in, out: out, strict: true})
	return e
}

func (e *ends) send(t *testing.T, words ...string) {
	t.Helper()
	for _, w := range words {
		if err := e.caller.Write(t.Context(), false, []byte(w)); err != nil {
			t.Fatal(err)
		}
	}
}

// read is what the holder reads next, "" when its pipe has ended or nothing is there.
func (e *ends) read() (string, error) {
	ctx, cancel := context.WithCancel(context.Background())
	if len(e.holder.come) == 0 {
		cancel()
	}
	defer cancel()
	_, b, err := e.holder.Read(ctx)
	return string(b), err
}

// TestAForgedMessageIsPassedOver: whatever isn't the next message of the pipe's peer changes
// nothing, and is counted.
func TestAForgedMessageIsPassedOver(t *testing.T) {
	e := newEnds(t)
	e.send(t, "one", "two")
	first, second := e.sent[0], e.sent[1]
	flipped := slices.Clone(first)
	flipped[len(flipped)-1] ^= 1
	renumbered := slices.Clone(second)
	binary.BigEndian.PutUint64(renumbered, 0)
	other, err := newKeys(serverKey(t))
	if err != nil {
		t.Fatal(err)
	}
	theirs, _, err := other.sequences("open", "accept")
	if err != nil {
		t.Fatal(err)
	}
	same, back := e.caller.out, e.holder.out
	bad := [][]byte{nil, {1}, make([]byte, 8), bytes.Repeat([]byte("x"), 300), flipped, renumbered, first[:len(first)-1], append(slices.Clone(first), 0),
		theirs.seal("there", []byte("another deployment's key, in full length")),
		(&sequence{aead: same.aead}).seal("elsewhere", []byte("another subject, in its full length")),
		(&sequence{aead: back.aead}).seal("there", []byte("the other way's key, in full length"))}
	for _, b := range bad {
		e.holder.receive(b)
	}
	if e.refused != len(bad) {
		t.Errorf("%d of %d were counted", e.refused, len(bad))
	}
	e.holder.receive(first)
	e.holder.receive(first) // again
	e.holder.receive(second)
	e.holder.receive(first)
	if e.refused != len(bad)+2 {
		t.Errorf("%d replays were counted", e.refused-len(bad))
	}
	for _, want := range []string{"one", "two"} {
		if got, err := e.read(); got != want || err != nil {
			t.Errorf("read %q %v, not %q", got, err, want)
		}
	}
	for range 3 * waiting { // more than may wait
		e.holder.receive(flipped)
	}
	e.send(t, "three")
	e.holder.receive(e.sent[2])
	if got, err := e.read(); got != "three" || err != nil {
		t.Errorf("after a flood: %q %v", got, err)
	}
}

// TestALostMessageEndsThePipe: a request whose stream has a hole must not be put together.
func TestALostMessageEndsThePipe(t *testing.T) {
	for name, order := range map[string][]int{"lost": {0, 2}, "the first lost": {1}, "swapped": {1, 0}} {
		e := newEnds(t)
		e.send(t, "one", "two", "three")
		for _, i := range order {
			e.holder.receive(e.sent[i])
		}
		select {
		case <-e.holder.ended:
		default:
			t.Errorf("%s: the pipe goes on", name)
		}
		if !errors.Is(e.holder.why, errGap) {
			t.Errorf("%s: %v", name, e.holder.why)
		}
	}
}

// TestStaleMessagesStartNothing: a holder that was stopped acts on nothing that was asked of
// it before, whether it waited at NATS or was received already.
func TestStaleMessagesStartNothing(t *testing.T) {
	for _, c := range []struct {
		name  string
		later time.Duration
		stale bool
	}{{"at once", 0, false}, {"just in time", acceptFor, false}, {"late", acceptFor + time.Millisecond, true}, {"much later", time.Hour, true}, {"from the future", -acceptFor - time.Millisecond, true}} {
		for _, binary := range []bool{false, true} {
			e := newEnds(t)
			if err := e.caller.Write(t.Context(), binary, []byte("start it")); err != nil {
				t.Fatal(err)
			}
			e.holder.receive(e.sent[0])
			e.now = e.now.Add(c.later)
			got, err := e.read()
			if c.stale != errors.Is(err, errStale) || c.stale == (got == "start it") {
				t.Errorf("%s, binary %t: %q %v", c.name, binary, got, err)
			}
			if c.stale && e.refused != 1 {
				t.Errorf("%s: not counted", c.name)
			}
		}
	}
}

// TestPipeOverflow: a peer that sends more than may wait loses its pipe, not memory.
func TestPipeOverflow(t *testing.T) {
	e := newEnds(t)
	for range waiting + 1 {
		e.send(t, "x")
		e.holder.receive(e.sent[len(e.sent)-1])
	}
	<-e.holder.ended
	if !errors.Is(e.holder.why, errFull) {
		t.Error(e.holder.why)
	}
}

// TestCloseTellsThePeerWhy: the code and the reason of a close arrive, also when it's late.
func TestCloseTellsThePeerWhy(t *testing.T) {
	e := newEnds(t)
	if err := e.caller.Close(protocol.CloseGoingAway, "bye"); err != nil {
		t.Fatal(err)
	}
	e.now = e.now.Add(time.Hour)
	e.holder.receive(e.sent[0])
	_, err := e.read()
	if ce, ok := errors.AsType[*protocol.CloseError](err); !ok || ce.Code != protocol.CloseGoingAway || ce.Reason != "bye" {
		t.Error(err)
	}
}
