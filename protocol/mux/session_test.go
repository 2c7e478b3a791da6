package mux_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
)

func TestViolations(t *testing.T) {
	const response = `{"type":"response","id":"x","took_us":1}`
	deep := strings.Repeat("[", 70) + strings.Repeat("]", 70)
	open := func(id uint32, kind string, size int64) any {
		return &protocol.Open{Type: "open", Stream: id, Kind: kind, ID: "x", Size: size}
	}
	kib := make([]byte, 1<<10)
	for name, c := range map[string]struct {
		agent bool // the session under test is the agent's
		do    func(p raw)
	}{
		"not json":       {false, func(p raw) { p.text("hello") }},
		"empty":          {false, func(p raw) { p.text("") }},
		"unknown type":   {false, func(p raw) { p.text(`{"type":"shutdown"}`) }},
		"unknown member": {false, func(p raw) { p.text(`{"type":"response","id":"x","took_us":1,"agent_id":"y"}`) }},
		"wrong case":     {false, func(p raw) { p.text(`{"type":"response","ID":"x","took_us":1}`) }},
		"missing":        {false, func(p raw) { p.text(`{"type":"response","id":"x"}`) }},
		"null":           {false, func(p raw) { p.text(`{"type":"response","id":null,"took_us":1}`) }},
		"twice":          {false, func(p raw) { p.text(`{"type":"response","id":"x","id":"y","took_us":1}`) }},
		"type twice":     {false, func(p raw) { p.text(`{"type":"response","type":"log","id":"x","took_us":1}`) }},
		"wrong type":     {false, func(p raw) { p.text(`{"type":"response","id":7,"took_us":1}`) }},
		"trailing":       {false, func(p raw) { p.text(response + "{}") }},
		"deep":           {false, func(p raw) { p.text(`{"type":"response","id":"x","took_us":1,"result":` + deep + `}`) }},
		"a million deep": {false, func(p raw) { p.text(strings.Repeat("[", 10_000)) }},
		"negative time":  {false, func(p raw) { p.text(`{"type":"response","id":"x","took_us":-1}`) }},
		"unknown code":   {false, func(p raw) { p.text(`{"type":"response","id":"x","took_us":1,"error":{"code":"fine","message":"m"}}`) }},
		"long text": {false, func(p raw) {
			p.text(`{"type":"log","level":"info","message":"` + strings.Repeat("x", protocol.MaxMessage) + `"}`)
		}},
		"request to a server":    {false, func(p raw) { r := request(`{}`); r.Type = "request"; p.frame(r) }},
		"cancel to a server":     {false, func(p raw) { p.frame(&protocol.Cancel{Type: "cancel", ID: "x"}) }},
		"config to a server":     {false, func(p raw) { p.frame(&protocol.Config{Type: "config"}) }},
		"hello again":            {false, func(p raw) { p.text(`{"type":"hello"}`) }},
		"resume ids to a server": {false, func(p raw) { p.frame(&protocol.Resume{Type: "resume", IDs: []string{"x"}}) }},
		"response to an agent":   {true, func(p raw) { p.text(response) }},
		"facts to an agent": {true, func(p raw) {
			p.text(`{"type":"facts","facts":{"hostname":"","os":"","os_version":"","arch":"","run_as":"","agent_version":""},"capabilities":[]}`)
		}},
		"states to an agent": {true, func(p raw) {
			p.frame(&protocol.Resume{Type: "resume", States: []protocol.ResumeState{{ID: "x", State: "done"}}})
		}},
		"no deadline": {true, func(p raw) { r := request(`{}`); r.Type, r.DeadlineMS = "request", 0; p.frame(r) }},
		"args not an object": {true, func(p raw) {
			p.text(`{"type":"request","id":"x","tool":"t","args":[],"seal":"","caller":{"principal":"","user":"","kind":""},"deadline_ms":1}`)
		}},
		"no id":                  {true, func(p raw) { r := request(`{}`); r.Type, r.ID = "request", ""; p.frame(r) }},
		"short binary":           {false, func(p raw) { _ = p.Write(context.Background(), true, []byte{0, 0, 0}) }},
		"unknown stream":         {false, func(p raw) { p.chunk(2, 0, kib) }},
		"unknown kind":           {false, func(p raw) { p.frame(open(2, "pty", 10)) }},
		"stream of wrong parity": {false, func(p raw) { p.frame(open(1, "frame", 10)) }},
		"stream used again":      {false, func(p raw) { p.frame(open(4, "frame", 10)); p.frame(open(2, "frame", 10)) }},
		"stream zero":            {false, func(p raw) { p.frame(open(0, "frame", 10)) }},
		"512 MB announced":       {false, func(p raw) { p.frame(open(2, "frame", 512<<20)) }},
		"negative size":          {false, func(p raw) { p.frame(open(2, "frame", -1)) }},
		"too much open": {false, func(p raw) {
			p.frame(open(2, "frame", 8<<20))
			p.frame(open(4, "frame", 8<<20))
			p.frame(open(6, "frame", 1))
		}},
		"longer than said":   {false, func(p raw) { p.frame(open(2, "frame", 10)); p.chunk(2, 0, kib) }},
		"shorter than said":  {false, func(p raw) { p.frame(open(2, "frame", 2000)); p.chunk(2, protocol.FlagEnd, kib) }},
		"large chunk":        {false, func(p raw) { p.frame(open(2, "frame", 1<<20)); p.chunk(2, 0, make([]byte, protocol.MaxChunk+1)) }},
		"empty chunk":        {false, func(p raw) { p.frame(open(2, "frame", 10)); p.chunk(2, 0, nil) }},
		"reset with payload": {false, func(p raw) { p.frame(open(2, "frame", 10)); p.chunk(2, protocol.FlagReset, kib) }},
		"unknown flag":       {false, func(p raw) { p.frame(open(2, "frame", 10)); p.chunk(2, 8, kib[:5]) }},
		"both flags":         {false, func(p raw) { p.frame(open(2, "frame", 10)); p.chunk(2, 3, nil) }},
		"after its end": {false, func(p raw) {
			p.frame(open(2, "frame", 10))
			p.chunk(2, protocol.FlagReset, nil)
			p.chunk(2, 0, kib[:1])
		}},
		"credit of nothing":    {false, func(p raw) { p.frame(&protocol.Credit{Type: "credit", Stream: 0, Bytes: 0}) }},
		"negative credit":      {false, func(p raw) { p.frame(&protocol.Credit{Type: "credit", Stream: 0, Bytes: -5}) }},
		"credit without end":   {false, func(p raw) { p.frame(&protocol.Credit{Type: "credit", Stream: 0, Bytes: 1 << 62}) }},
		"credit for no stream": {false, func(p raw) { p.frame(&protocol.Credit{Type: "credit", Stream: 1, Bytes: 10}) }},
		"garbage in a stream":  {false, func(p raw) { p.frame(open(2, "frame", 1<<10)); p.chunk(2, protocol.FlagEnd, kib) }},
		"a ping in a stream": {false, func(p raw) {
			b := []byte(`{"type":"ping","n":1}`)
			p.frame(open(2, "frame", int64(len(b))))
			p.chunk(2, protocol.FlagEnd, b)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newPipe(16)
			var cfg mux.Config
			if c.agent {
				cfg.Handler = echo
			}
			s := run(a, cfg)
			c.do(raw{t, b})
			var v *mux.Violation
			if err := s.wait(t); !errors.As(err, &v) || v.Reason == "" {
				t.Fatalf("ended with %v", err)
			}
			if a.mine.code != protocol.CloseViolation || a.mine.reason == "" || len(a.mine.reason) > 120 {
				t.Errorf("closed with %d %q", a.mine.code, a.mine.reason)
			}
		})
	}
}

