package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
)

// pair are two replicas of one deployment.
func pair(t testing.TB) (a, b *replica) {
	t.Helper()
	url, key := natsURL(t), serverKey(t)
	return newReplica(t, key, url), newReplica(t, key, url)
}

// TestCallsOverAHop: many at once, small and large, each with its own answer.
func TestCallsOverAHop(t *testing.T) {
	a, b := pair(t)
	a.agent("web", 1, echo)
	eventually(t, "web is known", func() bool { return b.sees("web") })
	var all sync.WaitGroup
	// Ten at a time: of all fifty the last would wait, on a machine that has more to do, for longer
	// than a request may (acceptFor).
	turns := make(chan struct{}, 10)
	for i := range 50 {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			args := fmt.Sprintf(`{"n":%d,"fill":%q}`, i, strings.Repeat("x", i*500))
			got, err := b.call(t.Context(), "web", fmt.Sprint("c", i), args)
			if err != nil || string(got.Result) != args {
				t.Errorf("call %d: %v", i, err)
			}
		})
	}
	all.Wait()
	if s := b.Stats(); s.Hops != 50 || s.Pipes != 1 || s.Refused+a.Stats().Refused != 0 {
		t.Errorf("%+v %+v", s, a.Stats())
	}
	before := a.nc.Stats().OutMsgs + b.nc.Stats().OutMsgs
	for i := range 200 {
		if _, err := b.call(t.Context(), "web", fmt.Sprint("small", i), `{}`); err != nil {
			t.Fatal(err)
		}
	}
	// A small call is one message each way; beats and keep-alives come between.
	if n := a.nc.Stats().OutMsgs + b.nc.Stats().OutMsgs - before; n < 400 || n > 500 {
		t.Errorf("200 calls took %d messages", n)
	}
	b.CancelElsewhere("some-call")
	eventually(t, "a cancel arrives", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.cancelled) == 1 && a.cancelled[0] == "some-call"
	})
}

