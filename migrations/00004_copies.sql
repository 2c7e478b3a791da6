-- What tells a copied identity from the original. kept_instance is the process that an
-- agent's identity is kept for, "" for any, until that has acknowledged an epoch above
-- kept_epoch; prev_instance was connected before the present one, and had acknowledged
-- prev_epoch.

-- +goose Up
ALTER TABLE agents ADD COLUMN kept_instance TEXT NOT NULL DEFAULT '';
ALTER TABLE agents ADD COLUMN kept_epoch BIGINT NOT NULL DEFAULT 0;
ALTER TABLE agents ADD COLUMN prev_instance TEXT NOT NULL DEFAULT '';
ALTER TABLE agents ADD COLUMN prev_epoch BIGINT NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE agents DROP COLUMN prev_epoch;
ALTER TABLE agents DROP COLUMN prev_instance;
ALTER TABLE agents DROP COLUMN kept_epoch;
ALTER TABLE agents DROP COLUMN kept_instance;
