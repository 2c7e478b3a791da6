package fault_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/tests/fault"
	"github.com/drover-fleet/drover/tests/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// echoServer answers every connection with what it's sent.
func echoServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return l.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// roundTrip sends and reads back one byte.
func roundTrip(c net.Conn, limit time.Duration) error {
	_ = c.SetDeadline(time.Now().Add(limit))
	if _, err := c.Write([]byte{1}); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

func TestProxyShapes(t *testing.T) {
	p := fault.NewProxy(t, echoServer(t))
	const delay, size, rate = 100 * time.Millisecond, 200 << 10, 400 << 10
	p.Shape(fault.Link{Delay: delay, Rate: rate}, fault.Link{Delay: delay})
	c := dial(t, p.Addr())
	began := time.Now()
	if err := roundTrip(c, time.Minute); err != nil || time.Since(began) < 2*delay {
		t.Errorf("a byte and its echo took %s, %v; the delays alone are %s", time.Since(began), err, 2*delay)
	}
	sent := make([]byte, size)
	rand.Read(sent)
	began = time.Now()
	go func() { _, _ = c.Write(sent) }()
	got := make([]byte, size)
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("what came back isn't what was sent: %v", err)
	}
	if took := time.Since(began); took < size*time.Second/rate {
		t.Errorf("%d bytes passed in %s, above the rate", size, took)
	}
	if up, down := p.Passed(); up != size+1 || down != size+1 {
		t.Errorf("%d up and %d down were counted", up, down)
	}
}

func TestProxyFreezesCutsRefuses(t *testing.T) {
	p := fault.NewProxy(t, echoServer(t))
	c := dial(t, p.Addr())
	if err := roundTrip(c, time.Minute); err != nil {
		t.Fatal(err)
	}
	p.Freeze()
	if err := roundTrip(c, 200*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("frozen, it says %v", err)
	}
	if err := roundTrip(dial(t, p.Addr()), time.Minute); err != nil {
		t.Errorf("a new connection beside the frozen one: %v", err)
	}
	p.Thaw()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Errorf("thawed, what waited doesn't arrive: %v", err)
	}
	p.Cut()
	if err := roundTrip(c, time.Minute); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("cut, it says %v", err)
	}
	p.Refuse(true)
	if refused, err := net.Dial("tcp", p.Addr()); err == nil { // else the reset came at once
		if roundTrip(refused, time.Minute) == nil {
			t.Error("let in though it refuses")
		}
		_ = refused.Close()
	}
	p.Refuse(false)
	if err := roundTrip(dial(t, p.Addr()), time.Minute); err != nil {
		t.Errorf("refused though it no longer refuses: %v", err)
	}
}

func TestIdleProxyCuts(t *testing.T) {
	p := fault.NewIdleProxy(t, echoServer(t), 300*time.Millisecond)
	c := dial(t, p.Addr())
	for range 8 { // longer than the limit together
		if err := roundTrip(c, time.Minute); err != nil {
			t.Fatalf("cut though it's in use: %v", err)
		}
		<-time.After(50 * time.Millisecond)
	}
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("idle, it isn't cut: %v", err)
	}
}

// TestProxyLeavesNothing: whatever state its connections are in.
func TestProxyLeavesNothing(t *testing.T) {
	target := echoServer(t)
	before := runtime.NumGoroutine()
	t.Run("used", func(t *testing.T) {
		p := fault.NewProxy(t, target)
		p.Shape(fault.Link{Delay: time.Hour}, fault.Link{Rate: 1})
		for range 20 {
			_, _ = dial(t, p.Addr()).Write(make([]byte, 1000))
		}
		harness.Eventually(t, time.Minute, "all are through", func() bool { return p.Accepted() == 20 })
		p.Freeze()
	})
	harness.Eventually(t, time.Minute, "its goroutines have ended", func() bool { return runtime.NumGoroutine() <= before })
}

// counted counts how often each call was executed.
type counted struct{ ran sync.Map }

func (c *counted) Handle(_ context.Context, req *protocol.Request, _ *mux.Work) *protocol.Response {
	n, _ := c.ran.LoadOrStore(req.ID, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
	return &protocol.Response{Result: req.Args}
}

func (c *counted) times(id string) int64 {
	n, ok := c.ran.Load(id)
	if !ok {
		return 0
	}
	return n.(*atomic.Int64).Load()
}

// TestSpoiledPipes cuts, swallows, doubles and stalls each message of a session in turn,
// either way. Whatever it is: no call runs twice, what is said not to have been sent did not
// run, what was answered did, and both ends end.
func TestSpoiledPipes(t *testing.T) {
	verdicts := map[string]fault.Verdict{"drop": fault.Drop, "twice": fault.Twice, "cut before": fault.CutBefore, "cut after": fault.CutAfter}
	for name, v := range verdicts {
		for _, side := range []fault.Side{fault.Server, fault.Agent} {
			for nth := 1; nth <= 12; nth++ {
				t.Run(fmt.Sprintf("%s %d of the %s", name, nth, side), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { spoiled(t, side, nth, v) })
				})
			}
		}
	}
}

func spoiled(t *testing.T, side fault.Side, nth int, v fault.Verdict) {
	judge := func(m fault.Message) fault.Verdict {
		if m.N == nth {
			return v
		}
		return fault.Pass
	}
	var ofServer, ofAgent func(fault.Message) fault.Verdict
	if side == fault.Server {
		ofServer = judge
	} else {
		ofAgent = judge
	}
	a, b := fault.Pipes(4, ofServer, ofAgent)
	handler := &counted{}
	server := mux.New(a, mux.Config{})
	agent := mux.New(b, mux.Config{Handler: handler})
	var ends sync.WaitGroup
	ends.Go(func() { _ = server.Run(context.Background()) })
	ends.Go(func() { _ = agent.Run(context.Background()) })
	var calls sync.WaitGroup
	for n := range 6 {
		calls.Go(func() { oneSpoiled(t, server, handler, fmt.Sprint("call-", n), 1+n%2*20_000) })
	}
	calls.Wait()
	server.Close(protocol.CloseNormal, "test over")
	ends.Wait()
	synctest.Wait()
	handler.ran.Range(func(id, n any) bool {
		if n := n.(*atomic.Int64).Load(); n != 1 {
			t.Errorf("%s ran %d times", id, n)
		}
		return true
	})
}

func oneSpoiled(t *testing.T, s *mux.Session, h *counted, id string, size int) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	args := fmt.Appendf(nil, `{"x":%q}`, bytes.Repeat([]byte("x"), size))
	resp, err := s.Call(ctx, &protocol.Request{ID: id, Tool: "t", Args: args, Seal: protocol.B64(make([]byte, 32)),
		Caller: protocol.Caller{Principal: "pat:1", User: "a", Kind: "pat"}, DeadlineMS: 1000}, mux.Exchange{})
	ran := h.times(id)
	switch {
	case ran > 1:
		t.Errorf("%s ran %d times", id, ran)
	case errors.Is(err, protocol.ErrNotSent) && ran > 0:
		t.Errorf("%s ran, and was said not to have been sent: %v", id, err)
	case err == nil && resp.Error != nil && resp.Error.Code == protocol.CodeConflict: // said twice
	case err == nil && (ran != 1 || !bytes.Equal(resp.Result, args)):
		t.Errorf("%s was answered and ran %d times: %+v", id, ran, resp.Error)
	case err != nil && !errors.Is(err, protocol.ErrNotSent) && !errors.Is(err, protocol.ErrCut) && !errors.Is(err, protocol.ErrNoAnswer):
		t.Errorf("%s ended with %v", id, err)
	}
}
