package mux_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
)

// journal is an agent's memory of earlier calls.
type journal struct {
	mu     sync.Mutex
	asked  int
	states map[string]protocol.ResumeState
	pause  chan struct{} // if not nil, Fates waits for it
	rejoin func(ctx context.Context, id string, w *mux.Work) *protocol.Response
}

func (j *journal) Fates(ids []string) protocol.Resume {
	if j.pause != nil {
		<-j.pause
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.asked++
	out := protocol.Resume{Boot: "journal-1"}
	for _, id := range ids {
		st, ok := j.states[id]
		if !ok {
			st.State = protocol.FateUnseen
		}
		st.ID = id
		out.States = append(out.States, st)
	}
	return out
}

func (j *journal) Rejoin(ctx context.Context, id string, w *mux.Work) *protocol.Response {
	return j.rejoin(ctx, id, w)
}

func TestResumeRunning(t *testing.T) {
	end := make(chan struct{})
	j := &journal{states: map[string]protocol.ResumeState{"x": {State: "running", PID: 42, AgoMS: 1500}}, rejoin: func(_ context.Context, id string, w *mux.Work) *protocol.Response {
		w.Progress("still at it")
		if _, _, err := w.In(context.Background()); err == nil {
			t.Error("a resumed call has a stream in")
		}
		if _, err := w.Out(1); err == nil {
			t.Error("a resumed call has a stream out")
		}
		<-end
		return fine(`"of %s"`, id)
	}}
	s, h := pair(t, mux.Config{}, mux.Config{Resumer: j})
	var news []string
	fate, resp, err := s.Resume(t.Context(), "x", mux.Exchange{Progress: func(p protocol.Progress) {
		news = append(news, p.Message)
		close(end)
	}})
	if err != nil || resp == nil || string(resp.Result) != `"of x"` || resp.ID != "x" {
		t.Fatalf("%+v %v", resp, err)
	}
	want := mux.Fate{ResumeState: protocol.ResumeState{ID: "x", State: "running", PID: 42, AgoMS: 1500}, Boot: "journal-1"}
	if d := cmp.Diff(want, fate); d != "" {
		t.Error(d)
	}
	if len(news) != 1 || news[0] != "still at it" || s.Boot() != "journal-1" {
		t.Errorf("%q, boot %q", news, s.Boot())
	}
	if s.Open()+h.Open() != 0 {
		t.Error("something is left open")
	}
}

func TestResumeWithoutResponse(t *testing.T) {
	code := 3
	lost := protocol.ResumeState{State: "lost", PID: 7, AgoMS: 60_000, Ended: true, ExitCode: &code, Note: "killed\x1b[2J after a restart\nof the agent"}
	j := &journal{states: map[string]protocol.ResumeState{"l": lost}}
	s, h := pair(t, mux.Config{}, mux.Config{Resumer: j})
	fate, resp, err := s.Resume(t.Context(), "never-seen", mux.Exchange{})
	if err != nil || resp != nil || fate.State != protocol.FateUnseen || fate.Boot != "journal-1" {
		t.Errorf("unseen: %+v %+v %v", fate, resp, err)
	}
	fate, resp, err = s.Resume(t.Context(), "l", mux.Exchange{})
	if err != nil || resp != nil || fate.State != protocol.FateLost || fate.ExitCode == nil || *fate.ExitCode != 3 || fate.Note != `killed\x1b[2J after a restart of the agent` {
		t.Errorf("lost: %+v %+v %v", fate, resp, err)
	}
	// What was told to be unseen isn't run afterwards.
	r := request(`{}`)
	r.ID = "never-seen"
	if resp, err := s.Call(t.Context(), r, mux.Exchange{}); err != nil || resp.Error == nil || resp.Error.Reason != protocol.ReasonDuplicate {
		t.Errorf("a call that was unseen: %+v %v", resp, err)
	}
	if s.Open()+h.Open() != 0 {
		t.Error("something is left open")
	}
}

// Without a Resumer nothing was ever seen.
func TestResumeWithoutJournal(t *testing.T) {
	s, _ := pair(t, mux.Config{}, mux.Config{})
	fate, resp, err := s.Resume(t.Context(), "x", mux.Exchange{})
	if err != nil || resp != nil || fate.State != protocol.FateUnseen || fate.Boot != "" {
		t.Errorf("%+v %+v %v", fate, resp, err)
	}
}

// Results longer than a message arrive after their fate, however many were asked for.
func TestResumeDoneWithLongResults(t *testing.T) {
	j := &journal{states: map[string]protocol.ResumeState{}, rejoin: func(_ context.Context, id string, _ *mux.Work) *protocol.Response {
		return fine(`"%s%s"`, id, strings.Repeat("x", len(id)*1000))
	}}
	var ids []string
	for i := range 40 {
		id := fmt.Sprintf("call-%0100d", i)
		ids = append(ids, id)
		j.states[id] = protocol.ResumeState{State: "done", Ended: true, Note: strings.Repeat("n", 500)}
	}
	s, _ := pair(t, mux.Config{}, mux.Config{Resumer: j})
	// One question about all of them has an answer that is a stream itself.
	if err := s.Send(t.Context(), &protocol.Resume{Type: "resume", IDs: ids[:38]}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() {
			fate, resp, err := s.Resume(t.Context(), id, mux.Exchange{})
			if err != nil || fate.State != protocol.FateDone || resp == nil || !strings.HasPrefix(string(resp.Result), `"`+id+"xx") {
				t.Errorf("%s: %+v %v", id, fate, err)
			}
		})
	}
	wg.Wait()
}

