package store

import (
	"bytes"
	"context"
	"database/sql"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store/body"
)

// JoinWindow is how long after its end a call is still joined by a repeat of the same tool
// use.
const JoinWindow = 2 * time.Minute

// IntentResult is what became of an intent.
type IntentResult struct {
	// Joined is the call that this is a repeat of, with its result if that is kept; nil
	// when the intent was recorded now.
	Joined *fleet.Call
	// PolicyVersion was read in the intent's own transaction. When it isn't the version
	// that the decision was made on, the decision has to be made again before anything is
	// sent.
	PolicyVersion int64
	// Instance is whose the call is on record.
	Instance string
}

const (
	selectPolicy = `SELECT policy_version FROM store_state WHERE id = 1`

	insertCall = `INSERT INTO calls (id, principal, name, client, edge, agent, generation, tool, effect, args, commitment, salt, idempotency_key, join_key, match_hash, instance, state, code, reason, message, took_us, created_at, deadline, boot, queue_until)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, '', '', '', 0, $18, $19, $20, $21)`

	finishCall = `UPDATE calls SET state = $2, code = $3, reason = $4, message = $5, exit_code = $6, took_us = $7, result_commitment = $8, result_salt = $9, finished_at = $10, outcome_id = $11
WHERE id = $1 AND finished_at IS NULL`

	freeKey = `UPDATE calls SET idempotency_key = NULL WHERE id = $1 AND state = 'not_started' AND cancel_at IS NULL`

	insertResult = `INSERT INTO results (call_id, body, created_at) VALUES ($1, $2, $3)`

	findKey  = `SELECT ` + callColumns + ` FROM calls c LEFT JOIN results r ON r.call_id = c.id WHERE c.principal = $1 AND c.idempotency_key = $2`
	findJoin = `SELECT ` + callColumns + ` FROM calls c LEFT JOIN results r ON r.call_id = c.id WHERE c.principal = $1 AND c.join_key IN ($2, $5) AND c.match_hash IN ($3, $6) AND (c.state <> 'not_started' OR c.cancel_at IS NOT NULL) AND (c.finished_at IS NULL OR c.finished_at > $4) ORDER BY c.id DESC LIMIT 1`
)

// RecordIntent makes a call durable before it's sent: it returns after the synced commit.
// The call's state is dispatched from then on, or queued when the intent has a QueueUntil:
// then its Frozen bytes are kept, in the same commit, until it's sent or ends.
//
// An intent with a Key that this principal has used joins that call if Match is equal and
// is a conflict otherwise. One with a JoinKey joins the call with the same JoinKey and
// Match that is open or ended less than JoinWindow ago. A joined intent writes nothing.
// A call that ended as not_started isn't joined, unless its end was asked for: it certainly
// never ran, so that the Key passes to this intent, in the same commit.
//
// When ctx ends before the writer has taken the intent, it's withdrawn: the error is
// cancelled and it will never be written. Otherwise the answer says what happened. When
// the record can't be written the error is unavailable; nothing may be sent then.
func (db *DB) RecordIntent(ctx context.Context, in fleet.Intent) (IntentResult, error) {
	if in.CallID == "" || in.Principal.ID == "" || in.Agent == "" || in.Tool == "" {
		return IntentResult{}, fleet.Errorf(protocol.CodeInternal, "an intent without call, principal, agent or tool can't be recorded")
	}
	if err := checkQueued(&in); err != nil {
		return IntentResult{}, err
	}
	if in.At.IsZero() {
		in.At = time.Now()
	}
	in.Principal.ID = body.Clean(in.Principal.ID, maxName)
	in.Principal.Name = body.Clean(in.Principal.Name, maxName)
	in.Client = body.Clean(in.Client, maxClient)
	in.Edge = body.Clean(in.Edge, maxName)
	in.Tool = body.Clean(in.Tool, maxName)
	in.Effect = body.Clean(in.Effect, maxName)
	in.Key = body.Clean(in.Key, maxKey)
	in.JoinKey = body.Clean(in.JoinKey, maxKey)
	in.Match = body.Clean(in.Match, maxKey)
	in.Boot = body.Clean(in.Boot, maxName)
	in.Args = body.CleanJSON(in.Args)
	o := &op{intent: &in, rowID: string(in.CallID)}
	db.hide(o)
	if err := db.submit(ctx, o); err != nil {
		return IntentResult{}, err
	}
	return o.result, nil
}

// What names the salts of a call, before its id.
const (
	ofArgs   = "args/"
	ofResult = "result/"
)

// hide makes of an intent what the database may have of it. A replica of the version before
// reads hashes and salts as they are, and bytes in clear.
func (db *DB) hide(o *op) {
	in, older := o.intent, db.older.Load()
	if !older { // which would show a veiled salt as it is
		in.Salt = db.keys.Veil(ofArgs+string(in.CallID), in.Salt)
	}
	if in.Key != "" || in.JoinKey != "" { // nobody looks for others
		o.hashes = db.keys.Hashes(in.Match, in.JoinKey, older)
	}
	if in.Frozen != nil && !older {
		o.sealed, in.Frozen = db.keys.Seal(string(in.CallID), in.Frozen), []byte{}
	}
}

