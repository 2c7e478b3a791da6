package cluster

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
)

// ended is how a call over a hop ended.
type ended struct {
	resp *protocol.Response
	err  error
}

// passes makes a call with a file over a hop.
func (r *replica) passes(tool string, x mux.Exchange) <-chan ended {
	r.t.Helper()
	c, ok := r.Route("web", 1)
	if !ok {
		r.t.Fatal("web is offline")
	}
	end := make(chan ended, 1)
	go func() {
		resp, err := c.Call(context.Background(), &protocol.Request{ID: "of-" + tool, Tool: tool, Args: jsontext.Value(`{}`), DeadlineMS: 60_000}, x)
		end <- ended{resp, err}
	}()
	return end
}

// waitsForFiles tells that AwaitFiles doesn't return by itself within a time that's enough to.
func (r *replica) waitsForFiles() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 6*filesLook)
	defer cancel()
	r.AwaitFiles(ctx)
	return ctx.Err() != nil
}

// leaves is how a replica stops, beside what only its own calls have to do with.
func (r *replica) leaves(tunnel *mux.Session) {
	r.AwaitFiles(context.Background())
	tunnel.Goodbye("the server is restarting", 0)
	<-tunnel.Done()
	r.stop()
}

// thePipe is the only one that's open here.
func (r *replica) thePipe() *pipe {
	r.t.Helper()
	r.Bus.mu.Lock()
	defer r.Bus.mu.Unlock()
	if len(r.pipes) != 1 {
		r.t.Fatalf("%d pipes", len(r.pipes))
	}
	for _, p := range r.pipes {
		return p
	}
	return nil
}

// TestTheAnswerOfAFileIsOutBeforeItsReplicaStops: a file to a host has passed only once its
// answer, too, is out.
func TestTheAnswerOfAFileIsOutBeforeItsReplicaStops(t *testing.T) {
	a, b := pair(t)
	came, free := make(chan string, 1), make(chan struct{})
	tunnel := a.agent("web", 1, func(ctx context.Context, _ *protocol.Request, w *mux.Work) *protocol.Response {
		in, _, err := w.In(ctx)
		if err != nil {
			return &protocol.Response{Error: protocol.Errorf(protocol.CodeInternal, "%v", err)}
		}
		content, _ := io.ReadAll(in)
		came <- string(content)
		<-free
		return &protocol.Response{Result: jsontext.Value(`{}`)}
	})
	eventually(t, "web is known", func() bool { return b.sees("web") })
	end := b.passes("fs_upload", mux.Exchange{Body: bytes.NewReader([]byte("content")), Size: 7})
	if got := <-came; got != "content" {
		t.Fatalf("%q came", got)
	}
	p := a.thePipe()
	p.writing.Lock() // NATS takes nothing for a while
	close(free)
	eventually(t, "the agent's answer came", func() bool { return a.Stats().In == 0 })
	if !a.waitsForFiles() {
		t.Error("the file counts as passed while its answer isn't out")
	}
	p.writing.Unlock()
	a.leaves(tunnel)
	if e := <-end; e.err != nil || e.resp.Error != nil {
		t.Errorf("%v %+v", e.err, e.resp)
	}
}

// slowly is a receiver that takes nothing until it's free.
type slowly struct {
	free chan struct{}
	got  int
}

func (s *slowly) Write(p []byte) (int, error) {
	<-s.free
	s.got += len(p)
	return len(p), nil
}

// TestTheEndOfAFileIsOutBeforeItsReplicaStops: a file from a host has passed only once its
// receiver has credited all of it.
func TestTheEndOfAFileIsOutBeforeItsReplicaStops(t *testing.T) {
	a, b := pair(t)
	const size = protocol.InitialCredit + protocol.MaxChunk
	tunnel := a.agent("web", 1, func(_ context.Context, _ *protocol.Request, w *mux.Work) *protocol.Response {
		up, err := w.Out(size)
		if err == nil {
			_, err = up.Write(make([]byte, size))
		}
		if err == nil {
			err = up.Close()
		}
		if err != nil {
			return &protocol.Response{Error: protocol.Errorf(protocol.CodeInternal, "%v", err)}
		}
		return &protocol.Response{Result: jsontext.Value(`{}`)}
	})
	eventually(t, "web is known", func() bool { return b.sees("web") })
	to := &slowly{free: make(chan struct{})}
	end := b.passes("fs_download", mux.Exchange{Sink: to})
	eventually(t, "the replica has all of it", func() bool { s := a.Stats(); return s.Served == 1 && s.In == 0 })
	if !a.waitsForFiles() {
		t.Error("the file counts as passed while its end isn't out")
	}
	close(to.free)
	a.leaves(tunnel)
	if e := <-end; e.err != nil || e.resp.Error != nil || to.got != size {
		t.Errorf("%v %+v; %d bytes of %d came", e.err, e.resp, to.got, size)
	}
}

