package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store/body"
)

// PAT is a personal access token as the store keeps it: never its text, only the SHA-256
// of it. Values reached through a Snapshot are shared and never written to.
type PAT struct {
	ID         string
	Name       string
	Hash       [32]byte
	Admin      bool
	Grant      fleet.Grant
	CreatedAt  time.Time
	ExpiresAt  time.Time // zero: never
	RevokedAt  time.Time // zero unless revoked
	LastUsedAt time.Time // zero before the first use; up to touchInterval behind
	CreatedBy  string    // the principal
}

// grantJSON is how a grant is stored.
type grantJSON struct {
	Agents fleet.AgentSet `json:"agents"`
	Tools  fleet.ToolSet  `json:"tools"`
}

// CreatePAT stores a token and records ev beside it. A second token with an id or a hash
// that exists is a conflict.
func (db *DB) CreatePAT(ctx context.Context, p PAT, ev fleet.AdminEvent) error {
	grants := body.Marshal(grantJSON{p.Grant.Agents, p.Grant.Tools})
	err := db.changePolicy(ctx, ev, func(t *tx, rev int64) error {
		_, err := t.exec(ctx, `INSERT INTO pats (id, name, hash, admin, grants, created_at, created_by, expires_at, rev) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
			body.Clean(p.ID, maxName), body.Clean(p.Name, maxName), p.Hash[:], p.Admin, string(grants), micros(p.CreatedAt), body.Clean(p.CreatedBy, maxName), micros(p.ExpiresAt), rev)
		if err != nil && db.dialect.duplicate(err) {
			return fleet.Wrap(protocol.CodeConflict, err, "a token with this id exists already")
		}
		return err
	})
	return err
}

// PATs lists all tokens, the newest first, revoked and expired ones too.
func (db *DB) PATs(ctx context.Context) ([]PAT, error) {
	var out []PAT
	err := db.query(ctx, func(row scanner) error {
		p, err := scanPAT(row)
		if err == nil {
			if at := db.touches.PAT(p.ID); at.After(p.LastUsedAt) {
				p.LastUsedAt = at
			}
			out = append(out, *p)
		}
		return err
	}, `SELECT `+patColumns+` FROM pats ORDER BY created_at DESC, id DESC`)
	return out, err
}

// RevokePAT ends a token and records ev beside it; not_found if there's none. One that was
// revoked stays so, and nothing is recorded again.
func (db *DB) RevokePAT(ctx context.Context, id string, ev fleet.AdminEvent) error {
	id = body.Clean(id, maxName)
	return db.changePolicy(ctx, ev, func(t *tx, rev int64) error {
		var revoked sql.NullInt64
		err := notFound(t.queryRow(ctx, `SELECT revoked_at FROM pats WHERE id = $1`, id).Scan(&revoked), "there's no such token; drover pat list shows their ids")
		if err != nil {
			return err
		}
		if revoked.Valid {
			return errUnchanged
		}
		at := ev.At
		if at.IsZero() {
			at = time.Now()
		}
		_, err = t.exec(ctx, `UPDATE pats SET revoked_at = $2, rev = $3 WHERE id = $1`, id, micros(at), rev)
		return err
	})
}

// TouchPAT notes that a token was used. It's written later, together with others.
func (db *DB) TouchPAT(id string, at time.Time) { db.touches.AddPAT(id, at) }

const patColumns = `id, name, hash, admin, grants, created_at, created_by, expires_at, revoked_at, last_used_at`

func scanPAT(row scanner) (*PAT, error) {
	var p PAT
	var hash []byte
	var grants string
	var created, expires, revoked, used sql.NullInt64
	if err := row.Scan(&p.ID, &p.Name, &hash, &p.Admin, &grants, &created, &p.CreatedBy, &expires, &revoked, &used); err != nil {
		return nil, err
	}
	if copy(p.Hash[:], hash) != len(p.Hash) {
		return nil, fmt.Errorf("store: token %s has a damaged hash", p.ID)
	}
	var g grantJSON
	if err := json.Unmarshal([]byte(grants), &g); err != nil {
		return nil, fmt.Errorf("store: token %s has a damaged grant: %w", p.ID, err)
	}
	p.Grant = fleet.Grant{Agents: g.Agents, Tools: g.Tools}
	p.CreatedAt, p.ExpiresAt, p.RevokedAt, p.LastUsedAt = fromMicros(created), fromMicros(expires), fromMicros(revoked), fromMicros(used)
	return &p, nil
}
