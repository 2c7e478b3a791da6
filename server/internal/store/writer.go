package store

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
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
	groupTimeout = 20 * time.Second
	// groupAttempts bounds how often a group is tried that the engine turned away.
	groupAttempts = 4
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
	refusal  *fleet.Refusal
	flush    bool // takes all refusals with it

	rowID   string // the record row's id, made once: a second attempt can look for it
	result  IntentResult
	settled bool // answered without rows of its own: joined, or lost
	err     error
	state   atomic.Int32
	done    chan struct{} // nil when nobody waits
}

// call is the call that a step other than an intent belongs to.
func (o *op) call() fleet.CallID {
	switch {
	case o.sent != nil:
		return o.sent.id
	case o.evidence != nil:
		return o.evidence.CallID
	default:
		return o.outcome.CallID
	}
}

// lost tells that o is settled whatever becomes of its group: a second outcome. An intent
// that joined isn't: what it joined may be an intent of the same group.
func (o *op) lost() bool { return o.settled && o.intent == nil }

func (o *op) size() int {
	switch {
	case o.intent != nil:
		return len(o.intent.Args) + len(o.intent.Frozen)
	case o.outcome != nil:
		return len(o.outcome.Result)
	default:
		return 0
	}
}

// submit queues o and waits until it's durable. When ctx ends before the writer took it,
// it's withdrawn and will never be written; once taken, submit waits for the commit
// whatever ctx says, so that its answer is true.
func (db *DB) submit(ctx context.Context, o *op) error {
	o.done = make(chan struct{})
	if err := db.enqueue(ctx, o); err != nil {
		return err
	}
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
	}
	if o.state.CompareAndSwap(opWaiting, opWithdrawn) {
		return gone(ctx)
	}
	<-o.done
	return o.err
}

func (db *DB) enqueue(ctx context.Context, o *op) error {
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
	}
}

func gone(ctx context.Context) error {
	return fleet.Wrap(protocol.CodeCancelled, context.Cause(ctx), "the caller went away before this was recorded, so it was not recorded")
}

// writeLoop is the writer: it takes what is queued, without waiting for more, and commits
// it together.
func (db *DB) writeLoop() {
	defer db.wg.Done()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case o, ok := <-db.queue:
			if !ok {
				db.writeGroup(db.refusals.end())
				return
			}
			db.writeGroup(db.gather(o))
		case <-db.refusals.wake:
			db.writeGroup(db.refusals.take(time.Now(), false))
		case now := <-tick.C:
			db.writeGroup(db.refusals.take(now, false))
		}
	}
}