// A peer that ignores credit is cut off after at most a window more than it was given.
func TestCreditIsHard(t *testing.T) {
	a, b := newPipe(16)
	s, peer := run(a, mux.Config{}), raw{t, b}
	go func() { // takes the credit it's given and uses twice as much
		for {
			if _, _, err := b.Read(context.Background()); err != nil {
				return
			}
		}
	}()
	peer.frame(&protocol.Open{Type: "open", Stream: 2, Kind: "frame", ID: "x", Size: protocol.MaxFrame})
	peer.frame(&protocol.Open{Type: "open", Stream: 4, Kind: "frame", ID: "y", Size: protocol.MaxFrame})
	for range 5 { // the window is four chunks; nothing is given back before two are consumed
		b := make([]byte, protocol.ChunkHeader+protocol.MaxChunk+1)
		if peer.Write(context.Background(), true, append([]byte{0, 0, 0, 2, 0}, b[:protocol.MaxChunk+1]...)) != nil {
			break
		}
	}
	var v *mux.Violation
	if err := s.wait(t); !errors.As(err, &v) {
		t.Fatalf("ended with %v", err)
	}
}

func TestKeepAliveForTenMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPipe(4)
		s, h := run(a, mux.Config{}), run(b, mux.Config{Handler: echo})
		time.Sleep(10*time.Minute + time.Second)
		if !s.Alive() || !h.Alive() {
			t.Fatal("an idle session ended")
		}
		if n := a.written.Load(); n != 32 { // one at first, one every 20 s; and the agent asked once
			t.Errorf("%d pings and pongs in ten minutes, want 32", n)
		}
		if _, err := s.Call(context.Background(), request(`{}`), mux.Exchange{}); err != nil {
			t.Error(err)
		}
		s.Close(0, "")
		s.wait(t)
		h.wait(t)
	})
}