// TestAnswersAreOutBeforeTheBusEnds: also those of calls, which a stop doesn't wait for.
func TestAnswersAreOutBeforeTheBusEnds(t *testing.T) {
	a, b := pair(t)
	begun, free := make(chan struct{}), make(chan struct{})
	a.agent("web", 1, func(context.Context, *protocol.Request, *mux.Work) *protocol.Response {
		close(begun)
		<-free
		return &protocol.Response{Result: jsontext.Value(`{}`)}
	})
	eventually(t, "web is known", func() bool { return b.sees("web") })
	end := b.passes("shell_exec", mux.Exchange{})
	<-begun
	p := a.thePipe()
	p.writing.Lock()
	close(free)
	eventually(t, "the agent's answer came", func() bool { return a.Stats().In == 0 })
	stopped := make(chan struct{})
	go func() { defer close(stopped); a.stop() }()
	select {
	case <-stopped:
		t.Error("it ends while an answer isn't out")
	case <-a.ctx.Done():
		t.Error("it ends its pipes while an answer isn't out")
	case <-time.After(answersFor / 4):
	}
	p.writing.Unlock()
	<-stopped
	if e := <-end; e.err != nil || e.resp.Error != nil {
		t.Errorf("%v %+v", e.err, e.resp)
	}
}

// TestTheByeOvertakesAnAnswer: news and pipes come by different ways, so what a replica said
// first may be heard last. Its pipes end by what it says on them.
func TestTheByeOvertakesAnAnswer(t *testing.T) {
	a, b := pair(t)
	begun, free := make(chan struct{}, 2), make(chan struct{})
	a.agent("web", 1, func(context.Context, *protocol.Request, *mux.Work) *protocol.Response {
		begun <- struct{}{}
		<-free
		return &protocol.Response{Result: jsontext.Value(`{}`)}
	})
	eventually(t, "web is known", func() bool { return b.sees("web") })
	end := b.passes("shell_exec", mux.Exchange{})
	<-begun
	b.hear(&news{Kind: newsBye, From: a.replica, Seq: 1 << 40})
	if b.sees("web") {
		t.Error("a replica that said bye has agents")
	}
	if _, err := b.call(t.Context(), "web", "late", `{}`); !errors.Is(err, protocol.ErrNotSent) {
		t.Errorf("a call after the bye: %v", err)
	}
	close(free)
	if e := <-end; e.err != nil || e.resp.Error != nil {
		t.Errorf("%v %+v", e.err, e.resp)
	}
	a.stop()
	eventually(t, "its pipe is gone", func() bool { return b.Stats().Pipes == 0 })
}

// TestNoFileBeginsAtTheEnd: of one that comes once a replica has waited for files it's known that
// it didn't begin.
func TestNoFileBeginsAtTheEnd(t *testing.T) {
	a, b := pair(t)
	a.agent("web", 1, echo)
	eventually(t, "web is known", func() bool { return b.sees("web") })
	a.AwaitFiles(t.Context())
	for _, tool := range []string{"fs_upload", "fs_download"} {
		if e := <-b.passes(tool, mux.Exchange{Body: bytes.NewReader(nil), Sink: io.Discard}); !errors.Is(e.err, protocol.ErrNotSent) {
			t.Errorf("%s: %v %+v", tool, e.err, e.resp)
		}
	}
	if e := <-b.passes("shell_exec", mux.Exchange{}); e.err != nil || e.resp.Error != nil {
		t.Errorf("a call without a file: %v %+v", e.err, e.resp)
	}
}
