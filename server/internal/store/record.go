package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store/body"
	"github.com/drover-fleet/drover/server/internal/store/where"
)

// Kind is a record row's kind.
type Kind string

// The kinds of rows.
const (
	KindIntent   Kind = "intent"
	KindSent     Kind = "sent" // a queued call was sent
	KindOutcome  Kind = "outcome"
	KindEvidence Kind = "evidence" // what was learnt after an outcome of outcome_unknown
	KindCancel   Kind = "cancel"   // the end of an open call was asked for
	KindRefusal  Kind = "refusal"
	KindAdmin    Kind = "admin"
)

// Record is a row of the append-only record.
type Record struct {
	ID        string // a UUIDv7: rows sort by the time they were made; an intent's is its call's
	At        time.Time
	Kind      Kind
	CallID    fleet.CallID // "" for refusals and admin rows
	Agent     string       // "" if none; in refusals as the caller gave it
	Principal string       // "" when unauthenticated
	Body      []byte       // the exact bytes, a JSON object
	Leaf      []byte       // SHA-256(0x00 ‖ Body), 32 bytes
}

const insertRecord = `INSERT INTO record (id, at, kind, call_id, agent, principal, body, leaf) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`

// insertOfCall takes agent and principal from the call, so that filters find the row.
const insertOfCall = `INSERT INTO record (id, at, kind, call_id, agent, principal, body, leaf) VALUES ($1, $2, $3, $4, (SELECT agent FROM calls WHERE id = $4), (SELECT principal FROM calls WHERE id = $4), $5, $6)`

// Leaf is the hash by which a row's body enters the log's tree: SHA-256(0x00 ‖ body), as
// RFC 6962 has it.
func Leaf(body []byte) []byte {
	h := sha256.New()
	h.Write([]byte{0})
	h.Write(body)
	return h.Sum(nil)
}

// intentRow is the record row of a cleaned intent.
func intentRow(o *op, instance string) statement {
	in := o.intent
	body := body.Marshal(&body.Intent{
		V: 1, Kind: string(KindIntent), ID: o.rowID, At: body.Stamp(in.At), CallID: string(in.CallID),
		Principal: in.Principal.ID, Name: in.Principal.Name, Client: in.Client, Edge: in.Edge,
		Agent: string(in.Agent), Generation: in.Generation, Tool: in.Tool, Effect: in.Effect,
		Args: in.Args, Commitment: hex.EncodeToString(in.Commitment), Deadline: body.Stamp(in.Deadline),
		Key: in.Key, Instance: instance, Boot: in.Boot, QueueUntil: body.Stamp(in.QueueUntil),
	})
	return statement{owner: o, query: insertRecord, args: []any{
		o.rowID, micros(in.At), string(KindIntent), string(in.CallID), string(in.Agent), in.Principal.ID, body, Leaf(body),
	}}
}

func outcomeRow(o *op) statement {
	out := o.outcome
	body := body.Marshal(&body.Outcome{
		V: 1, Kind: string(KindOutcome), ID: o.rowID, At: body.Stamp(out.At), CallID: string(out.CallID),
		State: string(out.State), Code: string(out.Code), Reason: out.Reason, ExitCode: out.ExitCode,
		TookUS: out.TookUS, Commitment: hex.EncodeToString(out.Commitment),
	})
	return ofCall(o, KindOutcome, out.At, body)
}

func sentRow(o *op, instance string) statement {
	s := o.sent
	return ofCall(o, KindSent, s.at, body.Marshal(&body.Sent{
		V: 1, Kind: string(KindSent), ID: o.rowID, At: body.Stamp(s.at), CallID: string(s.id), Boot: s.boot, Instance: instance,
	}))
}

func evidenceRow(o *op, instance string) statement {
	ev := o.evidence
	return ofCall(o, KindEvidence, ev.At, body.Marshal(&body.Evidence{
		V: 1, Kind: string(KindEvidence), ID: o.rowID, At: body.Stamp(ev.At), CallID: string(ev.CallID), Text: ev.Text, Instance: instance,
	}))
}

// ofCall is the record row of a step after a call's intent.
func ofCall(o *op, kind Kind, at time.Time, body []byte) statement {
	return statement{owner: o, query: insertOfCall, args: []any{o.rowID, micros(at), string(kind), string(o.call()), body, Leaf(body)}}
}

func refusalRow(o *op) statement {
	r := o.refusal
	body := body.Marshal(&body.Refusal{
		V: 1, Kind: string(KindRefusal), ID: o.rowID, At: body.Stamp(r.At), Principal: r.Principal, Name: r.Name,
		Client: r.Client, Edge: r.Edge, Tool: r.Tool, Agent: r.Agent, Code: string(r.Code),
		Message: r.Message, Count: max(r.Count, 1),
	})
	return statement{owner: o, query: insertRecord, args: []any{
		o.rowID, micros(r.At), string(KindRefusal), nil, orNull(r.Agent), orNull(r.Principal), body, Leaf(body),
	}}
}

