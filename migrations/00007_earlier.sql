-- Which processes had an agent's identity before the present one, as the fleet package writes
-- them down; prev_instance, the last of them, is read where this is empty.

-- +goose Up
ALTER TABLE agents ADD COLUMN earlier TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE agents DROP COLUMN earlier;