// An agent takes at most one file for each request, and after it.
func TestFilesOfNoRequest(t *testing.T) {
	r := request(`{}`)
	r.Type = "request"
	open := func(stream uint32, size int64) any {
		return &protocol.Open{Type: "open", Stream: stream, Kind: "file", ID: r.ID, Size: size}
	}
	for name, do := range map[string]func(p raw){
		"no request":      func(p raw) { p.frame(open(1, 10)) },
		"a negative size": func(p raw) { p.frame(r); p.frame(open(1, -2)) },
		"a second one": func(p raw) {
			p.frame(r)
			p.frame(open(1, 10))
			p.chunk(1, protocol.FlagReset, nil)
			p.frame(open(3, 10))
		},
		"a resumed call": func(p raw) {
			p.frame(&protocol.Resume{Type: "resume", IDs: []string{r.ID}})
			p.frame(open(1, 10))
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newPipe(16)
			j := &journal{states: map[string]protocol.ResumeState{r.ID: {State: "running"}}, rejoin: func(ctx context.Context, _ string, _ *mux.Work) *protocol.Response { <-ctx.Done(); return nil }}
			h := run(a, mux.Config{Handler: echo, Resumer: j})
			do(raw{t, b})
			var v *mux.Violation
			if err := h.wait(t); !errors.As(err, &v) {
				t.Errorf("ended with %v", err)
			}
		})
	}
}

// What a server's session doesn't take of files, while the call is open.
func TestFileViolations(t *testing.T) {
	kib := make([]byte, 1<<10)
	for name, c := range map[string]struct {
		version int
		do      func(p raw, open *protocol.Open)
	}{
		"version 1":        {1, func(p raw, o *protocol.Open) { p.frame(o) }},
		"longer than said": {2, func(p raw, o *protocol.Open) { o.Size = 1000; p.frame(o); p.chunk(2, 0, kib) }},
		"shorter than said": {2, func(p raw, o *protocol.Open) {
			o.Size = 2000
			p.frame(o)
			p.chunk(2, protocol.FlagEnd, kib)
		}},
		"not empty":    {2, func(p raw, o *protocol.Open) { o.Size = 0; p.frame(o); p.chunk(2, 0, kib) }},
		"after an end": {2, func(p raw, o *protocol.Open) { p.frame(o); p.chunk(2, protocol.FlagEnd, kib); p.chunk(2, 0, kib) }},
		"a second one": {2, func(p raw, o *protocol.Open) {
			p.frame(o)
			p.chunk(2, protocol.FlagEnd, nil)
			o.Stream = 4
			p.frame(o)
		}},
		"beyond its credit": {2, func(p raw, o *protocol.Open) {
			p.frame(o)
			for range 5 {
				p.chunk(2, 0, make([]byte, protocol.MaxChunk))
			}
		}},
		"a response first": {2, func(p raw, o *protocol.Open) {
			p.frame(o)
			p.chunk(2, 0, kib)
			p.frame(&protocol.Response{ID: o.ID, Result: []byte(`{}`)})
		}},
		"after the response": {2, func(p raw, o *protocol.Open) {
			p.frame(&protocol.Response{ID: o.ID, Result: []byte(`{}`)})
			p.frame(o)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newPipe(16)
			s, peer := run(a, mux.Config{Version: c.version}), raw{t, b}
			// Its sink takes nothing while the session lives.
			sink := &gated{gate: make(chan struct{})}
			x, r := mux.Exchange{Sink: sink}, request(`{}`)
			if c.version < 2 {
				x.Sink = nil
			}
			called := make(chan error, 1)
			go func() { _, err := s.Call(context.Background(), r, x); called <- err }()
			peer.read()
			c.do(peer, &protocol.Open{Type: "open", Stream: 2, Kind: "file", ID: r.ID, Size: -1})
			var v *mux.Violation
			if err := s.wait(t); !errors.As(err, &v) {
				t.Errorf("ended with %v", err)
			}
			close(sink.gate)
			if err := <-called; name != "after the response" && !errors.Is(err, protocol.ErrCut) {
				t.Errorf("the call: %v", err)
			}
		})
	}
}

