package dispatch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// enterAll tries to take n places for who and returns how to give each that was had back.
func enterAll(t *testing.T, l *lanes, who string, n int, got chan<- func()) {
	for range n {
		go func() {
			release, err := l.enter(t.Context(), nil, "web-01", who)
			if err == nil {
				got <- release
			}
		}()
	}
}

func TestLanesAreFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lanes
		first, second := make(chan func(), 500), make(chan func(), 500)
		enterAll(t, &l, "pat:a", 300, first)
		synctest.Wait()
		if len(first) != perShare {
			t.Fatalf("one credential holds %d places of %d, its share is %d", len(first), perAgent, perShare)
		}
		enterAll(t, &l, "pat:b", 300, second)
		synctest.Wait()
		if len(second) != perAgent-perShare {
			t.Fatalf("another one got %d places while the first waits with hundreds, not %d", len(second), perAgent-perShare)
		}
		// Places that come free go to whoever holds fewer, until both hold as many.
		for range 40 {
			(<-first)()
			synctest.Wait()
		}
		a, b := len(first), len(second)
		if a+b != perAgent || a-b > 1 || b-a > 1 {
			t.Errorf("%d and %d places of %d", a, b, perAgent)
		}
		served := 40
		for a+b > 0 {
			select {
			case release := <-first:
				release()
			case release := <-second:
				release()
			}
			served++
			synctest.Wait()
			a, b = len(first), len(second)
		}
		if served != 600 {
			t.Errorf("%d of 600 were served", served)
		}
		if len(l.agents) != 0 {
			t.Error("an agent without calls is remembered")
		}
	})
}

func TestLanesGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lanes
		held := make(chan func(), perShare)
		enterAll(t, &l, "pat:a", perShare, held)
		synctest.Wait()

		why := errors.New("cancelled by its caller")
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { _, err := l.enter(ctx, nil, "web-01", "pat:a"); ended <- err }()
		synctest.Wait()
		cancel(why)
		if err := <-ended; err != why {
			t.Errorf("a wait that was given up: %v", err)
		}

		closing := make(chan struct{})
		go func() { _, err := l.enter(t.Context(), closing, "web-01", "pat:a"); ended <- err }()
		synctest.Wait()
		close(closing)
		if err := <-ended; err != errClosing {
			t.Errorf("a wait at the server's end: %v", err)
		}

		// Whoever gave up takes no place with him.
		(<-held)()
		release, err := l.enter(t.Context(), nil, "web-01", "pat:a")
		if err != nil {
			t.Fatal(err)
		}
		release()

		// A place on one agent is none on another.
		if release, err = l.enter(t.Context(), nil, "web-02", "pat:a"); err != nil {
			t.Fatal(err)
		}
		release()
	})
}

func TestLanesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var l lanes
		refused := make(chan error, 4096)
		for range perShare + ownWaiting + 10 {
			go func() {
				if _, err := l.enter(ctx, nil, "web-01", "pat:a"); err != nil {
					refused <- err
				}
			}()
		}
		synctest.Wait()
		if len(refused) != 10 {
			t.Fatalf("%d were refused, not the 10 beyond the limit", len(refused))
		}
		var fe *fleet.Error
		if err := <-refused; !errors.As(err, &fe) || fe.Code != protocol.CodeRateLimited || fe.Reason != "principal_waiting" {
			t.Errorf("refused with %v", err)
		}
		// Another principal still may.
		go func() {
			if _, err := l.enter(ctx, nil, "web-01", "pat:b"); err != nil {
				refused <- err
			}
		}()
		synctest.Wait()
		if n := len(refused); n != 9 {
			t.Errorf("another principal's call was turned away: %v", n)
		}
		cancel()
		synctest.Wait()
	})
}
