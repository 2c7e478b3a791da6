-- Which key the database is served with: its fingerprint, "" before the first server. The
-- agents that are enrolled here trust that key and no other.

-- +goose Up
ALTER TABLE store_state ADD COLUMN server_key TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE store_state DROP COLUMN server_key;
