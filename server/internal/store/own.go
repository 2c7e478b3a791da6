package store

import (
	"context"
	"errors"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// ownWait is how long a starting server waits for one that is just stopping.
const ownWait = 5 * time.Second

// Own makes this process the one server of the database, until release: a second one would
// take the first one's open calls for orphans and end them in the record. Commands that
// administer beside a server don't need it. When a server has it already the error is a
// *fleet.Error with conflict.
func (db *DB) Own(ctx context.Context) (release func() error, err error) {
	return db.hold(ctx, "serve")
}

func (db *DB) hold(ctx context.Context, how string) (release func() error, err error) {
	wait, cancel := context.WithTimeout(ctx, ownWait)
	defer cancel()
	release, err = db.dialect.lock(wait, db.write, how)
	if err == nil {
		return release, nil
	}
	if ctx.Err() == nil && (errors.Is(err, context.DeadlineExceeded) || wait.Err() != nil) {
		return nil, fleet.Wrap(protocol.CodeConflict, err, "another Drover server is running on this data; stop it first, or give this one a data folder or database of its own (several on one database need the same --nats-url each)")
	}
	return nil, fleet.Wrap(protocol.CodeUnavailable, err, "the lock of the server's data can't be taken: %s", db.dialect.hint())
}
