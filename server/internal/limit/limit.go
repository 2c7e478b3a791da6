// Package limit bounds what principals hold at once of one thing: each of them, so that one
// leaves room for others, and all together, so that the server has enough.
package limit

import (
	"context"
	"errors"
	"sync"
)

// Errors of Take and Wait: which limit stood in the way.
var (
	ErrOwn = errors.New("the principal holds as much as one may")
	ErrAll = errors.New("all principals together hold as much as may be")
)

// Shares is one thing that is shared out: bytes, places.
type Shares struct {
	own, all int64

	mu      sync.Mutex
	total   int64
	held    map[string]int64
	waiting []*waiter // in the order they came
}

type waiter struct {
	who   string
	n     int64
	ready chan struct{} // closed when it has its share
	has   bool
}

// New makes Shares of which one principal holds at most own, and all together at most all.
func New(own, all int64) *Shares {
	return &Shares{own: own, all: all, held: map[string]int64{}}
}

// Take takes n for who at once, or says which limit is in the way. Who has it gives it back.
func (s *Shares) Take(who string, n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.fits(who, n); err != nil {
		return err
	}
	s.add(who, n)
	return nil
}

// Wait is Take, but waits for its turn until ctx ends: a principal's are served in the order
// they came, and of several principals the one that holds the least comes first.
func (s *Shares) Wait(ctx context.Context, who string, n int64) error {
	w := &waiter{who: who, n: n, ready: make(chan struct{})}
	s.mu.Lock()
	s.waiting = append(s.waiting, w)
	s.serve()
	s.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.has {
		return nil
	}
	err := s.fits(who, n)
	if err == nil {
		err = ErrOwn // an earlier one of its own that needs more is in front of it
	}
	s.drop(w)
	s.serve() // it may have been in front of others
	return err
}

// Give gives back n of what who took.
func (s *Shares) Give(who string, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(who, -n)
	s.serve()
}

// Held is what all hold together.
func (s *Shares) Held() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

func (s *Shares) fits(who string, n int64) error {
	switch {
	case s.held[who]+n > s.own:
		return ErrOwn
	case s.total+n > s.all:
		return ErrAll
	}
	return nil
}

func (s *Shares) add(who string, n int64) {
	s.total += n
	if s.held[who] += n; s.held[who] <= 0 {
		delete(s.held, who)
	}
}

// serve hands out what is free.
func (s *Shares) serve() {
	for {
		var next *waiter
		first := map[string]bool{}
		for _, w := range s.waiting {
			if first[w.who] {
				continue
			}
			first[w.who] = true
			if s.fits(w.who, w.n) == nil && (next == nil || s.held[w.who] < s.held[next.who]) {
				next = w
			}
		}
		if next == nil {
			return
		}
		s.drop(next)
		s.add(next.who, next.n)
		next.has = true
		close(next.ready)
	}
}

func (s *Shares) drop(w *waiter) {
	for i, v := range s.waiting {
		if v == w {
			s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
			return
		}
	}
}
