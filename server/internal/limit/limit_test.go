package limit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestShares(t *testing.T) {
	s := New(4, 10)
	for _, c := range []struct {
		who  string
		n    int64
		want error
	}{{"a", 3, nil}, {"a", 2, ErrOwn}, {"a", 1, nil}, {"b", 4, nil}, {"c", 3, ErrAll}, {"c", 2, nil}, {"d", 1, ErrAll}} {
		if err := s.Take(c.who, c.n); !errors.Is(err, c.want) {
			t.Errorf("%s takes %d: %v, want %v", c.who, c.n, err, c.want)
		}
	}
	for who, n := range map[string]int64{"a": 4, "b": 4, "c": 2} {
		s.Give(who, n)
	}
	if s.Held() != 0 || len(s.held) != 0 {
		t.Errorf("given back, and %d are held by %v", s.Held(), s.held)
	}
}

// Who waits is served in order, the principal with the least first, and nobody is held up by
// who has as much as one may.
func TestWaitingIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(4, 8)
		_ = s.Take("a", 4)
		_ = s.Take("b", 2)
		_ = s.Take("c", 2)
		var mu sync.Mutex
		var served []string
		wait := func(name, who string, n int64) {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := s.Wait(ctx, who, n); err != nil {
					name += " " + err.Error()
				}
				mu.Lock()
				defer mu.Unlock()
				served = append(served, name)
			}()
			synctest.Wait()
		}
		wait("a1", "a", 3)
		wait("a2", "a", 1)
		wait("b1", "b", 2)
		wait("d1", "d", 1)
		s.Give("c", 1)
		synctest.Wait() // d holds nothing, b two
		s.Give("c", 1)
		synctest.Wait() // b needs two, and a holds all it may: the one that is free stays so
		s.Give("a", 1)
		synctest.Wait() // two are free: b's; a1 needs three
		s.Give("a", 2)
		synctest.Wait() // two are free and a has one: a1 needs three
		s.Give("b", 4)
		synctest.Wait()
		expect := func(want ...string) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(served, want) {
				t.Errorf("served %v, want %v", served, want)
			}
		}
		expect("d1", "b1", "a1")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		expect("d1", "b1", "a1", "a2 "+ErrOwn.Error())
		if s.Held() != 5 || len(s.waiting) != 0 {
			t.Errorf("%d are held, %d wait", s.Held(), len(s.waiting))
		}
	})
}

// Who gives up lets those behind it through.
func TestWhoGivesUpIsInNobodysWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(4, 8)
		_ = s.Take("a", 2)
		ctx, cancel := context.WithCancel(t.Context())
		big, small := make(chan error, 1), make(chan error, 1)
		go func() { big <- s.Wait(ctx, "a", 3) }()
		synctest.Wait()
		go func() { small <- s.Wait(t.Context(), "a", 2) }()
		synctest.Wait()
		cancel()
		if err := <-big; !errors.Is(err, ErrOwn) {
			t.Errorf("the one that gave up: %v", err)
		}
		if err := <-small; err != nil {
			t.Errorf("the one behind it: %v", err)
		}
	})
}