// From a moment on nothing arrives any more, either way, and nobody says so.
func TestHalfOpenIsFoundOnBothSides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPipe(4)
		var lost atomic.Bool
		a.gate = func(bool, []byte) bool { return !lost.Load() }
		b.gate = a.gate
		hung := handlerFunc(func(ctx context.Context, _ *protocol.Request, _ func(string)) *protocol.Response {
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), protocol.ErrCut) {
				t.Errorf("the handler's cause: %v", context.Cause(ctx))
			}
			return nil
		})
		s, h := run(a, mux.Config{}), run(b, mux.Config{Handler: hung})
		called := make(chan error, 1)
		go func() { _, err := s.Call(context.Background(), request(`{}`), mux.Exchange{}); called <- err }()
		time.Sleep(50 * time.Second)
		lost.Store(true)
		a.mine.lost.Store(true)
		b.mine.lost.Store(true)
		began := time.Now()
		if err := <-called; !errors.Is(err, protocol.ErrCut) || !errors.Is(err, mux.ErrDead) {
			t.Errorf("the call ended with %v", err)
		}
		for _, r := range []*running{s, h} {
			if err := r.wait(t); !errors.Is(err, mux.ErrDead) {
				t.Errorf("ended with %v", err)
			}
			if d := time.Since(began); d > 2*protocol.KeepAlive {
				t.Errorf("found after %s", d)
			}
		}
	})
}

// The peer goes on talking and doesn't read: writes hang.
func TestStuckWriteIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPipe(1)
		s := run(a, mux.Config{})
		stop := make(chan struct{})
		go func() {
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for n := int64(1); ; n++ {
				select {
				case <-tick.C:
					m, _ := protocol.Encode(&protocol.Pong{Type: "pong", N: n})
					_ = b.Write(context.Background(), false, m)
				case <-stop:
					return
				}
			}
		}()
		began := time.Now()
		if err := s.wait(t); !errors.Is(err, mux.ErrDead) {
			t.Errorf("ended with %v", err)
		}
		if d := time.Since(began); d > 5*protocol.KeepAlive {
			t.Errorf("found after %s", d)
		}
		close(stop)
	})
}

func TestFloodOfPingsWithoutReading(t *testing.T) {
	a, b := newPipe(1)
	s := run(a, mux.Config{})
	m, _ := protocol.Encode(&protocol.Ping{Type: "ping", N: 1})
	for b.Write(context.Background(), false, m) == nil {
	}
	if err := s.wait(t); !errors.Is(err, mux.ErrSlow) {
		t.Errorf("ended with %v", err)
	}
}

func TestPing(t *testing.T) {
	s, h := pair(t, mux.Config{}, mux.Config{})
	for _, r := range []*running{s, h} {
		if err := r.Ping(t.Context()); err != nil {
			t.Error(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		a, b := newPipe(64)
		s := run(a, mux.Config{})
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if err := s.Ping(ctx); !errors.Is(err, mux.ErrDead) {
			t.Errorf("a silent peer: %v", err)
		}
		_ = b.Close(0, "")
		s.wait(t)
	})
}

// What is short doesn't wait behind what is long.
func TestControlComesBeforeBulk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPipe(0)
		s, peer := run(a, mux.Config{}), raw{t, b}
		defer func() { s.Close(0, ""); s.wait(t) }()
		for range 2 {
			go func() {
				_, _ = s.Call(context.Background(), request(`{"a":"`+strings.Repeat("x", 60_000)+`"}`), mux.Exchange{})
			}()
		}
		peer.read() // an open: the writer stands at the next message
		synctest.Wait()
		small := request(`{"small":true}`)
		go func() { _, _ = s.Call(context.Background(), small, mux.Exchange{}) }()
		synctest.Wait()
		for i := 0; ; i++ {
			if r, ok := peer.read().(*protocol.Request); ok && r.ID == small.ID {
				return
			}
			if i > 0 {
				t.Fatal("more than one message went before it")
			}
		}
	})
}