// conflict says that a key was used before, and not for the same as far as can be told.
func (db *DB) conflict(c *fleet.Call) error {
	if !db.keys.Knows(c.Match) {
		return fleet.Errorf(protocol.CodeConflict, "the idempotency key was used (%s), and whether for this same call can't be told any more: the server's key is another one now, or the calls were made anew from the record. Look at that call, and use a new key for a new one", c.ID)
	}
	return fleet.Errorf(protocol.CodeConflict, "the idempotency key was used for another call (%s): use a new key for a new call, or repeat that call with the same arguments, byte for byte (white space counts)", c.ID)
}

// RecordOutcome makes a call's end durable before it's answered. Exactly one outcome of a
// call is ever written: for a later one the error is ErrAlreadyFinal, for a call without
// intent not_found. ctx counts as in RecordIntent.
func (db *DB) RecordOutcome(ctx context.Context, out fleet.Outcome) error {
	if !out.State.Final() {
		return fleet.Errorf(protocol.CodeInternal, "%s is not the end of a call", out.State)
	}
	if out.At.IsZero() {
		out.At = time.Now()
	}
	out.Reason = body.Clean(out.Reason, maxName)
	out.Message = body.Clean(out.Message, maxMessage)
	if !db.older.Load() {
		out.Salt = db.keys.Veil(ofResult+string(out.CallID), out.Salt)
	}
	return db.submit(ctx, &op{outcome: &out, rowID: newID()})
}

// join looks for the calls that intents with keys repeat: in the database, and among the
// intents before them in the same group.
func (db *DB) join(ctx context.Context, g groupTx, list []*op) error {
	var look []statement
	for _, o := range list {
		in := o.intent
		if in == nil {
			continue
		}
		// Each attempt looks anew: what an intent joined in a failed one may be gone with it.
		o.settled, o.err, o.result.Joined, o.frees, o.used = false, nil, nil, "", nil
		if in.Key != "" {
			look = append(look, statement{owner: o, query: findKey, args: []any{in.Principal.ID, in.Key}, scan: o.scanJoined})
		}
		if in.JoinKey != "" {
			since := micros(in.At.Add(-JoinWindow))
			look = append(look, statement{owner: o, query: findJoin, args: []any{in.Principal.ID, in.JoinKey, in.Match, since, o.hashes.KeyedJoin, o.hashes.KeyedMatch}, scan: o.scanUsed})
		}
	}
	if len(look) == 0 {
		return nil
	}
	for _, o := range list {
		if o.intent != nil {
			look = append(look, statement{owner: o, query: selectPolicy, scan: o.scanPolicy})
		}
	}
	if err := g.run(ctx, look); err != nil {
		return err
	}
	for i, o := range list {
		if o.intent == nil {
			continue
		}
		if j := o.result.Joined; j != nil && neverRan(j) && o.hashes.Same(j.Match) {
			o.result.Joined, o.frees = o.used, j.ID // and the same tool use may have run without the key
		}
		if o.result.Joined == nil {
			o.result.Joined = joinWithin(list[:i], o.intent)
		}
		if j := o.result.Joined; j != nil {
			o.settled = true
			if o.intent.Key != "" && !o.hashes.Same(j.Match) {
				o.err = db.conflict(j)
			}
		}
	}
	return nil
}

// neverRan tells that a call certainly never ran, so that it may be tried again under its
// key. What was cancelled isn't wanted any more, and what has expired was wanted in its time
// alone.
func neverRan(c *fleet.Call) bool { return c.State == fleet.NotStarted && c.CancelAt.IsZero() }

func (o *op) scanJoined(row scanner) error {
	var result []byte
	c, err := scanCall(row, &result)
	if err == nil && o.result.Joined == nil { // the explicit key goes first
		c.Result = result
		o.result.Joined = c
	}
	return err
}

// scanUsed takes the call that the same use of the tool has made already.
func (o *op) scanUsed(row scanner) error {
	var result []byte
	c, err := scanCall(row, &result)
	if err != nil {
		return err
	}
	c.Result, o.used = result, c
	if o.result.Joined == nil { // the explicit key goes first
		o.result.Joined = c
	}
	return nil
}

// policyOf reads the policy version for all intents of a group.
func policyOf(list []*op) func(scanner) error {
	return func(row scanner) error {
		var v int64
		err := row.Scan(&v)
		for _, o := range list {
			o.result.PolicyVersion = v
		}
		return err
	}
}

func (o *op) scanPolicy(row scanner) error { return row.Scan(&o.result.PolicyVersion) }

// joinWithin finds the intent of the same group that in repeats.
func joinWithin(before []*op, in *fleet.Intent) *fleet.Call {
	for _, o := range before {
		b := o.intent
		if b == nil || o.settled || b.Principal.ID != in.Principal.ID {
			continue
		}
		if (in.Key != "" && b.Key == in.Key) || (in.JoinKey != "" && b.JoinKey == in.JoinKey && b.Match == in.Match) {
			return callOf(b)
		}
	}
	return nil
}