// The answer to one question about many calls is long; the short responses don't overtake it.
func TestResponsesDoNotOvertakeTheirFates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{states: map[string]protocol.ResumeState{}, rejoin: func(context.Context, string, *mux.Work) *protocol.Response { return fine(`{}`) }}
		ask := protocol.Resume{Type: "resume"}
		for i := range 200 {
			id := fmt.Sprintf("call-%0100d", i)
			ask.IDs = append(ask.IDs, id)
			j.states[id] = protocol.ResumeState{State: "done"}
		}
		a, b := newPipe(0)
		h, peer := run(b, mux.Config{Handler: echo, Resumer: j}), raw{t, a}
		whole, _ := protocol.Encode(&ask)
		peer.frame(&protocol.Open{Type: "open", Stream: 1, Kind: "frame", Size: int64(len(whole))})
		for len(whole) > 0 {
			n := min(len(whole), protocol.MaxChunk)
			peer.chunk(1, map[bool]byte{true: protocol.FlagEnd}[n == len(whole)], whole[:n])
			whole = whole[n:]
		}
		if o, ok := peer.read().(*protocol.Open); !ok || o.Kind != "frame" {
			t.Fatalf("got %+v", o)
		}
		synctest.Wait()
		ended := false
		for responses := 0; responses < len(ask.IDs); {
			switch v := peer.read().(type) {
			case []byte:
				ended = ended || v[4] == protocol.FlagEnd
			case *protocol.Response:
				if responses++; !ended {
					t.Fatal("a response came before the fates")
				}
			}
		}
		h.Close(0, "")
		h.wait(t)
	})
}

func TestCancelOfAResumedCall(t *testing.T) {
	started := make(chan struct{})
	j := &journal{states: map[string]protocol.ResumeState{"x": {State: "running"}}, rejoin: func(ctx context.Context, _ string, _ *mux.Work) *protocol.Response {
		close(started)
		<-ctx.Done()
		var ce *mux.CancelError
		if !errors.As(context.Cause(ctx), &ce) || ce.Reason != "revoked" {
			t.Errorf("cause %v", context.Cause(ctx))
		}
		return &protocol.Response{Error: protocol.Errorf(protocol.CodeCancelled, "dead")}
	}}
	s, _ := pair(t, mux.Config{}, mux.Config{Resumer: j})
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-started; cancel(errors.New("revoked")) }()
	fate, resp, err := s.Resume(ctx, "x", mux.Exchange{})
	if err != nil || fate.State != protocol.FateRunning || resp == nil || resp.Error.Code != protocol.CodeCancelled {
		t.Errorf("%+v %+v %v", fate, resp, err)
	}
}

// A cancel that comes while the agent looks into its journal counts when the call is found.
func TestCancelBeforeTheFate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{pause: make(chan struct{}), states: map[string]protocol.ResumeState{"x": {State: "running"}}, rejoin: func(ctx context.Context, _ string, _ *mux.Work) *protocol.Response {
			<-ctx.Done()
			return &protocol.Response{Error: protocol.Errorf(protocol.CodeCancelled, "%v", context.Cause(ctx))}
		}}
		a, b := newPipe(8)
		h, peer := run(b, mux.Config{Handler: echo, Resumer: j}), raw{t, a}
		peer.frame(&protocol.Resume{Type: "resume", IDs: []string{"x", "y"}})
		peer.frame(&protocol.Cancel{Type: "cancel", ID: "x", Reason: "too late"})
		synctest.Wait()
		close(j.pause)
		if f, ok := peer.read().(*protocol.Resume); !ok || len(f.States) != 2 || f.States[0].State != "running" || f.States[1].State != "unseen" {
			t.Errorf("fate %+v", f)
		}
		if r, ok := peer.read().(*protocol.Response); !ok || r.ID != "x" || !strings.Contains(r.Error.Message, "too late") {
			t.Errorf("response %+v", r)
		}
		synctest.Wait()
		if h.Open() != 0 {
			t.Error("something is left open")
		}
		h.Close(0, "")
		h.wait(t)
	})
}

func TestResumeCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := make(chan struct{})
		j := &journal{states: map[string]protocol.ResumeState{"x": {State: "running", PID: 9}}, rejoin: func(ctx context.Context, _ string, _ *mux.Work) *protocol.Response {
			close(started)
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), protocol.ErrCut) {
				t.Errorf("cause %v", context.Cause(ctx))
			}
			return nil
		}}
		a, b := newPipe(4)
		s, h := run(a, mux.Config{}), run(b, mux.Config{Handler: echo, Resumer: j})
		go func() {
			<-started
			synctest.Wait() // the state is there
			_ = b.Close(0, "")
		}()
		fate, resp, err := s.Resume(t.Context(), "x", mux.Exchange{})
		if !errors.Is(err, protocol.ErrCut) || errors.Is(err, protocol.ErrNotSent) || resp != nil || fate.PID != 9 {
			t.Errorf("%+v %+v %v", fate, resp, err)
		}
		s.wait(t)
		h.wait(t)
		if _, _, err := s.Resume(t.Context(), "x", mux.Exchange{}); !errors.Is(err, protocol.ErrNotSent) {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestResumeOfVersion1(t *testing.T) {
	s, h := pair(t, mux.Config{Version: 1}, mux.Config{Version: 1, Resumer: &journal{
		states: map[string]protocol.ResumeState{"l": {State: "lost", PID: 1}, "r": {State: "running"}},
		rejoin: func(context.Context, string, *mux.Work) *protocol.Response {
			t.Error("in version 1 nothing follows")
			return nil
		},
	}})
	if _, _, err := s.Resume(t.Context(), "l", mux.Exchange{}); !errors.Is(err, protocol.ErrNotSent) {
		t.Errorf("asked anyway: %v", err)
	}
	if h.Open() != 0 {
		t.Error("something is left open")
	}
	// A server that asks hears what version 1 has words for.
	heard := make(chan *protocol.Resume, 1)
	s, h = pair(t, mux.Config{Version: 1, Notify: func(f any) { heard <- f.(*protocol.Resume) }}, mux.Config{Version: 1, Resumer: &journal{states: map[string]protocol.ResumeState{"l": {State: "lost", PID: 1}, "r": {State: "running", AgoMS: 5}}}})
	if err := s.Send(t.Context(), &protocol.Resume{Type: "resume", IDs: []string{"l", "r", "u"}}); err != nil {
		t.Fatal(err)
	}
	want := []protocol.ResumeState{{ID: "l", State: "done"}, {ID: "r", State: "running"}, {ID: "u", State: "unseen"}}
	if d := cmp.Diff(want, (<-heard).States); d != "" {
		t.Error(d)
	}
	if err := s.Ping(t.Context()); err != nil || !h.Alive() {
		t.Error(err)
	}
}

// The same call asked for again on one connection is answered again, at whatever moment.
func TestResumeTwice(t *testing.T) {
	rounds := make(chan struct{}, 64)
	j := &journal{states: map[string]protocol.ResumeState{"x": {State: "done"}}, rejoin: func(context.Context, string, *mux.Work) *protocol.Response {
		rounds <- struct{}{}
		return fine(`"kept"`)
	}}
	s, h := pair(t, mux.Config{}, mux.Config{Resumer: j})
	for i := range 32 {
		fate, resp, err := s.Resume(t.Context(), "x", mux.Exchange{})
		if err != nil || fate.State != "done" || resp == nil || string(resp.Result) != `"kept"` {
			t.Fatalf("%d: %+v %+v %v", i, fate, resp, err)
		}
	}
	if len(rounds) != 32 || s.Open()+h.Open() != 0 {
		t.Errorf("%d answers, %d open", len(rounds), s.Open()+h.Open())
	}
	// Twice at once is this side's own mistake.
	j.pause = make(chan struct{})
	first := make(chan error, 1)
	go func() { _, _, err := s.Resume(context.Background(), "x", mux.Exchange{}); first <- err }()
	for s.Open() == 0 {
		if err := s.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.Resume(t.Context(), "x", mux.Exchange{}); !errors.Is(err, protocol.ErrNotSent) {
		t.Errorf("a second one beside the first: %v", err)
	}
	close(j.pause)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

// The server gave the first question up (nobody answered its cancel); its next one, while
// the agent still waits for the same call, gets the one response.
func TestResumeAgainWhileTheFirstAnswerIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		j := &journal{states: map[string]protocol.ResumeState{"x": {State: "running"}}, rejoin: func(context.Context, string, *mux.Work) *protocol.Response {
			<-end
			return fine(`"once"`)
		}}
		a, b := newPipe(4)
		s, h := run(a, mux.Config{}), run(b, mux.Config{Handler: echo, Resumer: j})
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, _, err := s.Resume(ctx, "x", mux.Exchange{}); !errors.Is(err, protocol.ErrNoAnswer) {
			t.Errorf("the first: %v", err)
		}
		again := make(chan string, 1)
		go func() {
			fate, resp, err := s.Resume(context.Background(), "x", mux.Exchange{})
			again <- fmt.Sprint(fate.State, " ", resp != nil && string(resp.Result) == `"once"`, " ", err)
		}()
		synctest.Wait()
		close(end)
		if got := <-again; got != "running true <nil>" {
			t.Errorf("the second: %s", got)
		}
		s.Close(0, "")
		s.wait(t)
		h.wait(t)
	})
}

