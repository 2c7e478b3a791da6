package store

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store/atrest"
)

const (
	// queueDepth bounds what waits for the writer; beyond it callers wait to queue.
	queueDepth = 1024
	// groupMax bounds the rows of one commit.
	groupMax = 256
	// groupBytes bounds the argument and result bytes of one commit, so that a few large
	// results don't hold up everything else.
	groupBytes = 4 << 20
	// groupTimeout bounds one attempt to write a group.
	groupTimeout = 10 * time.Second
	// groupPatience bounds how long a group is tried again that met other programs' work: no
	// attempt begins later.
	groupPatience = 10 * time.Second
	// lockPatience is the same for the beginning of a group. While it lasts nothing is
	// written, and what waits can still be withdrawn.
	lockPatience = 8 * time.Second
	// groupAttempts bounds how often a group is tried when the engine can't be reached, or
	// when somebody else was first with a row.
	groupAttempts = 4
	// startPatience bounds how long what has to be durable before something starts waits for
	// the writer. It's withdrawn then: nobody is told later that it may have begun.
	startPatience = 10 * time.Second
)

// ErrAlreadyFinal says that what can happen to a call once has happened: it has its one
// outcome, was sent, or has its evidence. Somebody else wrote it.
var ErrAlreadyFinal = errors.New("store: that step of the call is already on record")

// States of an op. Whoever moves it from waiting decides: the writer takes it, or the
// caller that gave up withdraws it.
const (
	opWaiting int32 = iota
	opTaken
	opWithdrawn
)

// op is one step of a call, a refusal or a flush on its way through the writer.
type op struct {
	intent   *fleet.Intent
	sent     *sentMark
	outcome  *fleet.Outcome
	evidence *fleet.Evidence
	cancel   *fleet.Cancel
	refusal  *fleet.Refusal
	flush    bool // takes all refusals with it

	rowID   string // the record row's id, made once: a second attempt can look for it
	result  IntentResult
	hashes  atrest.Hashes
	sealed  []byte       // the intent's frozen bytes
	frees   fleet.CallID // has the intent's key, and never ran
	used    *fleet.Call  // of the same tool use
	settled bool         // answered without rows of its own: joined, or lost
	err     error
	state   atomic.Int32
	done    chan struct{} // nil when nobody waits
}

// call is the call that a step belongs to; "" for a refusal and a flush.
func (o *op) call() fleet.CallID {
	switch {
	case o.intent != nil:
		return o.intent.CallID
	case o.sent != nil:
		return o.sent.id
	case o.evidence != nil:
		return o.evidence.CallID
	case o.cancel != nil:
		return o.cancel.CallID
	case o.outcome != nil:
		return o.outcome.CallID
	default:
		return ""
	}
}

// patience is how long o may wait for the writer; 0 is without bound.
func (o *op) patience() time.Duration {
	if o.intent != nil || o.sent != nil {
		return startPatience
	}
	return 0
}

// lost tells that o is settled whatever becomes of its group: a second outcome. An intent
// that joined isn't: what it joined may be an intent of the same group.
func (o *op) lost() bool { return o.settled && o.intent == nil }

func (o *op) size() int {
	switch {
	case o.intent != nil:
		return len(o.intent.Args) + len(o.intent.Frozen) + len(o.sealed)
	case o.outcome != nil:
		return len(o.outcome.Result)
	default:
		return 0
	}
}

// submit queues o and waits until it's durable. When ctx ends, or o's patience, before the
// writer took it, it's withdrawn and will never be written; once taken, submit waits for the
// commit whatever ctx says, so that its answer is true.
func (db *DB) submit(ctx context.Context, o *op) error {
	o.done = make(chan struct{})
	var tired <-chan time.Time
	if d := o.patience(); d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		tired = timer.C
	}
	if err := db.enqueue(ctx, o, tired); err != nil {
		return err
	}
	var err error
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		err = gone(ctx)
	case <-tired:
		err = errTired()
	}
	if o.state.CompareAndSwap(opWaiting, opWithdrawn) {
		return err
	}
	<-o.done
	return o.err
}

func (db *DB) enqueue(ctx context.Context, o *op, tired <-chan time.Time) error {
	db.closing.RLock()
	defer db.closing.RUnlock()
	if db.closed {
		return fleet.Errorf(protocol.CodeUnavailable, "the server is shutting down: try again in a moment")
	}
	if ctx.Err() != nil {
		return gone(ctx)
	}
	select {
	case db.queue <- o:
		return nil
	default:
	}
	select {
	case db.queue <- o:
		return nil
	case <-ctx.Done():
		return gone(ctx)
	case <-tired:
		return errTired()
	}
}

func errTired() error {
	return fleet.Errorf(protocol.CodeUnavailable, "Drover's database hasn't taken this for %s, so it was not recorded and nothing was sent: another program may hold the database, or it's overloaded; try again in a moment", startPatience)
}

func gone(ctx context.Context) error {
	return fleet.Wrap(protocol.CodeCancelled, context.Cause(ctx), "this was given up before the database took it, so it was not recorded")
}

