package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

func isStep(err error) bool {
	var se *stepError
	return errors.As(err, &se)
}

// beginGroup begins a transaction of the writer. Where another program holds the engine's
// lock it waits up to lockPatience.
func (db *DB) beginGroup() (groupTx, error) {
	ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
	defer cancel()
	r := retries{db: db, until: time.Now().Add(lockPatience)}
	for {
		g, err := db.dialect.beginGroup(ctx, db.write)
		if err == nil || !r.again(err) {
			return g, err
		}
	}
}

func (db *DB) endGroup(g groupTx, err error) {
	if g == nil {
		return
	}
	if endErr := g.end(); endErr != nil && err == nil {
		db.log.Warn("a connection was lost after a commit", "error", endErr)
	}
}

// retries decides whether what failed is tried again. Work of others that is in the way goes
// by, so it's the time that counts; an engine that isn't there is left soon.
type retries struct {
	db    *DB
	until time.Time
	tries int // all
	hard  int // those that time alone doesn't mend
	lost  bool
}

// again waits a little and is true if another attempt is worth it.
func (r *retries) again(err error) bool {
	d := r.db.dialect
	if !d.retryable(err) && !d.duplicate(err) {
		return false
	}
	if d.lost(err) || d.duplicate(err) {
		r.hard++
	}
	r.lost = r.lost || d.lost(err)
	r.tries++
	if r.hard >= groupAttempts || !time.Now().Before(r.until) {
		return false
	}
	backoff(context.Background(), min(r.tries+2, maxBackoff))
	return true
}

// commitGroup writes the ops in one transaction, in g if that isn't nil. Those that lost
// against somebody else (a second outcome, a taken idempotency key) are settled and the rest
// is tried again, as is all when the engine was busy. After a commit whose answer was lost
// the rows are looked for, so that nothing is written twice or called unwritten though it's
// there.
func (db *DB) commitGroup(g groupTx, list []*op) error {
	r := retries{db: db, until: time.Now().Add(groupPatience)}
	for {
		if r.lost {
			written, err := db.written(list)
			if err == nil && written {
				return nil
			}
			if err != nil {
				if r.again(err) {
					continue
				}
				return err
			}
		}
		again, err := db.tryGroup(g, list)
		g = nil
		if err == nil {
			return nil
		}
		if !again && !r.again(err) { // somebody's loss that is settled is progress, not a failed try
			return err
		}
	}
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

// tryGroup is one attempt, in g if that isn't nil; again says that ops were settled as lost
// and the others deserve another attempt.
func (db *DB) tryGroup(g groupTx, list []*op) (again bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
	defer cancel()
	if g == nil {
		if g, err = db.dialect.beginGroup(ctx, db.write); err != nil {
			return false, err
		}
	}
	defer func() { db.endGroup(g, err) }()
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
	var losses lostSteps
	if errors.As(err, &losses) {
		for _, o := range losses {
			o.settled, o.err = true, db.whyLost(o)
		}
		return true, err
	}
	return false, err
}

// Whether a step's row is its own: an earlier commit of it, whose answer was lost. A sending
// counts only while its call is open here.
const (
	ownSent     = `SELECT COUNT(*) FROM calls WHERE id = $1 AND sent_id = $2 AND instance = $3 AND finished_at IS NULL`
	ownOutcome  = `SELECT COUNT(*) FROM calls WHERE id = $1 AND outcome_id = $2`
	ownEvidence = `SELECT COUNT(*) FROM calls WHERE id = $1 AND evidence_id = $2`
)

func (db *DB) own(ctx context.Context, o *op) (bool, error) {
	query, args := ownOutcome, []any{string(o.call()), o.rowID}
	switch {
	case o.sent != nil:
		query, args = ownSent, append(args, db.Instance())
	case o.evidence != nil:
		query = ownEvidence
	}
	var n int64
	err := db.queryRow(ctx, query, args...).Scan(&n)
	return n == 1, err
}

// whyLost tells a step that happened already from one of a call that was never recorded,
// and from one that comes too early; nil when it's the step itself that happened.
func (db *DB) whyLost(o *op) error {
	ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
	defer cancel()
	if own, err := db.own(ctx, o); err != nil || own {
		return err
	}
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
			err = db.commitGroup(nil, []*op{{rowID: newID(), outcome: &fleet.Outcome{
				CallID: id, State: fleet.NotStarted, Code: protocol.CodeUnavailable, Reason: "record", At: time.Now(),
				Message: "the database failed while this call was being recorded, so it was not sent",
			}}})
		}
		if err != nil {
			db.doubts = append(db.doubts, id)
		}
	}
}
