package store

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"database/sql"
	"errors"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store/body"
)

const (
	maxFact         = 256
	maxDescription  = 1024
	maxRoots        = 64
	maxCapabilities = 256
	// maxClaimedEpoch bounds what an agent's own word may raise its counter to, so that the
	// counter stays exact in JSON for ever.
	maxClaimedEpoch = 1 << 52
	// incarnationShift puts the incarnation above the connections of one life.
	incarnationShift = 32

	noAgent = "there's no such agent; drover agents list shows them"
)

// AgentRows lists all agents by id, with their notes; removed ones too if asked.
func (db *DB) AgentRows(ctx context.Context, removed bool) ([]AgentRow, error) {
	var out []AgentRow
	err := db.query(ctx, func(row scanner) error {
		a, err := scanAgent(row)
		if err == nil && (removed || a.RemovedAt.IsZero()) {
			if at := db.touches.Agent(a.ID); at.After(a.LastSeen) {
				a.LastSeen = at
			}
			out = append(out, *a)
		}
		return err
	}, agentQuery+` ORDER BY a.id`)
	return out, err
}

// SetAgent changes the operator's labels and description and records ev beside it. nil
// labels and a nil description leave what is there; a label set replaces the whole one.
// not_found for an agent that isn't there or was removed.
func (db *DB) SetAgent(ctx context.Context, id fleet.AgentID, labels map[string]string, description *string, ev fleet.AdminEvent) error {
	return db.changePolicy(ctx, ev, func(t *tx, rev int64) error {
		if err := t.alive(ctx, id); err != nil {
			return err
		}
		if labels != nil {
			if _, err := t.exec(ctx, `UPDATE agents SET labels = $2, rev = $3 WHERE id = $1`, string(id), labelText(labels), rev); err != nil {
				return err
			}
		}
		if description != nil {
			if _, err := t.exec(ctx, `UPDATE agents SET description = $2, rev = $3 WHERE id = $1`, string(id), body.Clean(*description, maxDescription), rev); err != nil {
				return err
			}
		}
		return nil
	})
}

// alive is not_found unless the agent exists and wasn't removed.
func (t *tx) alive(ctx context.Context, id fleet.AgentID) error {
	var removed sql.NullInt64
	err := t.queryRow(ctx, `SELECT removed_at FROM agents WHERE id = $1`, body.Clean(string(id), maxAgent)).Scan(&removed)
	if err == nil && removed.Valid {
		err = sql.ErrNoRows
	}
	return notFound(err, noAgent)
}

// RemoveAgent makes the id a tombstone: its key is void, its open enrolment tokens are
// revoked, and the id is never given out again. Its calls and the record stay. It records
// ev beside it; not_found when there's no such agent or it was removed already.
func (db *DB) RemoveAgent(ctx context.Context, id fleet.AgentID, at time.Time, ev fleet.AdminEvent) error {
	return db.changePolicy(ctx, ev, func(t *tx, rev int64) error {
		if err := t.alive(ctx, id); err != nil {
			return err
		}
		if _, err := t.exec(ctx, `UPDATE agents SET removed_at = $2, rev = $3 WHERE id = $1`, string(id), micros(at), rev); err != nil {
			return err
		}
		_, err := t.exec(ctx, `UPDATE enrol_tokens SET revoked_at = $2 WHERE agent_id = $1 AND used_at IS NULL AND revoked_at IS NULL`, string(id), micros(at))
		return err
	})
}