// writeLoop is the writer: it takes what is queued, without waiting for more, and commits
// it together.
func (db *DB) writeLoop() {
	defer db.wg.Done()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		if o := db.held; o != nil {
			db.held = nil
			db.writeFrom(o)
			continue
		}
		select {
		case o, ok := <-db.queue:
			if !ok {
				db.writeGroup(nil, refusalOps(db.refusals.End()))
				return
			}
			db.writeFrom(o)
		case <-db.refusals.Wake:
			db.writeGroup(nil, refusalOps(db.refusals.Take(time.Now(), false)))
		case now := <-tick.C:
			db.writeGroup(nil, refusalOps(db.refusals.Take(now, false)))
		}
	}
}

// writeFrom writes o and what else is queued. It's taken once the engine lets the group
// begin: until then it can be withdrawn.
func (db *DB) writeFrom(o *op) {
	g, err := db.beginGroup()
	list := db.gather(o)
	if err == nil {
		db.writeGroup(g, list)
		return
	}
	for _, o := range list {
		o.err = err
		db.answer(o, false)
	}
}

// gather takes o and what else is queued. A group has one step of each call, so that what
// loses has lost against something durable, and not against a neighbour that may fail.
func (db *DB) gather(o *op) []*op {
	list := make([]*op, 0, 1+min(len(db.queue), groupMax))
	calls := make(map[fleet.CallID]bool, cap(list))
	size := 0
	for ok := true; ok; {
		if id := o.call(); id != "" && calls[id] {
			db.held = o
			break
		}
		if o.state.CompareAndSwap(opWaiting, opTaken) {
			list = append(list, o)
			calls[o.call()] = true
			size += o.size()
			if o.flush {
				list = append(list, refusalOps(db.refusals.Take(time.Now(), true))...)
			}
		}
		if len(list) >= groupMax || size >= groupBytes {
			break
		}
		select {
		case o, ok = <-db.queue: // closed: writeLoop sees it next
		default:
			ok = false
		}
	}
	slices.SortStableFunc(list, lockOrder)
	return list
}

// lockOrder is the order in which a group takes the rows that another process' groups may
// want too: idempotency keys, then calls. With one order for all, none waits for one that
// waits for it.
func lockOrder(a, b *op) int {
	if c := cmp.Compare(a.lockClass(), b.lockClass()); c != 0 {
		return c
	}
	if a.lockClass() == 0 {
		return cmp.Or(cmp.Compare(a.intent.Principal.ID, b.intent.Principal.ID), cmp.Compare(a.intent.Key, b.intent.Key))
	}
	return cmp.Compare(a.call(), b.call())
}

func (o *op) lockClass() int {
	if o.intent != nil && o.intent.Key != "" {
		return 0
	}
	return 1
}

// writeGroup commits the ops together, in g if that has begun already, and answers each. An
// op that the engine refuses for its own sake doesn't take the others down: then each is
// written alone.
func (db *DB) writeGroup(g groupTx, list []*op) {
	if len(list) == 0 {
		db.endGroup(g, nil)
		return
	}
	err := db.commitGroup(g, list)
	if err != nil && len(list) > 1 && !db.dialect.retryable(err) && !db.dialect.diskFull(err) && isStep(err) {
		for _, o := range list {
			if !o.lost() {
				if err := db.commitGroup(nil, []*op{o}); err != nil {
					o.err = err
				}
			}
		}
	} else if err != nil {
		for _, o := range list {
			if !o.lost() {
				o.err = err
			}
		}
	}
	for _, o := range list {
		db.answer(o, true)
	}
	if err == nil {
		db.settleDoubts()
	}
}

// answer tells who waits for o. It may be there in spite of its error if it was begun and
// the engine's answer was lost.
func (db *DB) answer(o *op, begun bool) {
	lost := begun && o.err != nil && db.dialect.lost(o.err)
	if o.err != nil && !errors.Is(o.err, ErrAlreadyFinal) {
		var fe *fleet.Error
		if !errors.As(o.err, &fe) {
			db.log.Error("the record could not be written", "error", o.err)
		}
		o.err = db.failed(o.err)
		if o.refusal != nil {
			db.refusals.Lost(o.refusal)
		}
		if lost && o.intent != nil && len(db.doubts) < queueDepth {
			db.doubts = append(db.doubts, o.intent.CallID)
		}
	}
	if o.done != nil {
		close(o.done)
	}
}

// Flush waits until everything that was queued before it is durable, refusals too, also
// those that wait to share a row.
func (db *DB) Flush(ctx context.Context) error { return db.submit(ctx, &op{flush: true}) }

// Stats counts what the writer has done since Open.
type Stats struct {
	Commits int64 // synced commits of the record
	Rows    int64 // intents, outcomes and refusals in them
	Waiting int   // what is queued now
}

// Stats is for metrics: Rows ÷ Commits tells how well commits are shared.
func (db *DB) Stats() Stats {
	return Stats{Commits: db.commits.Load(), Rows: db.rows.Load(), Waiting: len(db.queue)}
}
