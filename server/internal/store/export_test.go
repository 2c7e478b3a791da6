package store

import (
	"context"
	"database/sql"

	"github.com/pressly/goose/v3"
)

// What the tests of package store_test need from inside.

// Pools returns the reading and the writing pool.
func (db *DB) Pools() (read, write *sql.DB) { return db.read, db.write }

// Provider returns the migrations as goose runs them.
func (db *DB) Provider() (*goose.Provider, error) { return db.provider() }

// InTx runs statements in one transaction of the administrative path.
func (db *DB) InTx(ctx context.Context, queries ...string) error {
	return db.inTx(ctx, func(t *tx) error {
		for _, q := range queries {
			if _, err := t.exec(ctx, q); err != nil {
				return err
			}
		}
		return nil
	})
}
