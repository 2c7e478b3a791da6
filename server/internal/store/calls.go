package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store/body"
	"github.com/drover-fleet/drover/server/internal/store/where"
)

const (
	callList    = `c.id, c.principal, c.name, c.client, c.edge, c.agent, c.generation, c.tool, c.args, c.match_hash, c.state, c.code, c.reason, c.message, c.exit_code, c.took_us, c.created_at, c.deadline, c.finished_at, c.boot, c.queue_until, c.evidence, c.evidence_at, c.cancel_at, c.cancel_by`
	callColumns = callList + `, r.body`
)

// MaxPage bounds the rows of one list.
const MaxPage = 1000

// CallFilter chooses calls. Empty members don't filter.
type CallFilter struct {
	Principal string
	Agent     fleet.AgentID
	Tool      string
	State     fleet.State
	Before    string // the cursor of the page before; "" begins with the newest
	Limit     int    // 1 to MaxPage; 0 counts as 100
}

// Call finds a call by its id, with its result if that is still kept; not_found if there's
// none.
func (db *DB) Call(ctx context.Context, id fleet.CallID) (*fleet.Call, error) {
	var result, salt, commitment, resultSalt, resultCommitment []byte
	row := db.queryRow(ctx, `SELECT `+callColumns+`, c.salt, c.commitment, c.result_salt, c.result_commitment FROM calls c LEFT JOIN results r ON r.call_id = c.id WHERE c.id = $1`, body.Clean(string(id), maxName))
	c, err := scanCall(row, &result, &salt, &commitment, &resultSalt, &resultCommitment)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fleet.Errorf(protocol.CodeNotFound, "there's no such call; the list of calls shows their ids")
	}
	if err != nil {
		return nil, db.failed(err)
	}
	c.Result, c.Commitment, c.ResultCommitment = result, commitment, resultCommitment
	c.Salt, c.ResultSalt = db.keys.Unveil(ofArgs+string(c.ID), salt), db.keys.Unveil(ofResult+string(c.ID), resultSalt)
	return c, nil
}

// Calls lists calls, the newest first, without their results. next is the cursor of the
// following page, "" after the last.
func (db *DB) Calls(ctx context.Context, f CallFilter) (calls []fleet.Call, next string, err error) {
	var w where.Where
	from, id := ` FROM calls c`, "c.id"
	if f.Agent != "" && f.Principal == "" {
		// The record's index by agent leads to an agent's calls: an intent's row has its id.
		from, id = ` FROM record i JOIN calls c ON c.id = i.id`, "i.id"
		w.Equal("i.agent", string(f.Agent))
		w.Equal("i.kind", string(KindIntent))
	} else {
		w.Equal("c.agent", string(f.Agent))
	}
	w.Equal("c.principal", f.Principal)
	w.Equal("c.tool", f.Tool)
	w.Equal("c.state", string(f.State))
	if !f.State.Final() { // few are open: there's an index of them
		w.Parts = append(w.Parts, "c.finished_at IS NULL")
	}
	w.Compare(id+" <", f.Before)
	limit := pageSize(f.Limit)
	query := `SELECT ` + callList + from + w.SQL() + fmt.Sprintf(` ORDER BY %s DESC LIMIT %d`, id, limit+1)
	err = db.query(ctx, func(row scanner) error {
		c, err := scanCall(row)
		if err == nil {
			calls = append(calls, *c)
		}
		return err
	}, query, w.Args...)
	if len(calls) > limit {
		calls = calls[:limit]
		next = string(calls[limit-1].ID)
	}
	return calls, next, err
}

// PruneResults forgets the results that are older than d, and returns how many. The record
// keeps their commitments.
func (db *DB) PruneResults(ctx context.Context, d time.Duration) (int, error) {
	const slice = 500 // a short transaction at a time: calls wait for none of it
	cut := time.Now().Add(-d)
	total, after := 0, ""
	for {
		ids, last, err := db.oldResults(ctx, cut, after, slice)
		if err == nil && last == "" {
			err = db.dialect.scrub(ctx, db.read)
		}
		if err != nil || last == "" {
			return total, err
		}
		after = last
		err = db.inTx(ctx, func(t *tx) error {
			for _, id := range ids {
				if _, err := t.exec(ctx, `DELETE FROM results WHERE call_id = $1`, id); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return total, err
		}
		total += len(ids)
	}
}

// oldResults looks at the next results in the order of their calls, up to those of calls
// made after cut, and returns which of them are older than cut. A result is never older
// than its call, so that the walk needs no index by age.
func (db *DB) oldResults(ctx context.Context, cut time.Time, after string, slice int) (ids []string, last string, err error) {
	err = db.query(ctx, func(row scanner) error {
		var id string
		var created sql.NullInt64
		if err := row.Scan(&id, &created); err != nil {
			return err
		}
		last = id
		if fromMicros(created).Before(cut) {
			ids = append(ids, id)
		}
		return nil
	}, `SELECT call_id, created_at FROM results WHERE call_id > $1 AND call_id < $2 ORDER BY call_id LIMIT $3`, after, body.IDAt(cut), slice)
	return ids, last, err
}

func pageSize(limit int) int {
	if limit <= 0 {
		return 100
	}
	return min(limit, MaxPage)
}