// A response that went out while the next question was being looked up may have found nobody
// who waits: it comes again after that question's fate.
func TestResumeAgainAtTheMomentOfTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end, look := make(chan struct{}), make(chan struct{}, 2)
		j := &journal{pause: look, states: map[string]protocol.ResumeState{"x": {State: "running"}}, rejoin: func(context.Context, string, *mux.Work) *protocol.Response {
			<-end
			return fine(`"kept"`)
		}}
		a, b := newPipe(8)
		h, peer := run(b, mux.Config{Handler: echo, Resumer: j}), raw{t, a}
		ask := &protocol.Resume{Type: "resume", IDs: []string{"x"}}
		look <- struct{}{}
		peer.frame(ask)
		peer.read()
		synctest.Wait()
		peer.frame(ask)
		synctest.Wait()
		close(end)
		if _, ok := peer.read().(*protocol.Response); !ok {
			t.Error("no response to the first question")
		}
		look <- struct{}{}
		if f, ok := peer.read().(*protocol.Resume); !ok || f.States[0].State != "running" {
			t.Errorf("the second fate: %+v", f)
		}
		if r, ok := peer.read().(*protocol.Response); !ok || string(r.Result) != `"kept"` {
			t.Errorf("the second response: %+v", r)
		}
		h.Close(0, "")
		h.wait(t)
	})
}

// asked is a server's session whose one question the test answers by hand.
func asked(t *testing.T, answers func(peer raw)) (fate mux.Fate, resp *protocol.Response, s *running, err error) {
	t.Helper()
	a, b := newPipe(16)
	s = run(a, mux.Config{})
	peer := raw{t, b}
	go func() {
		if r, ok := peer.read().(*protocol.Resume); !ok || len(r.IDs) != 1 || r.IDs[0] != "x" || r.Boot != "" || r.States != nil {
			t.Errorf("the question: %+v", r)
		}
		answers(peer)
	}()
	fate, resp, err = s.Resume(context.Background(), "x", mux.Exchange{Progress: func(p protocol.Progress) { t.Errorf("progress %q", p.Message) }})
	return fate, resp, s, err
}

func answer(boot string, states ...protocol.ResumeState) *protocol.Resume {
	return &protocol.Resume{Type: "resume", Boot: boot, States: states}
}

