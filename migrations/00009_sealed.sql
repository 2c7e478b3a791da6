-- What a copy of the database shouldn't tell is sealed, or hashed with a key, that follows from
-- the server's key.

-- +goose Up

-- sealed are the argument bytes of a queued call; args is empty then. They're in args, and sealed
-- is NULL, where a replica of the version before has written them, or has to read them.
ALTER TABLE queued ADD COLUMN sealed BYTEA;
-- seals tells a replica that reads what is sealed; those of the version before leave it 0.
ALTER TABLE replicas ADD COLUMN seals BIGINT NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE replicas DROP COLUMN seals;
ALTER TABLE queued DROP COLUMN sealed;
