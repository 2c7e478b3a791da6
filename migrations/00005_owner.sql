-- Which process serves the database alone: its instance, the latest that took the lock for
-- it. NULL while several serve it together, and before the first.

-- +goose Up
ALTER TABLE store_state ADD COLUMN owner TEXT;

-- +goose Down
ALTER TABLE store_state DROP COLUMN owner;
