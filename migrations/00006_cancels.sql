-- A cancel that was asked for is on record before it's answered, so that it counts also when
-- the agent is away and the server ends.

-- +goose Up

-- cancel_at and cancel_by: when the end of an open call was asked for, and by whom.
-- cancel_id leads to its row of the record.
ALTER TABLE calls ADD COLUMN cancel_at BIGINT;
ALTER TABLE calls ADD COLUMN cancel_by TEXT;
ALTER TABLE calls ADD COLUMN cancel_id TEXT;
CREATE INDEX calls_cancelled ON calls (instance) WHERE cancel_at IS NOT NULL AND finished_at IS NULL;

-- +goose Down
DROP INDEX calls_cancelled;
ALTER TABLE calls DROP COLUMN cancel_id;
ALTER TABLE calls DROP COLUMN cancel_by;
ALTER TABLE calls DROP COLUMN cancel_at;
