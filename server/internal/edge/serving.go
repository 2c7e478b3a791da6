package edge

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Serving knows the requests that are being served by their credentials, and ends those whose
// credential has ended.
type Serving struct {
	alive func(principal string) bool

	mu   sync.Mutex
	open map[*served]struct{}
}

// served is one request.
type served struct {
	who  string
	also func() bool
	end  context.CancelCauseFunc
}

// NewServing makes Serving. alive says whether a principal's credential still counts.
func NewServing(alive func(principal string) bool) *Serving {
	return &Serving{alive: alive, open: map[*served]struct{}{}}
}

// Begin counts in a request of who, with ctx and w. Once its credential has ended, Enforce
// ends the context that it returns, with an unauthenticated *fleet.Error, and cuts the answer.
// also, if not nil, tells of a credential that may end before who's, such as a session. done
// must be called when the request is served.
func (s *Serving) Begin(ctx context.Context, w http.ResponseWriter, who string, also func() bool) (_ context.Context, done func()) {
	ctx, end, free := Ending(ctx, w)
	one := &served{who: who, also: also, end: end}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[one] = struct{}{}
	return ctx, func() {
		free()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, one)
	}
}

// Enforce ends the requests whose credential doesn't count any more.
func (s *Serving) Enforce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	alive := map[string]bool{}
	for one := range s.open {
		if _, known := alive[one.who]; !known {
			alive[one.who] = s.alive(one.who)
		}
		if !alive[one.who] || one.also != nil && !one.also() {
			one.end(fleet.Errorf(protocol.CodeUnauthenticated, "the credential ended while the request was served"))
		}
	}
}

// Open is how many requests with a credential are being served.
func (s *Serving) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// errServed is the cause of the end of a request's context once it's served.
var errServed = errors.New("the request was served")

// Ending returns a context for what serves a request. Its end, by end or by ctx, cuts the
// answer to w: nothing that serves it stays in a write that the client doesn't take. done frees
// the context without a cut; it must be called when the request is served.
func Ending(ctx context.Context, w http.ResponseWriter) (_ context.Context, end context.CancelCauseFunc, done func()) {
	ctx, end = context.WithCancelCause(ctx)
	stop := context.AfterFunc(ctx, func() { Cut(w) })
	return ctx, end, func() {
		stop()
		end(errServed)
	}
}