// A copy of the request of a call that is resumed, whenever it comes, doesn't run and isn't
// answered.
func TestACopyOfAResumedCallIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		j := &journal{states: map[string]protocol.ResumeState{"x": {State: protocol.FateRunning}}, rejoin: func(context.Context, string, *mux.Work) *protocol.Response {
			<-release
			return fine(`"its own"`)
		}}
		a, b := newPipe(16)
		h := run(b, mux.Config{Resumer: j, Handler: handlerFunc(func(_ context.Context, r *protocol.Request, _ func(string)) *protocol.Response {
			t.Errorf("%s ran", r.ID)
			return nil
		})})
		peer := raw{t, a}
		copied := request(`{}`)
		copied.ID, copied.Type = "x", protocol.TypeRequest
		peer.frame(&protocol.Resume{Type: protocol.TypeResume, IDs: []string{"x"}})
		peer.frame(copied)
		if f := peer.read().(*protocol.Resume); f.States[0].State != protocol.FateRunning {
			t.Errorf("%+v", f)
		}
		peer.frame(copied)
		synctest.Wait()
		close(release)
		if r, ok := peer.read().(*protocol.Response); !ok || string(r.Result) != `"its own"` {
			t.Errorf("%+v", r)
		}
		peer.frame(copied)
		peer.frame(&protocol.Ping{Type: protocol.TypePing, N: 1})
		if v, ok := peer.read().(*protocol.Pong); !ok || h.Stats().Duplicate != 3 {
			t.Errorf("another answer: %+v; %d were dropped", v, h.Stats().Duplicate)
		}
		h.Close(0, "")
		h.wait(t)
	})
}

func TestWhatAnAgentMustNotSayOfACall(t *testing.T) {
	result := &protocol.Response{ID: "x", Result: []byte(`"a result"`)}
	for name, c := range map[string]struct {
		answers func(p raw)
		state   string
		resp    bool
		late    int64
	}{
		"a response before the fate": {func(p raw) {
			p.frame(&protocol.Response{ID: "x", Result: []byte(`"too early"`)})
			p.frame(&protocol.Progress{Type: "progress", ID: "x", Seq: 1, Message: "too early"})
			p.frame(answer("b", protocol.ResumeState{ID: "x", State: "done"}))
			p.frame(result)
		}, "done", true, 2},
		"others' fates": {func(p raw) {
			p.frame(answer("b", protocol.ResumeState{ID: "y", State: "done"}, protocol.ResumeState{ID: "", State: "lost"}))
			p.frame(&protocol.Response{ID: "y", Result: []byte(`"another's"`)})
			p.frame(answer("b", protocol.ResumeState{ID: "x", State: "running"}))
			p.frame(result)
		}, "running", true, 3},
		"the refusal of a copy of its request": {func(p raw) {
			p.frame(answer("b", protocol.ResumeState{ID: "x", State: "running"}))
			p.frame(&protocol.Response{ID: "x", Error: &protocol.Error{Code: protocol.CodeConflict, Reason: protocol.ReasonDuplicate}})
			p.frame(result)
		}, "running", true, 1},
		"two fates": {func(p raw) {
			p.frame(answer("b", protocol.ResumeState{ID: "x", State: "running"}, protocol.ResumeState{ID: "x", State: "unseen"}))
			p.frame(answer("b", protocol.ResumeState{ID: "x", State: "lost"}))
			p.frame(result)
		}, "running", true, 2},
		"a boot alone first": {func(p raw) {
			p.frame(answer("b"))
			p.frame(answer("b", protocol.ResumeState{ID: "x", State: "lost"}))
		}, "lost", false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			fate, resp, s, err := asked(t, c.answers)
			if err != nil || fate.State != c.state || fate.Boot != "b" || (resp != nil) != c.resp || resp != nil && string(resp.Result) != `"a result"` {
				t.Errorf("%+v %+v %v", fate, resp, err)
			}
			if n := s.Stats().Late; n != c.late {
				t.Errorf("%d were late", n)
			}
			if !s.Alive() {
				t.Error("the session ended")
			}
			s.Close(0, "")
			s.wait(t)
		})
	}
	for name, f := range map[string]*protocol.Resume{
		"no such fate":    answer("b", protocol.ResumeState{ID: "x", State: "succeeded"}),
		"negative pid":    answer("b", protocol.ResumeState{ID: "x", State: "lost", PID: -1}),
		"negative ago":    answer("b", protocol.ResumeState{ID: "x", State: "lost", AgoMS: -1}),
		"long boot":       answer(strings.Repeat("b", 129), protocol.ResumeState{ID: "x", State: "unseen"}),
		"boot of no kind": answer("a\nb", protocol.ResumeState{ID: "x", State: "unseen"}),
		"the second one":  answer("b", protocol.ResumeState{ID: "x", State: "unseen"}, protocol.ResumeState{ID: "y", State: "?"}),
	} {
		t.Run(name, func(t *testing.T) {
			fate, resp, s, err := asked(t, func(p raw) { p.frame(f) })
			var v *mux.Violation
			if !errors.Is(err, protocol.ErrCut) || resp != nil || fate.State != "" || !errors.As(s.wait(t), &v) || s.Boot() != "" {
				t.Errorf("%+v %+v %v, boot %q", fate, resp, err, s.Boot())
			}
		})
	}
}