// callOf is the call that an intent begins.
func callOf(in *fleet.Intent) *fleet.Call {
	return &fleet.Call{
		ID: in.CallID, Principal: in.Principal.ID, Name: in.Principal.Name, Client: in.Client, Edge: in.Edge,
		Agent: in.Agent, Generation: in.Generation, Tool: in.Tool, Args: bytes.Clone(in.Args), Match: in.Match,
		State: firstState(in), CreatedAt: in.At, Deadline: in.Deadline, Boot: in.Boot, QueueUntil: in.QueueUntil,
	}
}

// firstState is where an intent's call begins.
func firstState(in *fleet.Intent) fleet.State {
	if in.QueueUntil.IsZero() {
		return fleet.Dispatched
	}
	return fleet.Queued
}

// steps are the statements that write the ops which aren't settled.
func (db *DB) steps(list []*op) []statement {
	steps, instance := make([]statement, 0, 3*len(list)), db.Instance()
	policy := false
	for _, o := range list {
		switch {
		case o.settled:
		case o.intent != nil:
			if !policy { // read once: each decision of the group was made before the transaction began
				policy = true
				steps = append(steps, statement{owner: o, query: selectPolicy, scan: policyOf(list)})
			}
			if o.frees != "" { // if somebody else was first, the key isn't free now either
				steps = append(steps, statement{owner: o, query: freeKey, args: []any{string(o.frees)}})
			}
			o.result.Instance = instance
			steps = append(steps, intentRow(o, instance), callRow(o, instance))
			if in := o.intent; in.Frozen != nil {
				steps = append(steps, statement{owner: o, query: insertQueued, args: []any{string(in.CallID), in.Frozen, o.sealed}})
			}
		case o.outcome != nil:
			steps = append(steps, outcomeRows(o)...)
		case o.sent != nil:
			steps = append(steps, sentRows(o, instance)...)
		case o.evidence != nil:
			steps = append(steps, evidenceRows(o, instance)...)
		case o.cancel != nil:
			steps = append(steps, cancelRows(o, instance)...)
		case o.refusal != nil:
			steps = append(steps, refusalRow(o))
		}
	}
	return steps
}

func callRow(o *op, instance string) statement {
	in := o.intent
	return statement{owner: o, query: insertCall, args: []any{
		string(in.CallID), in.Principal.ID, in.Principal.Name, in.Client, in.Edge, string(in.Agent), in.Generation,
		in.Tool, in.Effect, string(in.Args), blob(in.Commitment), in.Salt, orNull(in.Key), orNull(o.hashes.Join),
		o.hashes.Match, instance, string(firstState(in)), micros(in.At), micros(in.Deadline), orNull(in.Boot), micros(in.QueueUntil),
	}}
}

// outcomeRows are the statements of a RecordOutcome.
func outcomeRows(o *op) []statement {
	out := o.outcome
	steps := []statement{finishRow(o), outcomeRow(o)}
	if out.Result != nil {
		steps = append(steps, statement{owner: o, query: insertResult, args: []any{string(out.CallID), out.Result, micros(out.At)}})
	}
	if neverSent(out) {
		steps = append(steps, statement{owner: o, query: deleteQueued, args: []any{string(out.CallID)}})
	}
	return steps
}

func finishRow(o *op) statement {
	out := o.outcome
	var exit any
	if out.ExitCode != nil {
		exit = int64(*out.ExitCode)
	}
	return statement{owner: o, must: true, query: finishCall, args: []any{
		string(out.CallID), string(out.State), string(out.Code), out.Reason, out.Message, exit, out.TookUS,
		out.Commitment, out.Salt, micros(out.At), o.rowID,
	}}
}

// scanCall reads callList; more are where the columns after it go.
func scanCall(row scanner, more ...any) (*fleet.Call, error) {
	var c fleet.Call
	var exit, created, deadline, finished, until, learnt, cancelled sql.NullInt64
	var boot, evidence, by sql.NullString
	var args string
	dest := []any{
		(*string)(&c.ID), &c.Principal, &c.Name, &c.Client, &c.Edge, (*string)(&c.Agent), &c.Generation, &c.Tool,
		&args, &c.Match, (*string)(&c.State), (*string)(&c.Code), &c.Reason, &c.Message, &exit, &c.TookUS,
		&created, &deadline, &finished, &boot, &until, &evidence, &learnt, &cancelled, &by,
	}
	if err := row.Scan(append(dest, more...)...); err != nil {
		return nil, err
	}
	c.Args = []byte(args)
	if exit.Valid {
		n := int(exit.Int64)
		c.ExitCode = &n
	}
	c.CreatedAt, c.Deadline, c.FinishedAt = fromMicros(created), fromMicros(deadline), fromMicros(finished)
	c.Boot, c.QueueUntil = boot.String, fromMicros(until)
	c.Evidence, c.EvidenceAt = evidence.String, fromMicros(learnt)
	c.CancelAt, c.CancelBy = fromMicros(cancelled), by.String
	return &c, nil
}
