package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/enroll"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store/body"
)

const tokenColumns = `id, public_key, agent_id, labels, replaces, created_by, created_at, expires_at, used_at, used_key, used_generation, revoked_at`

func scanToken(row scanner) (*enroll.Token, error) {
	var t enroll.Token
	var labels string
	var key, usedKey []byte
	var created, expires, used, usedGen, revoked sql.NullInt64
	err := row.Scan(&t.ID, &key, (*string)(&t.Agent), &labels, &t.Replace, &t.CreatedBy, &created, &expires, &used, &usedKey, &usedGen, &revoked)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(labels), &t.Labels); err != nil {
		return nil, fmt.Errorf("store: enrolment token %s has damaged labels: %w", t.ID, err)
	}
	t.Key, t.UsedBy, t.UsedGen = key, usedKey, usedGen.Int64
	t.CreatedAt, t.ExpiresAt, t.UsedAt, t.RevokedAt = fromMicros(created), fromMicros(expires), fromMicros(used), fromMicros(revoked)
	return &t, nil
}

// CreateEnrolToken stores a token and records ev beside it. It refuses an agent id that
// exists unless the token replaces it (conflict), one that doesn't exist if it does
// (not_found), and one that was removed, always (conflict).
func (db *DB) CreateEnrolToken(ctx context.Context, tok enroll.Token, ev fleet.AdminEvent) error {
	return db.inTx(ctx, func(t *tx) error {
		var removed sql.NullInt64
		err := t.queryRow(ctx, `SELECT removed_at FROM agents WHERE id = $1`, string(tok.Agent)).Scan(&removed)
		exists := err == nil
		switch {
		case err != nil && !errors.Is(err, sql.ErrNoRows):
			return err
		case exists && removed.Valid:
			return errTombstone(tok.Agent)
		case exists && !tok.Replace:
			return fleet.Errorf(protocol.CodeConflict, "agent %s exists already: --replace gives it a new key and voids the present one, or choose another id", tok.Agent)
		case !exists && tok.Replace:
			return fleet.Errorf(protocol.CodeNotFound, "there's no agent %s to replace; without --replace the token makes a new one", tok.Agent)
		}
		_, err = t.exec(ctx, `INSERT INTO enrol_tokens (id, public_key, agent_id, labels, replaces, created_by, created_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
			body.Clean(tok.ID, maxName), []byte(tok.Key), string(tok.Agent), labelText(tok.Labels), tok.Replace, body.Clean(tok.CreatedBy, maxName), micros(tok.CreatedAt), micros(tok.ExpiresAt))
		if err != nil {
			if db.dialect.duplicate(err) {
				return fleet.Wrap(protocol.CodeConflict, err, "an enrolment token with this id exists already")
			}
			return err
		}
		return t.recordAdmin(ctx, ev)
	})
}

func errTombstone(id fleet.AgentID) error {
	return fleet.Errorf(protocol.CodeConflict, "agent %s was removed, and a removed id is never given out again: choose another id", id)
}

// EnrolToken finds a token by its id; not_found when there's none.
func (db *DB) EnrolToken(ctx context.Context, id string) (*enroll.Token, error) {
	t, err := scanToken(db.queryRow(ctx, `SELECT `+tokenColumns+` FROM enrol_tokens WHERE id = $1`, body.Clean(id, maxName)))
	if err != nil {
		return nil, db.failed(notFound(err, "there's no such enrolment token; drover enroll list shows their ids"))
	}
	return t, nil
}

// EnrolTokens lists tokens, the newest first.
func (db *DB) EnrolTokens(ctx context.Context) ([]enroll.Token, error) {
	var out []enroll.Token
	err := db.query(ctx, func(row scanner) error {
		t, err := scanToken(row)
		if err == nil {
			out = append(out, *t)
		}
		return err
	}, `SELECT `+tokenColumns+` FROM enrol_tokens ORDER BY created_at DESC, id DESC`)
	return out, err
}

// lockToken reads a token within a transaction, after taking its row's lock, so that two
// uses of one token wait for each other.
func (t *tx) lockToken(ctx context.Context, id string) (*enroll.Token, error) {
	if _, err := t.exec(ctx, `UPDATE enrol_tokens SET created_by = created_by WHERE id = $1`, id); err != nil {
		return nil, err
	}
	return scanToken(t.queryRow(ctx, `SELECT `+tokenColumns+` FROM enrol_tokens WHERE id = $1`, id))
}

// RevokeEnrolToken ends an unused token and records ev beside it: not_found when there's
// none, conflict when it was used. One that was revoked stays so, without a second row.
func (db *DB) RevokeEnrolToken(ctx context.Context, id string, at time.Time, ev fleet.AdminEvent) error {
	id = body.Clean(id, maxName)
	err := db.inTx(ctx, func(t *tx) error {
		tok, err := t.lockToken(ctx, id)
		switch {
		case err != nil:
			return notFound(err, "there's no such enrolment token; drover enroll list shows their ids")
		case !tok.UsedAt.IsZero():
			return fleet.Errorf(protocol.CodeConflict, "the token was used already, by agent %s; drover agents remove %s ends that agent's access", tok.Agent, tok.Agent)
		case !tok.RevokedAt.IsZero():
			return errUnchanged
		}
		if _, err := t.exec(ctx, `UPDATE enrol_tokens SET revoked_at = $2 WHERE id = $1`, id, micros(at)); err != nil {
			return err
		}
		return t.recordAdmin(ctx, ev)
	})
	if errors.Is(err, errUnchanged) {
		return nil
	}
	return err
}

// Enrol uses the token for the key, in one transaction: the token is unused, unrevoked and
// unexpired at e.At; the agent doesn't exist (generation 1 with the token's labels) or the
// token replaces it (the next generation of the same row; the labels are replaced only if
// the token has any; a quarantine is cleared). The agent's other open tokens are revoked. A token
// that this same key has used already returns the same agent and generation and writes nothing. Anything else is
// unauthenticated; an id that was removed or taken meanwhile is conflict. ev is recorded
// beside it, with the generation added to its Detail.
func (db *DB) Enrol(ctx context.Context, e enroll.Enrolment, ev fleet.AdminEvent) (agent fleet.AgentID, generation int64, err error) {
	// changePolicy writes its event as it is before fn knows the generation, so the row is
	// written here.
	err = db.changePolicy(ctx, fleet.AdminEvent{}, func(t *tx, rev int64) error {
		tok, err := t.lockToken(ctx, body.Clean(e.TokenID, maxName))
		if err != nil {
			if errors.Is(err, sql.ErrNoRows) {
				return errToken("unknown")
			}
			return err
		}
		agent, generation = tok.Agent, tok.UsedGen
		if state := tok.State(e.At); state != "open" {
			if state == "used" && bytes.Equal(tok.UsedBy, e.Key) {
				return errUnchanged
			}
			return errToken(state)
		}
		if generation, err = t.register(ctx, tok, e, rev); err != nil {
			return err
		}
		if _, err := t.exec(ctx, `UPDATE enrol_tokens SET used_at = $2, used_key = $3, used_generation = $4 WHERE id = $1`, tok.ID, micros(e.At), []byte(e.Key), generation); err != nil {
			return err
		}
		if _, err := t.exec(ctx, `UPDATE enrol_tokens SET revoked_at = $2 WHERE agent_id = $1 AND used_at IS NULL AND revoked_at IS NULL`, string(tok.Agent), micros(e.At)); err != nil {
			return err
		}
		own := ev
		own.Detail = maps.Clone(ev.Detail)
		if own.Detail == nil {
			own.Detail = map[string]string{}
		}
		own.Detail["generation"] = strconv.FormatInt(generation, 10)
		return t.recordAdmin(ctx, own)
	})
	if err != nil {
		return "", 0, err
	}
	return agent, generation, nil
}

func errToken(state string) error {
	return &fleet.Error{Code: protocol.CodeUnauthenticated, Reason: state,
		Message: "the enrolment token isn't valid (any more): an operator makes a new one with: drover enroll create"}
}

// register makes the agent, or its next generation.
func (t *tx) register(ctx context.Context, tok *enroll.Token, e enroll.Enrolment, rev int64) (int64, error) {
	var removed sql.NullInt64
	var generation int64
	err := t.queryRow(ctx, `SELECT generation, removed_at FROM agents WHERE id = $1`, string(tok.Agent)).Scan(&generation, &removed)
	exists := err == nil
	switch {
	case err != nil && !errors.Is(err, sql.ErrNoRows):
		return 0, err
	case exists && removed.Valid:
		return 0, errTombstone(tok.Agent)
	case exists != tok.Replace:
		return 0, fleet.Errorf(protocol.CodeConflict, "agent %s was registered or changed meanwhile: an operator makes a new token with: drover enroll create", tok.Agent)
	}
	generation++
	if exists {
		err = t.replaceKey(ctx, tok, generation, rev)
	} else {
		facts, caps := factsText(protocol.Facts{Hostname: e.Hostname}, nil)
		_, err = t.exec(ctx, `INSERT INTO agents (id, generation, labels, description, facts, capabilities, created_at, instance, epoch, acked_epoch, quarantine, rev) VALUES ($1, $2, $3, '', $4, $5, $6, '', 0, 0, '', $7)`,
			string(tok.Agent), generation, labelText(tok.Labels), facts, caps, micros(e.At), rev)
	}
	if err != nil {
		return 0, err
	}
	_, err = t.exec(ctx, `INSERT INTO agent_keys (agent_id, generation, public_key, created_at) VALUES ($1, $2, $3, $4)`, string(tok.Agent), generation, []byte(e.Key), micros(e.At))
	return generation, err
}

func (t *tx) replaceKey(ctx context.Context, tok *enroll.Token, generation, rev int64) error {
	_, err := t.exec(ctx, `UPDATE agents SET generation = $2, instance = '', acked_epoch = 0, kept_instance = '', kept_epoch = 0, prev_instance = '', prev_epoch = 0, earlier = '', quarantine = '', quarantined_at = NULL, quarantine_until = NULL, rev = $3 WHERE id = $1`, string(tok.Agent), generation, rev)
	if err == nil && len(tok.Labels) > 0 {
		_, err = t.exec(ctx, `UPDATE agents SET labels = $2 WHERE id = $1`, string(tok.Agent), labelText(tok.Labels))
	}
	return err
}