// With 50 MB on their way, a pong, a cancel and another call's response wait for one chunk at
// most; and what the session itself has to say goes before other calls' frames.
func TestSmallThingsComeBeforeAFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPipe(0)
		answer := make(chan struct{})
		h, peer := run(b, mux.Config{Handler: workFunc(func(ctx context.Context, r *protocol.Request, w *mux.Work) *protocol.Response {
			if r.Tool == "small" {
				<-answer
				return fine(`{}`)
			}
			u, err := w.Out(50_000_000)
			if err == nil {
				_, err = io.Copy(u, io.LimitReader(zeros{}, 50_000_000))
			}
			return failed(err)
		})}), raw{t, a}
		defer func() { h.Close(0, ""); h.wait(t) }()
		small, large := request(`{}`), request(`{}`)
		small.Type, large.Type, small.Tool = "request", "request", "small"
		peer.frame(small)
		peer.frame(large)
		if o, ok := peer.read().(*protocol.Open); !ok || o.Kind != "file" || o.Size != 50_000_000 {
			t.Fatalf("open %+v", o)
		}
		if _, ok := peer.read().([]byte); !ok {
			t.Fatal("no chunk")
		}
		synctest.Wait() // the writer stands at the second chunk
		close(answer)
		synctest.Wait() // the response is queued before the pong
		peer.frame(&protocol.Ping{Type: "ping", N: 7})
		synctest.Wait()
		var order []string
		for range 3 {
			order = append(order, fmt.Sprintf("%T", peer.read()))
		}
		if got := strings.Join(order, " "); got != "[]uint8 *protocol.Pong *protocol.Response" {
			t.Errorf("the order was %s", got)
		}
	})
}

func TestStreamsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPipe(0)
		s, peer := run(a, mux.Config{}), raw{t, b}
		defer func() { s.Close(0, ""); s.wait(t) }()
		for range 2 {
			go func() {
				_, _ = s.Call(context.Background(), request(`{"a":"`+strings.Repeat("x", 60_000)+`"}`), mux.Exchange{})
			}()
		}
		synctest.Wait()
		var order []byte
		for range 10 { // two opens and four chunks each
			if c, ok := peer.read().([]byte); ok {
				order = append(order, '0'+c[3])
			}
		}
		if got := string(order); !strings.Contains(got, "1313") && !strings.Contains(got, "3131") {
			t.Errorf("chunks of streams 1 and 3 went in the order %s", got)
		}
	})
}

