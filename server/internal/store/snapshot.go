package store

import (
	"context"
	"crypto/ed25519"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Snapshot is what decisions need, at one policy version. It's never written to: a change
// makes a new one.
type Snapshot struct {
	Version     int64
	Incarnation int64                              // raised when a database was restored
	Agents      map[fleet.AgentID]*fleet.Agent     // without the removed
	Quarantined map[fleet.AgentID]fleet.Quarantine // of these agents, those with a note
	PATs        map[[32]byte]*PAT                  // by SHA-256 of the token; without the revoked
}

func emptySnapshot() *Snapshot {
	return &Snapshot{
		Agents: map[fleet.AgentID]*fleet.Agent{}, Quarantined: map[fleet.AgentID]fleet.Quarantine{}, PATs: map[[32]byte]*PAT{},
	}
}

// Snapshot is the latest snapshot. It never blocks and is never nil.
func (db *DB) Snapshot() *Snapshot { return db.snap.Load() }

// Quarantined returns the latest note on the agent, if it has one.
func (db *DB) Quarantined(id fleet.AgentID) (fleet.Quarantine, bool) {
	q, ok := db.Snapshot().Quarantined[id]
	return q, ok
}

// Refresh lets the snapshot follow the database, if its policy version moved; it reads only
// the rows that changed. After a change by this DB it has happened already, after one by
// another process it happens within pollInterval.
func (db *DB) Refresh(ctx context.Context) error {
	select {
	case db.refresh <- struct{}{}:
		defer func() { <-db.refresh }()
	case <-ctx.Done():
		return db.failed(context.Cause(ctx))
	}
	old := db.snap.Load()
	var version, incarnation int64
	if err := db.queryRow(ctx, `SELECT policy_version, incarnation FROM store_state WHERE id = 1`).Scan(&version, &incarnation); err != nil {
		return db.failed(err)
	}
	fresh := db.touches.TakeFresh()
	if version == old.Version && incarnation == old.Incarnation && len(fresh) == 0 {
		return nil
	}
	next, err := db.load(ctx, old)
	if err != nil {
		return db.failed(err)
	}
	next.see(fresh)
	db.snap.Store(next)
	return nil
}

// load reads what changed since old in one consistent view. A version below old's is
// another database under the same name: then everything is read.
func (db *DB) load(ctx context.Context, old *Snapshot) (*Snapshot, error) {
	t, err := db.read.BeginTx(ctx, &sql.TxOptions{Isolation: db.dialect.snapshotIsolation(), ReadOnly: true})
	if err != nil {
		return nil, err
	}
	next, err := db.loadIn(ctx, t, old)
	return next, errors.Join(err, ignoreDone(t.Rollback()))
}

func (db *DB) loadIn(ctx context.Context, t *sql.Tx, old *Snapshot) (*Snapshot, error) {
	next := &Snapshot{Agents: maps.Clone(old.Agents), Quarantined: maps.Clone(old.Quarantined), PATs: maps.Clone(old.PATs)}
	if err := t.QueryRowContext(ctx, `SELECT policy_version, incarnation FROM store_state WHERE id = 1`).Scan(&next.Version, &next.Incarnation); err != nil {
		return nil, err
	}
	since := old.Version
	if next.Version < old.Version || next.Incarnation != old.Incarnation {
		empty := emptySnapshot()
		next.Agents, next.Quarantined, next.PATs = empty.Agents, empty.Quarantined, empty.PATs
		since = 0
	}
	if next.Version == since {
		return next, nil
	}
	rows, err := t.QueryContext(ctx, db.dialect.rebind(agentQuery+` WHERE a.rev > $1`), since)
	if err == nil {
		err = each(rows, next.addAgent)
	}
	if err != nil {
		return nil, err
	}
	rows, err = t.QueryContext(ctx, db.dialect.rebind(`SELECT `+patColumns+` FROM pats WHERE rev > $1`), since)
	if err == nil {
		err = each(rows, next.addPAT)
	}
	return next, err
}

func (s *Snapshot) addAgent(row scanner) error {
	a, err := scanAgent(row)
	if err != nil {
		return err
	}
	if old := s.Agents[a.ID]; old != nil && old.LastSeen.After(a.LastSeen) {
		a.LastSeen = old.LastSeen // not written yet
	}
	delete(s.Agents, a.ID)
	delete(s.Quarantined, a.ID)
	if a.RemovedAt.IsZero() {
		s.Agents[a.ID] = &a.Agent
		if a.Quarantine.Reason != "" {
			s.Quarantined[a.ID] = a.Quarantine
		}
	}
	return nil
}

func (s *Snapshot) addPAT(row scanner) error {
	p, err := scanPAT(row)
	if err != nil {
		return err
	}
	delete(s.PATs, p.Hash)
	if p.RevokedAt.IsZero() {
		s.PATs[p.Hash] = p
	}
	return nil
}

// see puts times of last sight into a snapshot that isn't published yet.
func (s *Snapshot) see(fresh map[fleet.AgentID]time.Time) {
	for id, at := range fresh {
		if a := s.Agents[id]; a != nil && at.After(a.LastSeen) {
			b := *a
			b.LastSeen = at
			s.Agents[id] = &b
		}
	}
}

// AgentRow is an agent as the store keeps it, also one that was removed.
type AgentRow struct {
	fleet.Agent
	RemovedAt  time.Time // zero unless removed
	Quarantine fleet.Quarantine
	Epoch      int64 // of its latest connection, 0 before the first
}

const agentQuery = `SELECT a.id, a.generation, k.public_key, a.labels, a.description, a.facts, a.capabilities, a.created_at, a.last_seen, a.removed_at, a.quarantine, a.quarantined_at, a.quarantine_until, a.epoch FROM agents a LEFT JOIN agent_keys k ON k.agent_id = a.id AND k.generation = a.generation`

func scanAgent(row scanner) (*AgentRow, error) {
	var a AgentRow
	var key []byte
	var labels, facts, caps string
	var created, seen, removed, qAt, qUntil sql.NullInt64
	err := row.Scan((*string)(&a.ID), &a.Generation, &key, &labels, &a.Description, &facts, &caps, &created, &seen, &removed, &a.Quarantine.Reason, &qAt, &qUntil, &a.Epoch)
	if err != nil {
		return nil, err
	}
	if len(key) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("store: agent %s has no key of its generation", a.ID)
	}
	a.Key = key
	a.Fingerprint = protocol.Fingerprint(a.Key)
	err = errors.Join(json.Unmarshal([]byte(labels), &a.Labels), json.Unmarshal([]byte(facts), &a.Facts), json.Unmarshal([]byte(caps), &a.Capabilities))
	if err != nil {
		return nil, fmt.Errorf("store: agent %s has a damaged row: %w", a.ID, err)
	}
	a.CreatedAt, a.LastSeen, a.RemovedAt = fromMicros(created), fromMicros(seen), fromMicros(removed)
	a.Quarantine.At, a.Quarantine.Until = fromMicros(qAt), fromMicros(qUntil)
	return &a, nil
}
