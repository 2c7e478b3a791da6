-- The replicas that serve this database together. A replica raises its beat while it lives;
-- the open calls of an instance that isn't here belong to nobody. A server that is alone has
-- no row.

-- +goose Up
CREATE TABLE replicas (
    instance   TEXT   NOT NULL PRIMARY KEY,
    beat       BIGINT NOT NULL,
    started_at BIGINT NOT NULL
);

-- +goose Down
DROP TABLE replicas;
