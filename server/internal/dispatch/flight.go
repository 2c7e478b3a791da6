package dispatch

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/tracing"
)

// flight is a call under way in this process.
type flight struct {
	id      fleet.CallID
	target  *target
	who     fleet.Principal
	created time.Time
	client  string
	edge    string
	until   time.Time // it was queued and expires then; zero if it wasn't
	latest  time.Time // the host must not start it later; zero if it may

	ctx    context.Context
	cancel context.CancelCauseFunc

	span tracing.Span // of the whole call; it ends with the call

	instance string // whose it was on record when it began here

	// Fly's goroutine alone:
	moved    bool         // the policy moved between the decision and the intent
	exchange mux.Exchange // what travels beside the call
	marked   bool         // a queued call is on record as sent
	mark     string       // the id of the row that says so
	sent     bool         // its frame may have been written
	sentAt   time.Time    // when, if this process did that
	via      Caller       // over which connection
	adopted  bool         // another process had it before
	boot     string       // the agent's journal then
	deadline time.Time    // when an agent that keeps to its own has ended it
	late     bool         // the server's own deadline passed
	fate     mux.Fate     // the latest that the agent said of it after a cut
	cut      bool         // its connection was cut after it was sent: its streams are over; read after exchanged, too
	file     bool         // its agent sends a file
	sink     *sink        // which goes there; nil when there's none
	check    func(jsontext.Value, *fleet.Error) *fleet.Error

	exchanged chan struct{} // closed once nobody uses the caller's ends of the exchange
	done      chan struct{} // closed after result is set
	result    Result

	mu       sync.Mutex
	holders  int // callers that haven't left; a detached one holds for ever
	watchers map[*watcher]struct{}
	last     Update
	state    fleet.State
	spoke    bool // its agent has sent progress
	cancelAt time.Time
	cancelBy string
}

func newFlight(t *target, in fleet.Intent) *flight {
	f := &flight{
		id: in.CallID, target: t, who: in.Principal, created: in.At, client: in.Client, edge: in.Edge, until: in.QueueUntil, latest: in.QueueUntil,
		boot: in.Boot, state: fleet.Queued, exchanged: make(chan struct{}), done: make(chan struct{}),
	}
	f.last = Update{CallID: f.id, Agent: t.agent.ID}
	f.ctx, f.cancel = context.WithCancelCause(context.Background())
	return f
}

// prepare readies the flight for its way, as its request asks. moved tells that the policy moved
// between the decision and the intent.
func (f *flight) prepare(ctx context.Context, req *Request, moved bool) {
	f.traced(ctx)
	if req.QueueFor > 0 {
		f.latest = f.created.Add(req.QueueFor)
	}
	f.moved = moved
	f.exchange = mux.Exchange{Progress: f.news, Body: req.Body, Size: req.BodySize}
	f.stream(req)
}

// intent is what counted the call in.
func (f *flight) intent() *fleet.Intent {
	return &fleet.Intent{CallID: f.id, Principal: f.who, Agent: f.target.agent.ID, QueueUntil: f.until, Frozen: f.target.args}
}

func (f *flight) queued() bool { return !f.until.IsZero() }

func (f *flight) become(state fleet.State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = state
}

// hold counts a caller in. Only leave takes it out again.
func (f *flight) hold() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holders++
}

// leave counts out a caller whose end, that of ctx, cancels, and tells whether it was the last
// one: then the call is cancelled. Who drops out doesn't end what another still waits for.
func (f *flight) leave(ctx context.Context) (last bool) {
	why := errGone
	f.mu.Lock()
	f.holders--
	last = f.holders == 0
	f.mu.Unlock()
	if fe, ok := errors.AsType[*fleet.Error](context.Cause(ctx)); ok && fe.Code == protocol.CodeUnauthenticated {
		why = errRevoked
	}
	if last {
		f.cancel(why)
	}
	return last
}

// dropped is the end of a caller that panicked while it waited: as if it had gone. What passes
// bytes for it doesn't touch them any more when this returns.
func (f *flight) dropped(req *Request) {
	if req.CancelOnDone {
		f.leave(context.Background())
	}
	if req.streams() {
		<-f.exchanged
	}
}

// watcher is a caller that hears of the call. What it holds, its request's body among it, must
// not outlive its request.
type watcher struct{ tell func(Update) }

// watch adds a listener, if there's one, and tells it where the call stands. It hears nothing
// more, and nothing of it is kept, once leave was called.
func (f *flight) watch(fn func(Update)) (leave func()) {
	if fn == nil {
		return func() {}
	}
	w := &watcher{fn}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watchers == nil {
		f.watchers = map[*watcher]struct{}{}
	}
	f.watchers[w] = struct{}{}
	fn(f.last)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.watchers, w)
	}
}

func (f *flight) news(p protocol.Progress) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state, f.spoke = fleet.Running, true
	f.tellLocked(text.Line(p.Message, 512), true)
}

// heard tells that the agent has told how the call goes.
func (f *flight) heard() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.spoke
}

// tell says how it goes where the agent can't.
func (f *flight) tell(message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tellLocked(message, false)
}

func (f *flight) tellLocked(message string, host bool) {
	f.last.Message, f.last.Host = message, host
	for w := range f.watchers {
		w.tell(f.last)
	}
}

// standing is where the call is now: its end, or that it's still open.
func (f *flight) standing() Result {
	select {
	case <-f.done:
		return f.result
	default:
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return Result{
		CallID: f.id, Agent: f.target.agent.ID, RunAs: f.target.agent.Facts.RunAs, Tool: f.target.def.Name,
		State: f.state, CreatedAt: f.created, QueuedUntil: f.until, CancelAt: f.cancelAt, CancelBy: f.cancelBy,
	}
}