// TestHostileClientOnNATS: somebody who may subscribe to and publish on every subject reads
// nothing, and by saying again what was said, changed or not, changes nothing.
func TestHostileClientOnNATS(t *testing.T) {
	a, b := pair(t)
	var runs atomic.Int64
	count := func(ctx context.Context, req *protocol.Request, w *mux.Work) *protocol.Response {
		runs.Add(1)
		return echo(ctx, req, w)
	}
	evil, err := nats.Connect(natsURL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer evil.Close()
	var mu sync.Mutex
	var heard []*nats.Msg
	for _, subject := range []string{a.prefix + ">", "_INBOX.>"} {
		if _, err := evil.Subscribe(subject, func(m *nats.Msg) {
			mu.Lock()
			heard = append(heard, m)
			mu.Unlock()
			if strings.HasPrefix(m.Reply, "_INBOX.") { // be the first to answer
				_ = evil.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header{"Status": {"503"}}})
				_ = evil.Publish(m.Reply, []byte(`{"nonce":"x"}`))
				_ = evil.Publish(m.Reply, m.Data)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := evil.Flush(); err != nil {
		t.Fatal(err)
	}
	a.agent("web", 1, count)
	eventually(t, "web is known", func() bool { return b.sees("web") })
	const secret = "drop-the-secret-table"
	calls := 0
	call := func() {
		t.Helper()
		calls++
		args := fmt.Sprintf(`{"command":%q}`, secret)
		if got, err := b.call(t.Context(), "web", fmt.Sprint("c", calls), args); err != nil || string(got.Result) != args {
			t.Errorf("call %d: %v", calls, err)
		}
	}
	call()
	a.agent("gone", 2, echo).Close(0, "")
	eventually(t, "enough was said", func() bool { mu.Lock(); defer mu.Unlock(); return len(heard) > 8 })
	mu.Lock()
	said := heard
	mu.Unlock()
	own, err := newKeys(serverKey(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range said {
		for _, plain := range []string{secret, "web", "command", "succeeded"} {
			if bytes.Contains(m.Data, []byte(plain)) {
				t.Errorf("%s tells %q", m.Subject, plain)
			}
		}
		flipped := bytes.Clone(m.Data)
		if len(flipped) > 0 {
			flipped[len(flipped)/2] ^= 1
		}
		for _, other := range said {
			for _, data := range [][]byte{m.Data, flipped, []byte(`{"kind":"bye"}`), own.seal(other.Subject, []byte(`{}`)), {}} {
				if err := evil.PublishRequest(other.Subject, "evil", data); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if err := evil.Flush(); err != nil {
		t.Fatal(err)
	}
	call()
	call()
	eventually(t, "it's counted", func() bool { return a.Stats().Refused > 50 && b.Stats().Refused > 50 })
	for _, s := range []Stats{a.Stats(), b.Stats()} {
		if s.Forged == 0 || s.Replayed == 0 || s.In != 0 || s.Out != 0 || s.Overtaken != 0 {
			t.Errorf("%+v", s)
		}
	}
	if n := runs.Load(); n != int64(calls) {
		t.Errorf("%d calls ran %d times", calls, n)
	}
	if !b.sees("web") || b.sees("gone") || b.Stats().Pipes != 1 || a.Stats().Pipes != 1 {
		t.Errorf("web %t, gone %t, %+v, %+v", b.sees("web"), b.sees("gone"), a.Stats(), b.Stats())
	}
}

// TestAnotherDeploymentIsNotHeard: two deployments on one NATS know nothing of each other.
func TestAnotherDeploymentIsNotHeard(t *testing.T) {
	a, b := pair(t)
	other := newReplica(t, serverKey(t), natsURL(t))
	a.agent("web", 1, echo)
	eventually(t, "web is known", func() bool { return b.sees("web") })
	if other.sees("web") || other.prefix == a.prefix {
		t.Error("another deployment knows it")
	}
}

// TestTheNewestConnectionGetsTheCalls: an agent connected to two replicas is called where its
// newest connection is, from both, and the old one is closed; its late close changes nothing.
func TestTheNewestConnectionGetsTheCalls(t *testing.T) {
	a, b := pair(t)
	old := a.agent("web", 1, func(context.Context, *protocol.Request, *mux.Work) *protocol.Response {
		return &protocol.Response{Result: jsontext.Value(`{"old":true}`)}
	})
	eventually(t, "web is known", func() bool { return b.epochOf("web") == 1 })
	b.agent("web", 2, echo)
	eventually(t, "both know the new one", func() bool { return a.epochOf("web") == 2 && b.epochOf("web") == 2 })
	for i, r := range []*replica{a, b} {
		if got, err := r.call(t.Context(), "web", fmt.Sprint("c", i), `{}`); err != nil || string(got.Result) != `{}` {
			t.Errorf("replica %d: %v %+v", i, err, got)
		}
	}
	<-old.Done()
	if got, err := a.call(t.Context(), "web", "after", `{}`); err != nil || string(got.Result) != `{}` {
		t.Errorf("after the late close: %v", err)
	}
}

// TestHowAnAgentWentIsTold: the others know whether its connection broke off.
func TestHowAnAgentWentIsTold(t *testing.T) {
	a, b := pair(t)
	cut, gone := a.agent("cut", 1, echo), a.agent("gone", 1, echo)
	eventually(t, "both are known", func() bool { return b.sees("cut") && b.sees("gone") })
	gone.Close(protocol.CloseGoingAway, "it stops")
	cut.Close(0, "")
	eventually(t, "the cut one's end is known", func() bool { return b.BrokeOff("cut") })
	eventually(t, "both are gone", func() bool { return !b.sees("cut") && !b.sees("gone") })
	if a.BrokeOff("gone") || b.BrokeOff("gone") {
		t.Error("an agent that said so is taken for one whose connection broke off")
	}
}

// TestAnAgentCannotSpeakForItsHolder: what only the replica in between may say counts as
// nothing when the agent says it.
func TestAnAgentCannotSpeakForItsHolder(t *testing.T) {
	a, b := pair(t)
	a.agent("web", 1, func(_ context.Context, req *protocol.Request, _ *mux.Work) *protocol.Response {
		return &protocol.Response{Error: &protocol.Error{Code: protocol.CodeNotStarted, Reason: req.ID, Message: "a lie"}}
	})
	eventually(t, "web is known", func() bool { return b.sees("web") })
	for _, reason := range []string{reasonNotSent, reasonCut, reasonNoAnswer, noteUnasked} {
		got, err := b.call(t.Context(), "web", reason, `{}`)
		if err != nil || got.Error == nil || got.Error.Reason != "other" {
			t.Errorf("%s: %v %+v", reason, err, got)
		}
	}
}

// TestACancelCrossesTheHop: it reaches the agent with its reason, and the answer comes back.
func TestACancelCrossesTheHop(t *testing.T) {
	a, b := pair(t)
	begun := make(chan struct{})
	a.agent("web", 1, func(ctx context.Context, _ *protocol.Request, _ *mux.Work) *protocol.Response {
		close(begun)
		<-ctx.Done()
		return &protocol.Response{Error: &protocol.Error{Code: protocol.CodeCancelled, Message: context.Cause(ctx).Error()}}
	})
	eventually(t, "web is known", func() bool { return b.sees("web") })
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-begun; cancel(errors.New("changed my mind")) }()
	got, err := b.call(ctx, "web", "c", `{}`)
	if err != nil || got.Error == nil || got.Error.Code != protocol.CodeCancelled || !strings.HasSuffix(got.Error.Message, ": changed my mind") {
		t.Errorf("%v %+v", err, got)
	}
}

// TestNobodyThere: a replica that died without a word is offline at the first call.
func TestNobodyThere(t *testing.T) {
	_, b := pair(t)
	b.hear(&news{Kind: newsUp, From: "dead", Seq: 1, Agents: []entry{at("web", 1)}})
	if _, err := b.call(t.Context(), "web", "c", `{}`); !errors.Is(err, protocol.ErrNotSent) {
		t.Error(err)
	}
	if b.sees("web") {
		t.Error("it's still believed to be there")
	}
}

// TestIdlePipesClose, and the next call opens another one.
func TestIdlePipesClose(t *testing.T) {
	a, b := pair(t)
	a.agent("web", 1, echo)
	eventually(t, "web is known", func() bool { return b.sees("web") })
	for i := range 2 {
		if _, err := b.call(t.Context(), "web", fmt.Sprint("c", i), `{}`); err != nil {
			t.Fatal(err)
		}
		b.mu.Lock()
		for at, r := range b.remotes {
			if r.idle(time.Now().Add(idleAfter + time.Second)) {
				b.drop(at, "idle")
			}
		}
		b.mu.Unlock()
		eventually(t, "both ends are closed", func() bool { return a.Stats().Pipes+b.Stats().Pipes == 0 })
	}
}

// TestCloseEndsEverything: calls under way end as cut, the others know at once, and no
// goroutine is left.
func TestCloseEndsEverything(t *testing.T) {
	url, key := natsURL(t), serverKey(t)
	before := runtime.NumGoroutine()
	t.Run("replicas", func(t *testing.T) {
		a, b := newReplica(t, key, url), newReplica(t, key, url)
		begun, free := make(chan struct{}), make(chan struct{})
		a.agent("web", 1, func(context.Context, *protocol.Request, *mux.Work) *protocol.Response {
			close(begun)
			<-free
			return &protocol.Response{Result: jsontext.Value(`{}`)}
		})
		b.agent("db", 2, echo)
		eventually(t, "both are known", func() bool { return b.sees("web") && a.sees("db") })
		ended := make(chan error, 1)
		go func() { _, err := b.call(context.Background(), "web", "c", `{}`); ended <- err }()
		<-begun
		b.Close()
		if err := <-ended; !errors.Is(err, protocol.ErrCut) {
			t.Error(err)
		}
		eventually(t, "its agents are gone", func() bool { return !a.sees("db") && a.Stats().Pipes == 0 })
		if _, err := b.call(context.Background(), "web", "d", `{}`); !errors.Is(err, protocol.ErrNotSent) {
			t.Errorf("after the end: %v", err)
		}
		close(free)
	})
	eventually(t, "the goroutines have ended", func() bool { return runtime.NumGoroutine() <= before })
}