// AgentForTunnel finds a registered agent and the public key of exactly this generation.
// An id that never existed: nil agent, nil error. A removed agent comes back with removed
// set. A superseded generation comes back with its own key and an agent whose Generation
// is the present one; one that never existed has a nil key.
func (db *DB) AgentForTunnel(ctx context.Context, id fleet.AgentID, generation int64) (a *fleet.Agent, key ed25519.PublicKey, removed bool, err error) {
	row, err := scanAgent(db.queryRow(ctx, agentQuery+` WHERE a.id = $1`, body.Clean(string(id), maxAgent)))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil, false, nil
	}
	if err != nil {
		return nil, nil, false, db.failed(err)
	}
	if generation == row.Generation {
		return &row.Agent, row.Key, !row.RemovedAt.IsZero(), nil
	}
	var b []byte
	err = db.queryRow(ctx, `SELECT public_key FROM agent_keys WHERE agent_id = $1 AND generation = $2`, string(id), generation).Scan(&b)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return &row.Agent, b, !row.RemovedAt.IsZero(), db.failed(err)
}

// NextEpoch judges a connection (see fleet.Standing) and, if it's admitted, gives it its
// number: greater than every number given before for this agent, by any replica, before a
// backup was restored, and as far as the agent itself remembers. Its instance and number are
// the agent's current ones then. A claim that is turned away raises no epoch. A generation
// that isn't the present one and a removed agent are errors.
func (db *DB) NextEpoch(ctx context.Context, c fleet.Claim) (epoch int64, verdict fleet.Verdict, err error) {
	id := body.Clean(string(c.Agent), maxAgent)
	now := time.Now()
	c.Instance, c.LastEpoch, c.At = body.Clean(c.Instance, maxName), min(c.LastEpoch, maxClaimedEpoch), now.Unix()
	err = db.inTx(ctx, func(t *tx) error {
		var gen, incarnation, prevEpoch int64
		var removed sql.NullInt64
		var s fleet.Standing
		var prev string // of a version that remembered only one
		// The update takes the row's lock first: two replicas can't read the same number.
		err := t.queryRow(ctx, `UPDATE agents SET epoch = epoch + 1 WHERE id = $1 RETURNING epoch - 1, acked_epoch, generation, removed_at, instance, kept_instance, kept_epoch, earlier, prev_instance, prev_epoch`, id).
			Scan(&s.Epoch, &s.Acked, &gen, &removed, &s.Instance, &s.Kept, &s.KeptEpoch, &s.Earlier, &prev, &prevEpoch)
		if err != nil || removed.Valid || gen != c.Generation {
			return notFound(cmp.Or(err, sql.ErrNoRows), "this agent isn't registered with this key any more")
		}
		if err := t.queryRow(ctx, `SELECT incarnation FROM store_state WHERE id = 1`).Scan(&incarnation); err != nil {
			return err
		}
		if s.Earlier == "" && prev != "" {
			s.Earlier = fleet.HolderBefore(prev, prevEpoch, c.At)
		}
		before := s
		if verdict = s.Judge(c, incarnation<<incarnationShift+1); s == before {
			return errUnchanged
		}
		epoch = s.Epoch
		// Whoever is there with its key has been seen, also when another one was turned away.
		_, err = t.exec(ctx, `UPDATE agents SET epoch = $2, instance = $3, kept_instance = $4, kept_epoch = $5, earlier = $6, prev_instance = '', prev_epoch = 0, last_seen = $7 WHERE id = $1`,
			id, s.Epoch, s.Instance, s.Kept, s.KeptEpoch, s.Earlier, micros(now))
		return err
	})
	if err != nil && !errors.Is(err, errUnchanged) {
		return 0, "", err
	}
	return verdict.Epoch(epoch), verdict, nil
}

// AckEpoch notes that the agent has stored this epoch. A number at or below one that was
// acknowledged already, above the current one, or of another generation changes nothing.
func (db *DB) AckEpoch(ctx context.Context, id fleet.AgentID, generation, epoch int64) error {
	return db.inTx(ctx, func(t *tx) error {
		_, err := t.exec(ctx, `UPDATE agents SET acked_epoch = $3, kept_instance = CASE WHEN kept_epoch < $3 THEN '' ELSE kept_instance END
			WHERE id = $1 AND generation = $2 AND acked_epoch < $3 AND epoch >= $3`, body.Clean(string(id), maxAgent), generation, epoch)
		return err
	})
}