// RecordRefusal notes a call that was turned away. It doesn't wait: the row is written
// soon, together with others. Above ten a second of one principal they share a row a
// second and code, which says how many it stands for; what doesn't fit into the bounded
// queue is counted into a later row. Those without a principal, which anybody can cause,
// share one row a second and code, whoever and whatever they are: it keeps what they have in
// common, and the latest message.
func (db *DB) RecordRefusal(r fleet.Refusal) {
	if r.At.IsZero() {
		r.At = time.Now()
	}
	r.Principal = body.Clean(r.Principal, maxName)
	r.Name = body.Clean(r.Name, maxName)
	r.Client = body.Clean(r.Client, maxClient)
	r.Edge = body.Clean(r.Edge, maxName)
	r.Tool = body.Clean(r.Tool, maxName)
	r.Agent = body.Clean(r.Agent, maxAgent)
	r.Message = body.Clean(r.Message, maxMessage)
	r.Count = max(r.Count, 1)
	wake, ok := db.refusals.Add(&r, time.Now().Unix())
	if !ok {
		db.log.Warn("a refusal came after the record was closed", "principal", r.Principal, "agent", r.Agent, "tool", r.Tool, "code", r.Code)
	}
	if wake {
		select {
		case db.refusals.Wake <- struct{}{}:
		default:
		}
	}
}

// refusalOps are refusals on their way through the writer.
func refusalOps(list []*fleet.Refusal) []*op {
	out := make([]*op, 0, len(list))
	for _, r := range list {
		o := &op{refusal: r, rowID: newID()}
		o.state.Store(opTaken)
		out = append(out, o)
	}
	return out
}

// recordAdmin writes an administrative row within a change's transaction. An event without
// Action writes nothing.
func (t *tx) recordAdmin(ctx context.Context, ev fleet.AdminEvent) error {
	if ev.Action == "" {
		return nil
	}
	if ev.At.IsZero() {
		ev.At = time.Now()
	}
	id := newID()
	detail := make(map[string]string, len(ev.Detail))
	for k, v := range ev.Detail {
		detail[body.Clean(k, maxName)] = body.Clean(v, maxDetail)
	}
	principal, agent := body.Clean(ev.Principal, maxName), body.AgentOf(ev)
	body := body.Marshal(&body.Admin{
		V: 1, Kind: string(KindAdmin), ID: id, At: body.Stamp(ev.At), Principal: principal,
		Action: body.Clean(ev.Action, maxName), Object: body.Clean(ev.Object, maxName), Detail: detail,
	})
	_, err := t.exec(ctx, insertRecord, id, micros(ev.At), string(KindAdmin), nil, orNull(agent), orNull(principal), body, Leaf(body))
	return err
}

// RecordAdmin writes an administrative row by itself, durable when it returns. What
// changes something is recorded by the method that changes it, in the same transaction.
func (db *DB) RecordAdmin(ctx context.Context, ev fleet.AdminEvent) error {
	if ev.Action == "" {
		return fleet.Errorf(protocol.CodeInternal, "an administrative event without an action can't be recorded")
	}
	return db.inTx(ctx, func(t *tx) error { return t.recordAdmin(ctx, ev) })
}

// RecordFilter chooses rows of the record. Empty members don't filter.
type RecordFilter struct {
	Kind      Kind
	CallID    fleet.CallID
	Agent     string
	Principal string
	// After lists upwards from a row's id (oldest first, for export), Before downwards;
	// neither begins with the newest. After "0" begins with the oldest of all.
	After, Before string
	Limit         int // 1 to MaxPage; 0 counts as 100
}

// Records lists rows of the record, the newest first, or the oldest first with After. next
// is the cursor of the following page (for After or Before, as asked), "" after the last.
func (db *DB) Records(ctx context.Context, f RecordFilter) (rows []Record, next string, err error) {
	var w where.Where
	w.Equal("kind", string(f.Kind))
	if f.CallID != "" { // the intent has the call's id, the call names its other rows
		w.Args = append(w.Args, body.Clean(string(f.CallID), maxName))
		n := len(w.Args)
		w.Parts = append(w.Parts, fmt.Sprintf("(id = $%d OR id = (SELECT outcome_id FROM calls WHERE id = $%d) OR id = (SELECT sent_id FROM calls WHERE id = $%d) OR id = (SELECT evidence_id FROM calls WHERE id = $%d) OR id = (SELECT cancel_id FROM calls WHERE id = $%d))", n, n, n, n, n))
	}
	w.Equal("agent", f.Agent)
	w.Equal("principal", f.Principal)
	w.Compare("id >", f.After)
	w.Compare("id <", f.Before)
	order := "DESC"
	if f.After != "" {
		order = "ASC"
	}
	limit := pageSize(f.Limit)
	query := `SELECT id, at, kind, call_id, agent, principal, body, leaf FROM record` + w.SQL() + fmt.Sprintf(` ORDER BY id %s LIMIT %d`, order, limit+1)
	err = db.query(ctx, func(row scanner) error {
		var r Record
		var at sql.NullInt64
		var call, agent, principal sql.NullString
		if err := row.Scan(&r.ID, &at, (*string)(&r.Kind), &call, &agent, &principal, &r.Body, &r.Leaf); err != nil {
			return err
		}
		r.At, r.CallID, r.Agent, r.Principal = fromMicros(at), fleet.CallID(call.String), agent.String, principal.String
		rows = append(rows, r)
		return nil
	}, query, w.Args...)
	if len(rows) > limit {
		rows = rows[:limit]
		next = rows[limit-1].ID
	}
	return rows, next, err
}