// gather adds what else is queued.
func (db *DB) gather(o *op) []*op {
	list := make([]*op, 0, 1+min(len(db.queue), groupMax))
	size := 0
	for ok := true; ok; {
		if o.state.CompareAndSwap(opWaiting, opTaken) {
			list = append(list, o)
			size += o.size()
			if o.flush {
				list = append(list, db.refusals.take(time.Now(), true)...)
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
	return list
}

// writeGroup commits the ops together and answers each. An op that the engine refuses for
// its own sake doesn't take the others down: then each is written alone.
func (db *DB) writeGroup(list []*op) {
	if len(list) == 0 {
		return
	}
	err := db.commitGroup(list)
	if err != nil && len(list) > 1 && !db.dialect.retryable(err) && !db.dialect.diskFull(err) && isStep(err) {
		for _, o := range list {
			if !o.lost() {
				if err := db.commitGroup([]*op{o}); err != nil {
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
		db.answer(o)
	}
	if err == nil {
		db.settleDoubts()
	}
}

// settleDoubts ends the calls whose intent was called unwritten because the commit's answer
// was lost, and which are there after all: nothing was sent for them. It runs in the
// writer, after a commit has shown that the database is back.
func (db *DB) settleDoubts() {
	if len(db.doubts) == 0 {
		return
	}
	doubts := db.doubts
	db.doubts = nil
	ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
	defer cancel()
	for _, id := range doubts {
		var open bool
		err := db.queryRow(ctx, `SELECT finished_at IS NULL FROM calls WHERE id = $1`, string(id)).Scan(&open)
		if errors.Is(err, sql.ErrNoRows) || (err == nil && !open) {
			continue
		}
		if err == nil {
			err = db.commitGroup([]*op{{rowID: newID(), outcome: &fleet.Outcome{
				CallID: id, State: fleet.NotStarted, Code: protocol.CodeUnavailable, Reason: "record", At: time.Now(),
				Message: "the database failed while this call was being recorded, so it was not sent",
			}}})
		}
		if err != nil {
			db.doubts = append(db.doubts, id)
		}
	}
}

func isStep(err error) bool {
	var se *stepError
	return errors.As(err, &se)
}

func (db *DB) answer(o *op) {
	lost := o.err != nil && db.dialect.lost(o.err)
	if o.err != nil && !errors.Is(o.err, ErrAlreadyFinal) {
		var fe *fleet.Error
		if !errors.As(o.err, &fe) {
			db.log.Error("the record could not be written", "error", o.err)
		}
		o.err = db.failed(o.err)
		if o.refusal != nil {
			db.refusals.lost(o.refusal)
		}
		if lost && o.intent != nil && len(db.doubts) < queueDepth {
			db.doubts = append(db.doubts, o.intent.CallID)
		}
	}
	if o.done != nil {
		close(o.done)
	}
}

// commitGroup writes the ops in one transaction. Those that lost against somebody else (a
// second outcome, a taken idempotency key) are settled and the rest is tried again, as is
// all when the engine was busy. After a commit whose answer was lost the rows are looked
// for, so that nothing is written twice or called unwritten though it's there.
func (db *DB) commitGroup(list []*op) error {
	var err error
	lost := false
	for tries := 0; tries < groupAttempts; {
		if lost {
			written, lookErr := db.written(list)
			if lookErr == nil && written {
				return nil
			}
			if lookErr != nil {
				tries++
				backoff(context.Background(), tries+2)
				continue
			}
		}
		var again bool
		again, err = db.tryGroup(list)
		if err == nil {
			return nil
		}
		if again {
			continue // somebody's loss is settled; that's progress, not a failed try
		}
		if !db.dialect.retryable(err) && !db.dialect.duplicate(err) {
			return err
		}
		lost = lost || db.dialect.lost(err)
		tries++
		backoff(context.Background(), tries+2)
	}
	return err
}

// written tells whether an earlier attempt was committed after all. A group is one
// transaction, so one row speaks for all.
func (db *DB) written(list []*op) (bool, error) {
	for _, o := range list {
		if o.settled || o.rowID == "" {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
		defer cancel()
		var n int64
		err := db.queryRow(ctx, `SELECT COUNT(*) FROM record WHERE id = $1`, o.rowID).Scan(&n)
		return n == 1, err
	}
	return false, nil
}

// tryGroup is one attempt; again says that an op was settled as lost and the others
// deserve another attempt.
func (db *DB) tryGroup(list []*op) (again bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
	defer cancel()
	g, err := db.dialect.beginGroup(ctx, db.write)
	if err != nil {
		return false, err
	}
	defer func() {
		if endErr := g.end(); endErr != nil && err == nil {
			db.log.Warn("a connection was lost after a commit", "error", endErr)
		}
	}()
	if err := db.join(ctx, g, list); err != nil {
		return false, err
	}
	steps := db.steps(list)
	if len(steps) == 0 {
		return false, nil
	}
	err = g.commitWith(ctx, steps)
	if err == nil {
		db.commits.Add(1)
		db.rows.Add(int64(len(list)))
	}
	var se *stepError
	if errors.As(err, &se) && errors.Is(se.err, errNoRows) {
		se.op.settled, se.op.err = true, db.whyLost(se.op)
		return true, err
	}
	return false, err
}

// whyLost tells a step that happened already from one of a call that was never recorded,
// and from one that comes too early.
func (db *DB) whyLost(o *op) error {
	ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
	defer cancel()
	c, err := db.Call(ctx, o.call())
	switch {
	case err != nil:
		return err
	case o.evidence != nil && !c.State.Final():
		return fleet.Errorf(protocol.CodeInternal, "evidence is for a call that has ended; %s hasn't", c.ID)
	default:
		return ErrAlreadyFinal
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