func TestResumeAndNotices(t *testing.T) {
	heard := make(chan any, 8)
	note := func(f any) { heard <- f }
	s, h := pair(t, mux.Config{Notify: note}, mux.Config{Notify: note})
	if err := s.Send(t.Context(), &protocol.Resume{Type: "resume", IDs: []string{"a", "b"}}); err != nil {
		t.Fatal(err)
	}
	if r, ok := (<-heard).(*protocol.Resume); !ok || len(r.States) != 2 || r.States[1].ID != "b" || r.States[1].State != protocol.FateUnseen {
		t.Errorf("resume: %+v", r)
	}
	caps := make([]protocol.Capability, 256)
	for i := range caps {
		caps[i] = protocol.Capability{Name: fmt.Sprintf("group_%034d", i), Version: 1}
	}
	for _, f := range []any{&protocol.Epoch{Type: "epoch", Epoch: 7}, &protocol.Log{Type: "log", Level: "warn", Message: "m"}, &protocol.FactsUpdate{Type: "facts", Capabilities: caps}} {
		if err := h.Send(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		if got := <-heard; fmt.Sprintf("%T", got) != fmt.Sprintf("%T", f) {
			t.Errorf("sent %T, heard %T", f, got)
		}
	}
	if err := s.Send(t.Context(), &protocol.Config{Type: "config", KeepAliveMS: 20_000}); err != nil {
		t.Fatal(err)
	}
	if _, ok := (<-heard).(*protocol.Config); !ok {
		t.Error("no config")
	}
	s.Goodbye("restarting", 3*time.Second)
	if g, ok := (<-heard).(*protocol.Goodbye); !ok || g.RetryAfterMS != 3000 {
		t.Errorf("goodbye: %+v", g)
	}
	var ce *protocol.CloseError
	if err := h.wait(t); !errors.As(err, &ce) || ce.Code != protocol.CloseGoingAway {
		t.Errorf("the agent's end: %v", err)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	a, _ := newPipe(1)
	ctx, cancel := context.WithCancel(context.Background())
	s := mux.New(a, mux.Config{})
	cancel()
	var ce *mux.ClosedError
	if err := s.Run(ctx); !errors.As(err, &ce) || ce.Code != protocol.CloseGoingAway {
		t.Errorf("ended with %v", err)
	}
}

// A thousand times: connect, call, drop in the middle. No goroutine stays.
func TestNothingLeaks(t *testing.T) {
	before := runtime.NumGoroutine()
	for i := range 1000 {
		a, b := newPipe(2)
		started := make(chan struct{})
		ended := make(chan struct{})
		s := run(a, mux.Config{})
		h := run(b, mux.Config{Handler: handlerFunc(func(ctx context.Context, _ *protocol.Request, progress func(string)) *protocol.Response {
			defer close(ended)
			close(started)
			<-ctx.Done()
			progress("nobody hears this")
			return &protocol.Response{Result: []byte(`"` + strings.Repeat("x", 100_000) + `"`)}
		})})
		called := make(chan error, 1)
		go func() {
			_, err := s.Call(context.Background(), request(`{}`), mux.Exchange{Progress: func(protocol.Progress) {}})
			called <- err
		}()
		<-started
		if i%2 == 0 {
			_ = a.Close(0, "")
		} else {
			_ = b.Close(0, "")
		}
		if err := <-called; !errors.Is(err, protocol.ErrCut) {
			t.Fatalf("round %d: %v", i, err)
		}
		s.wait(t)
		h.wait(t)
		<-ended
	}
	deadline := time.Now().Add(10 * time.Second)
	for runtime.NumGoroutine() > before && time.Now().Before(deadline) {
		runtime.Gosched()
	}
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("%d goroutines before, %d after", before, after)
	}
}

// FuzzReader throws messages at a session: it may end, it may not panic, and a violation
// names its reason.
func FuzzReader(f *testing.F) {
	f.Add([]byte(`{"type":"response","id":"x","took_us":1}`), []byte{0, 0, 0, 2, 1, 'x'}, false)
	f.Add([]byte(`{"type":"open","stream":2,"kind":"frame","id":"x","size":1}`), []byte{0, 0, 0, 2, 1, '{'}, false)
	f.Add([]byte(`{"type":"request","id":"x","tool":"t","args":{},"seal":"s","caller":{"principal":"p","user":"u","kind":"pat"},"deadline_ms":1}`), []byte{}, true)
	f.Add([]byte(`{"type":"credit","stream":0,"bytes":1}`), []byte{0, 0, 0, 1, 2}, true)
	f.Add([]byte(`{"type":"open","stream":2,"kind":"file","id":"open","size":-1}`), []byte{0, 0, 0, 2, 1, 'x'}, false)
	f.Add([]byte(`{"type":"open","stream":1,"kind":"file","id":"open","size":1}`), []byte{0, 0, 0, 1, 1, 'x'}, true)
	f.Add([]byte(`{"type":"resume","boot":"b","states":[{"id":"open","state":"lost","pid":1,"ago_ms":2,"ended":true,"exit_code":0,"note":"n"}]}`), []byte{}, false)
	f.Add([]byte(`{"type":"resume","ids":["a","a"]}`), []byte{}, true)
	f.Fuzz(func(t *testing.T, text, bin []byte, agent bool) {
		a, b := newPipe(8)
		var cfg mux.Config
		if agent {
			cfg.Handler = mirror
		}
		s := run(a, cfg)
		r := request(`{}`)
		r.ID, r.Type = "open", "request"
		called := make(chan struct{})
		if whole, err := protocol.Encode(r); agent && err == nil {
			_ = b.Write(context.Background(), false, whole)
			close(called)
		} else {
			go func() {
				defer close(called)
				_, _ = s.Call(context.Background(), r, mux.Exchange{Body: strings.NewReader("x"), Size: 1, Sink: io.Discard})
			}()
			for range 3 { // the first ping, the request, and the file's open
				_, _, _ = b.Read(context.Background())
			}
		}
		_ = b.Write(context.Background(), false, text)
		_ = b.Write(context.Background(), true, bin)
		_ = b.Close(protocol.CloseNormal, "done")
		err := s.wait(t)
		var v *mux.Violation
		if err == nil || errors.As(err, &v) && v.Reason == "" {
			t.Fatalf("ended with %v", err)
		}
		<-called
	})
}
