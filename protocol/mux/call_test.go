package mux_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
)

func TestBytesArriveVerbatim(t *testing.T) {
	s, _ := pair(t, mux.Config{}, mux.Config{})
	long := strings.Repeat("x", 40_000)
	for _, args := range []string{
		`{}`, `{ }`, "{\n\t\"a\" : [ 1 ,2,  3 ]\r\n}", `{"a":"\u0061\/\u00e9é"}`, `{"n":1.0,"m":1e2,"z":-0}`, `{"b":1,"a":2}`,
		`{"😀":"\ud83d\ude00"}`, `{"a":null}`, `{"a":"` + long + `" , "b" :"\/"}`, `{"a":"` + "\u2028" + `"}`,
	} {
		resp, err := s.Call(t.Context(), request(args), mux.Exchange{})
		if err != nil {
			t.Fatalf("%.40s: %v", args, err)
		}
		if string(resp.Result) != args {
			t.Errorf("sent %.60q, came back %.60q", args, resp.Result)
		}
	}
}

func TestArgsCannotBreakTheFrame(t *testing.T) {
	s, _ := pair(t, mux.Config{}, mux.Config{})
	for _, args := range []string{
		``, `[]`, `null`, `{},"tool":"other"`, `{"a":1,"a":2}`, ` {}`, "{}\n", `{"a":}`, "{\"a\":\"\xff\"}", `{"a":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`,
	} {
		if _, err := s.Call(t.Context(), request(args), mux.Exchange{}); !errors.Is(err, protocol.ErrNotSent) {
			t.Errorf("%.40q: %v, want ErrNotSent", args, err)
		}
	}
	if _, err := s.Call(t.Context(), request(`{}`), mux.Exchange{}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestSizes(t *testing.T) {
	s, _ := pair(t, mux.Config{}, mux.Config{})
	frame := func(args []byte) int {
		r := request(string(args))
		r.ID, r.Type = "call-1000000", protocol.TypeRequest
		b, err := protocol.Encode(r)
		if err != nil {
			t.Fatal(err)
		}
		return len(b)
	}
	base := frame([]byte(`{"a":""}`))
	for _, size := range []int{protocol.MaxMessage - 1, protocol.MaxMessage, protocol.MaxMessage + 1, 32769, 1<<20 + 1, protocol.MaxFrame - 8} {
		args := []byte(`{"a":"` + strings.Repeat("y", size-base) + `"}`)
		r := request(string(args))
		r.ID = fmt.Sprintf("call-%07d", 1000000+size%1000000)
		resp, err := s.Call(t.Context(), r, mux.Exchange{})
		if err != nil {
			t.Fatalf("%d: %v", size, err)
		}
		if !bytes.Equal(resp.Result, args) {
			t.Errorf("%d: came back changed", size)
		}
	}
	_, err := s.Call(t.Context(), request(`{"a":"`+strings.Repeat("y", protocol.MaxFrame)+`"}`), mux.Exchange{})
	var pe *protocol.Error
	if !errors.Is(err, protocol.ErrNotSent) || !errors.As(err, &pe) || pe.Code != protocol.CodeTooLarge {
		t.Errorf("above the limit: %v", err)
	}
}

func TestAnswersThatCannotBeSentFailTheirCallAlone(t *testing.T) {
	answers := map[string]*protocol.Response{
		"large":   {Result: []byte(`"` + strings.Repeat("z", protocol.MaxFrame) + `"`)},
		"invalid": {Result: []byte(`{"a":1,"a":2}`)},
		"broken":  {Result: []byte(`},`)},
		"reason":  {Error: &protocol.Error{Code: "tool_failed", Reason: "No Such Thing", Message: "m"}},
		"code":    {Error: &protocol.Error{Code: "whatever", Message: "m"}},
		"nil":     nil,
		"utf8":    {Error: &protocol.Error{Code: "tool_failed", Reason: "io", Message: "a\xffb"}},
	}
	s, _ := pair(t, mux.Config{}, mux.Config{Handler: handlerFunc(func(_ context.Context, r *protocol.Request, _ func(string)) *protocol.Response {
		return answers[r.Tool]
	})})
	want := map[string]protocol.Code{"large": "too_large", "invalid": "internal", "broken": "internal", "reason": "internal", "code": "internal", "nil": "internal", "utf8": "tool_failed"}
	for tool, code := range want {
		r := request(`{}`)
		r.Tool = tool
		resp, err := s.Call(t.Context(), r, mux.Exchange{})
		if err != nil {
			t.Fatalf("%s: %v", tool, err)
		}
		if resp.Error == nil || resp.Error.Code != code {
			t.Errorf("%s: got %+v, want %s", tool, resp.Error, code)
		}
	}
}

func TestProgress(t *testing.T) {
	s, _ := pair(t, mux.Config{}, mux.Config{Handler: handlerFunc(func(_ context.Context, r *protocol.Request, progress func(string)) *protocol.Response {
		progress("one")
		progress("two\x1b[2J\nthree")
		progress(strings.Repeat("é", 600))
		return &protocol.Response{Result: []byte(`{}`)}
	})})
	var got []protocol.Progress
	r := request(`{}`)
	if _, err := s.Call(t.Context(), r, mux.Exchange{Progress: func(p protocol.Progress) { got = append(got, p) }}); err != nil {
		t.Fatal(err)
	}
	want := []protocol.Progress{
		{Type: "progress", ID: r.ID, Seq: 1, Message: "one"}, {Type: "progress", ID: r.ID, Seq: 2, Message: `two\x1b[2J three`},
		{Type: "progress", ID: r.ID, Seq: 3, Message: strings.Repeat("é", 254) + "…"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if _, err := s.Call(t.Context(), request(`{}`), mux.Exchange{}); err != nil { // none is asked for, none comes
		t.Fatal(err)
	}
	if n := s.Stats().Late; n != 0 {
		t.Errorf("%d frames came late", n)
	}
}

func TestCancelWaitsForTheEnd(t *testing.T) {
	causes, started := make(chan error, 1), make(chan struct{})
	s, _ := pair(t, mux.Config{}, mux.Config{Handler: handlerFunc(func(ctx context.Context, _ *protocol.Request, _ func(string)) *protocol.Response {
		close(started)
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return &protocol.Response{Result: []byte(`"partial"`), Error: protocol.Errorf(protocol.CodeCancelled, "dead")}
	})})
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-started
		cancel(errors.New("the caller\nwent away"))
	}()
	resp, err := s.Call(ctx, request(`{}`), mux.Exchange{})
	if err != nil || resp.Error.Code != protocol.CodeCancelled || string(resp.Result) != `"partial"` {
		t.Fatalf("got %+v, %v", resp, err)
	}
	var ce *mux.CancelError
	if cause := <-causes; !errors.As(cause, &ce) || ce.Reason != "the caller went away" {
		t.Errorf("cause %v", cause)
	}
}

func TestNoAnswerToACancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPipe(4)
		s, peer := run(a, mux.Config{}), raw{t, b}
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, errors.New("the deadline passed"))
		defer cancel()
		began := time.Now()
		r := request(`{}`)
		ended := make(chan error, 1)
		go func() { _, err := s.Call(ctx, r, mux.Exchange{}); ended <- err }()
		peer.read()
		if c, ok := peer.read().(*protocol.Cancel); !ok || c.ID != r.ID || c.Reason != "the deadline passed" {
			t.Errorf("cancel %+v", c)
		}
		if err := <-ended; !errors.Is(err, protocol.ErrNoAnswer) {
			t.Errorf("got %v", err)
		}
		if d := time.Since(began); d != time.Second+protocol.CancelGrace {
			t.Errorf("after %s", d)
		}
		peer.frame(&protocol.Response{ID: r.ID, Result: []byte(`{}`)}) // late
		peer.frame(&protocol.Response{ID: "another's", Result: []byte(`{}`)})
		synctest.Wait()
		if n := s.Stats().Late; n != 2 {
			t.Errorf("%d late", n)
		}
		s.Close(0, "")
		s.wait(t)
	})
}

func TestAnswersTwiceAndToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPipe(4)
		s, peer := run(a, mux.Config{}), raw{t, b}
		r := request(`{}`)
		got := make(chan string, 1)
		go func() {
			resp, err := s.Call(context.Background(), r, mux.Exchange{})
			got <- fmt.Sprintf("%s %v", resp.Result, err)
		}()
		peer.read()
		peer.frame(&protocol.Response{ID: "0192-of-another-host", Result: []byte(`"wrong"`)})
		peer.frame(&protocol.Progress{Type: "progress", ID: r.ID, Seq: 1, Message: "not asked for"})
		peer.frame(&protocol.Response{ID: r.ID, Result: []byte(`"right"`)})
		peer.frame(&protocol.Response{ID: r.ID, Result: []byte(`"again"`)})
		if g := <-got; g != `"right" <nil>` {
			t.Error(g)
		}
		synctest.Wait()
		if n := s.Stats().Late; n != 3 {
			t.Errorf("%d late", n)
		}
		if !s.Alive() {
			t.Error("the session ended")
		}
		s.Close(0, "")
		s.wait(t)
	})
}

func TestCutOrNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPipe(0)
		hold := make(chan struct{})
		began := make(chan struct{}, 1)
		a.gate = func(bool, []byte) bool { began <- struct{}{}; <-hold; return true }
		s := run(a, mux.Config{Version: 1}) // from 2 on a ping goes first
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { _, err := s.Call(context.Background(), request(`{}`), mux.Exchange{}); first <- err }()
		<-began // its write has begun: nobody knows whether it arrives
		go func() { _, err := s.Call(context.Background(), request(`{}`), mux.Exchange{}); second <- err }()
		synctest.Wait()
		b.Close(0, "")
		synctest.Wait()
		close(hold)
		if err := <-first; !errors.Is(err, protocol.ErrCut) || errors.Is(err, protocol.ErrNotSent) {
			t.Errorf("begun: %v", err)
		}
		if err := <-second; !errors.Is(err, protocol.ErrNotSent) {
			t.Errorf("queued: %v", err)
		}
		s.wait(t)
		if _, err := s.Call(context.Background(), request(`{}`), mux.Exchange{}); !errors.Is(err, protocol.ErrNotSent) {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestCancelBeforeTheWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPipe(0)
		s := run(a, mux.Config{Version: 1}) // from 2 on a ping goes first
		defer func() { s.Close(0, ""); s.wait(t) }()
		go func() { _, _ = s.Call(context.Background(), request(`{"first":1}`), mux.Exchange{}) }() // stuck in its write
		synctest.Wait()
		ctx, cancel := context.WithCancelCause(context.Background())
		ended := make(chan error, 1)
		go func() { _, err := s.Call(ctx, request(`{"second":2}`), mux.Exchange{}); ended <- err }()
		synctest.Wait()
		cancel(errors.New("changed my mind"))
		if err := <-ended; !errors.Is(err, protocol.ErrNotSent) {
			t.Errorf("got %v", err)
		}
		peer := raw{t, b}
		if r, ok := peer.read().(*protocol.Request); !ok || string(r.Args) != `{"first":1}` {
			t.Errorf("first %+v", r)
		}
		synctest.Wait()
		select {
		case m := <-b.in:
			t.Errorf("then came %s", m.data)
		default:
		}
	})
}

func TestCancelOfAStreamedRequestResetsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPipe(64)
		s, peer := run(a, mux.Config{}), raw{t, b}
		defer func() { s.Close(0, ""); s.wait(t) }()
		ctx, cancel := context.WithCancelCause(context.Background())
		ended := make(chan error, 1)
		go func() {
			_, err := s.Call(ctx, request(`{"a":"`+strings.Repeat("x", 100_000)+`"}`), mux.Exchange{})
			ended <- err
		}()
		open, ok := peer.read().(*protocol.Open)
		if !ok || open.Kind != "frame" || open.Stream != 1 {
			t.Fatalf("open %+v", open)
		}
		sent := 0
		for range protocol.InitialCredit / protocol.MaxChunk {
			sent += len(peer.read().([]byte)) - protocol.ChunkHeader
		}
		synctest.Wait()
		if sent != protocol.InitialCredit || len(b.in) != 0 {
			t.Errorf("%d bytes without credit, %d more messages", sent, len(b.in))
		}
		cancel(errors.New("no"))
		if err := <-ended; !errors.Is(err, protocol.ErrNotSent) {
			t.Errorf("got %v", err)
		}
		if c := peer.read().([]byte); c[4] != protocol.FlagReset || len(c) != protocol.ChunkHeader {
			t.Errorf("chunk %x", c)
		}
	})
}

func TestResetRequestIsNeverRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ran := false
		a, b := newPipe(4)
		h := run(b, mux.Config{Handler: handlerFunc(func(context.Context, *protocol.Request, func(string)) *protocol.Response {
			ran = true
			return &protocol.Response{}
		})})
		peer := raw{t, a}
		r := request(`{}`)
		r.Type = protocol.TypeRequest
		whole, _ := protocol.Encode(r)
		peer.frame(&protocol.Open{Type: "open", Stream: 1, Kind: "frame", ID: r.ID, Size: int64(len(whole))})
		peer.chunk(1, 0, whole[:len(whole)-1])
		peer.chunk(1, protocol.FlagReset, nil)
		synctest.Wait()
		if ran || !h.Alive() {
			t.Errorf("ran %t, alive %t", ran, h.Alive())
		}
		h.Close(0, "")
		h.wait(t)
	})
}

func TestBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		a, b := newPipe(4)
		h := run(b, mux.Config{MaxCalls: 1, Handler: handlerFunc(func(context.Context, *protocol.Request, func(string)) *protocol.Response {
			<-release
			return &protocol.Response{Result: []byte(`"done"`)}
		})})
		peer := raw{t, a}
		first, second := request(`{}`), request(`{}`)
		first.Type, second.Type = protocol.TypeRequest, protocol.TypeRequest
		peer.frame(first)
		peer.frame(second)
		if r := peer.read().(*protocol.Response); r.ID != second.ID || r.Error.Code != protocol.CodeRateLimited || r.Error.Reason != protocol.ReasonBusy {
			t.Errorf("busy: %+v", r)
		}
		close(release)
		if r := peer.read().(*protocol.Response); string(r.Result) != `"done"` {
			t.Errorf("first: %+v", r)
		}
		h.Close(0, "")
		h.wait(t)
	})
}

// A request that comes again over its connection, whenever that is, doesn't run and isn't
// answered: the one answer is the first one's.
func TestADoubledRequestIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ran, release := map[string]int{}, make(chan struct{})
		var doubled []string
		a, b := newPipe(16)
		h := run(b, mux.Config{MaxCalls: 1, Handler: handlerFunc(func(_ context.Context, r *protocol.Request, _ func(string)) *protocol.Response {
			ran[r.ID]++
			<-release
			return &protocol.Response{Result: []byte(`"done"`)}
		}), Notify: func(f any) {
			if d, ok := f.(*mux.Doubled); ok {
				doubled = append(doubled, d.ID)
			}
		}})
		peer := raw{t, a}
		first, busy := request(`{}`), request(`{}`)
		first.Type, busy.Type = protocol.TypeRequest, protocol.TypeRequest
		peer.frame(first)
		peer.frame(first)
		peer.frame(busy)
		peer.frame(busy)
		if r := peer.read().(*protocol.Response); r.ID != busy.ID || r.Error.Reason != protocol.ReasonBusy {
			t.Errorf("the first answer is %+v", r)
		}
		synctest.Wait()
		close(release)
		peer.frame(first) // while its answer is on its way, or after
		if r := peer.read().(*protocol.Response); r.ID != first.ID || string(r.Result) != `"done"` {
			t.Errorf("the second answer is %+v", r)
		}
		synctest.Wait()
		peer.frame(first)
		peer.frame(&protocol.Ping{Type: protocol.TypePing, N: 1})
		if v, ok := peer.read().(*protocol.Pong); !ok {
			t.Errorf("there is another answer: %+v", v)
		}
		if n := h.Stats().Duplicate; n != 4 || len(doubled) != 4 || doubled[1] != busy.ID || ran[first.ID] != 1 || ran[busy.ID] != 0 {
			t.Errorf("%d were dropped, heard of %q, ran %v", n, doubled, ran)
		}
		h.Close(0, "")
		h.wait(t)
	})
}

// A cancel that comes twice is one.
func TestADoubledCancelIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPipe(16)
		h := run(b, mux.Config{Handler: handlerFunc(func(ctx context.Context, r *protocol.Request, _ func(string)) *protocol.Response {
			<-ctx.Done()
			time.Sleep(time.Second) // it dies slowly
			return &protocol.Response{Error: protocol.Errorf(protocol.CodeCancelled, "%v", context.Cause(ctx))}
		})})
		peer := raw{t, a}
		req := request(`{}`)
		req.Type = protocol.TypeRequest
		peer.frame(req)
		synctest.Wait()
		for _, reason := range []string{"first", "second"} {
			peer.frame(&protocol.Cancel{Type: protocol.TypeCancel, ID: req.ID, Reason: reason})
		}
		if r := peer.read().(*protocol.Response); r.ID != req.ID || r.Error.Message != "cancelled by the server: first" {
			t.Errorf("%+v", r)
		}
		peer.frame(&protocol.Cancel{Type: protocol.TypeCancel, ID: req.ID, Reason: "third"})
		synctest.Wait()
		if n := h.Stats().Ignored; n != 1 || !h.Alive() {
			t.Errorf("%d were ignored; alive %t", n, h.Alive())
		}
		h.Close(0, "")
		h.wait(t)
	})
}

func TestManyCallsAtOnce(t *testing.T) {
	s, _ := pair(t, mux.Config{}, mux.Config{})
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for j := range 20 {
				size := 10
				if j%5 == 0 {
					size = 50_000
				}
				args := fmt.Sprintf(`{"i":%d,"j":%d,"pad":"%s"}`, i, j, strings.Repeat("p", size))
				resp, err := s.Call(t.Context(), request(args), mux.Exchange{})
				if err != nil {
					t.Errorf("%d %d: %v", i, j, err)
				} else if string(resp.Result) != args {
					t.Errorf("%d %d: another's answer", i, j)
				}
			}
		})
	}
	wg.Wait()
}
