package store

import (
	"context"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store/body"
)

// maxEvidence bounds the line of evidence, in bytes.
const maxEvidence = 512

const learnCall = `UPDATE calls SET evidence = $2, evidence_at = $3, evidence_id = $4 WHERE id = $1 AND state = 'outcome_unknown' AND evidence IS NULL`

// Unsettled lists the calls of one generation of an agent that ended as outcome_unknown,
// have no evidence yet and were made at since or later, to the millisecond: the newest first, at most limit of them
// (1 to MaxPage; 0 counts as 100).
func (db *DB) Unsettled(ctx context.Context, agent fleet.AgentID, generation int64, since time.Time, limit int) ([]fleet.CallID, error) {
	var ids []fleet.CallID
	err := db.query(ctx, func(row scanner) error {
		var id string
		err := row.Scan(&id)
		ids = append(ids, fleet.CallID(id))
		return err
	}, `SELECT id FROM calls WHERE agent = $1 AND state = 'outcome_unknown' AND evidence IS NULL AND generation = $2 AND id >= $3 ORDER BY id DESC LIMIT $4`,
		string(agent), generation, body.IDAt(since), pageSize(limit))
	return ids, err
}

// RecordEvidence puts what was learnt later beside a call whose outcome is outcome_unknown;
// the outcome stays. Text is one line that isn't empty; it's cut to 512 bytes. It's durable
// when it returns. A call has one evidence: for a second, and for a call with another
// outcome, the error is ErrAlreadyFinal and nothing changes; a call that is still open is
// refused, and one that doesn't exist is not_found. ctx counts as in RecordIntent.
func (db *DB) RecordEvidence(ctx context.Context, ev fleet.Evidence) error {
	ev.Text = text.Line(body.Clean(ev.Text, maxMessage), maxEvidence)
	if ev.Text == "" {
		return fleet.Errorf(protocol.CodeInternal, "evidence without text says nothing")
	}
	if ev.At.IsZero() {
		ev.At = time.Now()
	}
	return db.submit(ctx, &op{evidence: &ev, rowID: newID()})
}

// evidenceRows are the statements of a RecordEvidence.
func evidenceRows(o *op, instance string) []statement {
	ev := o.evidence
	return []statement{
		{owner: o, must: true, query: learnCall, args: []any{string(ev.CallID), ev.Text, micros(ev.At), o.rowID}},
		evidenceRow(o, instance),
	}
}
