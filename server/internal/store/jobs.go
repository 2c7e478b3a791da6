package store

import (
	"context"
	"time"

	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store/body"
)

// JobOwner is a principal that has started background jobs on an agent.
type JobOwner struct {
	Principal string
	Agent     fleet.AgentID
}

// JobOwners lists who has started background jobs, and where, in calls made after since.
func (db *DB) JobOwners(ctx context.Context, since time.Time) ([]JobOwner, error) {
	var out []JobOwner
	err := db.query(ctx, func(row scanner) error {
		var o JobOwner
		err := row.Scan(&o.Principal, (*string)(&o.Agent))
		out = append(out, o)
		return err
	}, `SELECT DISTINCT principal, agent FROM calls WHERE tool = 'job_start' AND id > $1`, body.IDAt(since))
	return out, err
}
