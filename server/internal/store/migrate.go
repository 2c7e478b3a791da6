package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/pressly/goose/v3"

	"github.com/drover-fleet/drover/migrations"
)

// migrate brings the schema up to date, holding the engine's lock, so that programs that
// start at once do it one after the other.
func (db *DB) migrate(ctx context.Context) (err error) {
	lock, err := db.dialect.lock(ctx, db.write, "migrate")
	if err != nil {
		return fmt.Errorf("the lock of the database's schema: %w", err)
	}
	defer func() { err = errors.Join(err, lock.release()) }()
	p, err := db.provider()
	if err != nil {
		return err
	}
	current, target, err := p.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("the database's schema version can't be read: %w", err)
	}
	if current > target {
		return fmt.Errorf("the database was written by a newer Drover (its schema is version %d, this program knows up to %d): run that version or a later one, or restore the backup made before the upgrade", current, target)
	}
	done, err := p.Up(ctx)
	if err != nil {
		return fmt.Errorf("the database's schema can't be brought up to date: %w", err)
	}
	if len(done) > 0 {
		db.log.Info("the database's schema was brought up to date", "from", current, "to", target)
	}
	return nil
}

func (db *DB) provider() (*goose.Provider, error) {
	return goose.NewProvider(db.dialect.goose(), db.write, migrations.FS, goose.WithDisableGlobalRegistry(true))
}