// UpdateFacts replaces what the host says of itself; the text is cleaned and cut. It does
// nothing when epoch isn't the agent's current one, and writes nothing when all is as it
// was. The snapshot has it when UpdateFacts returns.
func (db *DB) UpdateFacts(ctx context.Context, id fleet.AgentID, epoch int64, facts protocol.Facts, caps []protocol.Capability) error {
	f, c := factsText(facts, caps)
	var now int64
	var oldF, oldC string
	err := db.queryRow(ctx, `SELECT epoch, facts, capabilities FROM agents WHERE id = $1`, body.Clean(string(id), maxAgent)).Scan(&now, &oldF, &oldC)
	if err != nil {
		return db.failed(notFound(err, noAgent))
	}
	if now != epoch || (oldF == f && oldC == c) {
		return nil
	}
	return db.changePolicy(ctx, fleet.AdminEvent{}, func(t *tx, rev int64) error {
		n, err := t.exec(ctx, `UPDATE agents SET facts = $3, capabilities = $4, rev = $5 WHERE id = $1 AND epoch = $2 AND removed_at IS NULL`, string(id), epoch, f, c, rev)
		if err == nil && n == 0 {
			return errUnchanged
		}
		return err
	})
}

// TouchLastSeen notes that these agents were seen at at, unless they were seen later
// already. The snapshot shows it within pollInterval; it's written later, together with
// others, at the latest by Close.
func (db *DB) TouchLastSeen(_ context.Context, at time.Time, ids ...fleet.AgentID) error {
	db.touches.AddAgents(at, ids)
	return nil
}

// Quarantine notes that something is wrong with an agent's identity or behaviour, for
// operators to see: reason is duplicate, forked, replaced or violations; until is zero when
// only a new key ends it. A new reason is an administrative row of the record too. It doesn't end
// a live connection. A new generation clears it.
func (db *DB) Quarantine(ctx context.Context, id fleet.AgentID, reason string, at, until time.Time) error {
	reason = body.Clean(reason, maxName)
	ev := fleet.AdminEvent{Principal: "system:tunnel", Action: "agent.quarantine", Object: string(id), Detail: map[string]string{"reason": reason}, At: at}
	if q, ok := db.Snapshot().Quarantined[id]; ok && q.Reason == reason {
		ev.Action = "" // known: only its times move
	}
	return db.changePolicy(ctx, ev, func(t *tx, rev int64) error {
		if err := t.alive(ctx, id); err != nil {
			return err
		}
		_, err := t.exec(ctx, `UPDATE agents SET quarantine = $2, quarantined_at = $3, quarantine_until = $4, rev = $5 WHERE id = $1`, string(id), reason, micros(at), micros(until), rev)
		return err
	})
}

func labelText(labels map[string]string) string {
	m := make(map[string]string, len(labels))
	for k, v := range labels {
		m[body.Clean(k, maxName)] = body.Clean(v, maxFact)
	}
	return string(body.Marshal(m))
}

// factsText cleans what a host says and encodes it for the row.
func factsText(f protocol.Facts, caps []protocol.Capability) (facts, capabilities string) {
	for _, s := range []*string{&f.Hostname, &f.OS, &f.OSVersion, &f.Arch, &f.RunAs, &f.AgentVersion} {
		*s = body.Clean(*s, maxFact)
	}
	roots := make([]string, 0, min(len(f.Roots), maxRoots))
	for _, r := range f.Roots[:cap(roots)] {
		roots = append(roots, body.Clean(r, maxDescription))
	}
	f.Roots = roots
	list := make([]protocol.Capability, 0, min(len(caps), maxCapabilities))
	for _, c := range caps[:cap(list)] {
		list = append(list, protocol.Capability{Name: body.Clean(c.Name, maxName), Version: c.Version})
	}
	return string(body.Marshal(f)), string(body.Marshal(list))
}