// An agent of version 1 has no words for what version 2 tells.
func TestEvidenceInVersion1(t *testing.T) {
	for _, st := range []protocol.ResumeState{{ID: "x", State: "lost"}, {ID: "x", State: "done", PID: 4}, {ID: "x", State: "done", Note: "n"}} {
		a, b := newPipe(4)
		s := run(a, mux.Config{Version: 1})
		raw{t, b}.frame(answer("b", st))
		var v *mux.Violation
		if err := s.wait(t); !errors.As(err, &v) {
			t.Errorf("%+v: %v", st, err)
		}
	}
}

// No fate comes: the question ends by itself, and nothing was learnt.
func TestNoFate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPipe(16)
		s, peer := run(a, mux.Config{}), raw{t, b}
		go func() { peer.read(); peer.frame(&protocol.Response{ID: "x", Result: []byte(`"no fate"`)}) }()
		began := time.Now()
		fate, resp, err := s.Resume(context.Background(), "x", mux.Exchange{})
		if !errors.Is(err, protocol.ErrNotSent) || resp != nil || fate.State != "" || time.Since(began) != protocol.CancelGrace {
			t.Errorf("%+v %+v %v after %s", fate, resp, err, time.Since(began))
		}
		s.Close(0, "")
		s.wait(t)
	})
}

// Calls of earlier connections don't take the room of new ones.
func TestResumedCallsDoNotMakeAnAgentBusy(t *testing.T) {
	end := make(chan struct{})
	j := &journal{states: map[string]protocol.ResumeState{}, rejoin: func(context.Context, string, *mux.Work) *protocol.Response { <-end; return fine(`{}`) }}
	s, h := pair(t, mux.Config{}, mux.Config{MaxCalls: 1, Resumer: j})
	var wg sync.WaitGroup
	for i := range 5 {
		id := fmt.Sprint("old-", i)
		j.mu.Lock()
		j.states[id] = protocol.ResumeState{State: "running"}
		j.mu.Unlock()
		wg.Go(func() {
			if _, resp, err := s.Resume(t.Context(), id, mux.Exchange{}); err != nil || resp == nil {
				t.Errorf("%s: %v", id, err)
			}
		})
	}
	for h.Open() < 5 {
		if err := s.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if resp, err := s.Call(t.Context(), request(`{}`), mux.Exchange{}); err != nil || resp.Error != nil {
		t.Errorf("a new call: %+v %v", resp, err)
	}
	close(end)
	wg.Wait()
}

// The streams of a call end with their connection; the call goes on, and is resumed on the next.
func TestACallWithAFileIsResumedWithoutIt(t *testing.T) {
	ended, lived := make(chan error, 1), make(chan struct{})
	a, b := newPipe(4)
	s, h := run(a, mux.Config{}), run(b, mux.Config{Handler: workFunc(func(ctx context.Context, _ *protocol.Request, w *mux.Work) *protocol.Response {
		in, _, err := w.In(ctx)
		if err == nil {
			close(lived)
			_, err = io.Copy(io.Discard, in)
		}
		ended <- err
		return nil
	})})
	hold, write := io.Pipe()
	go func() { _, _ = write.Write([]byte("abc")); <-lived; _ = b.Close(0, "") }()
	r := request(`{}`)
	if _, err := s.Call(t.Context(), r, mux.Exchange{Body: hold, Size: 10}); !errors.Is(err, protocol.ErrCut) {
		t.Errorf("the call: %v", err)
	}
	_ = hold.Close()
	err := <-ended
	if !errors.Is(err, protocol.ErrCut) {
		t.Errorf("the agent read %v", err)
	}
	s.wait(t)
	h.wait(t)
	j := &journal{states: map[string]protocol.ResumeState{r.ID: {State: "done"}}, rejoin: func(context.Context, string, *mux.Work) *protocol.Response { return failed(err) }}
	s2, _ := pair(t, mux.Config{}, mux.Config{Resumer: j})
	if fate, resp, err := s2.Resume(t.Context(), r.ID, mux.Exchange{}); err != nil || fate.State != "done" || resp.Error == nil {
		t.Errorf("%+v %+v %v", fate, resp, err)
	}
}
