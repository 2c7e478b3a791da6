-- Both engines run this file. Times are microseconds since 1970 in UTC; ids are text made
-- by the program; JSON is text; bytes are bound as bytes only.

-- +goose Up

-- One row. policy_version moves in every transaction that changes what a decision may
-- depend on; incarnation tells one life of the database from the next.
CREATE TABLE store_state (
    id             BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    policy_version BIGINT NOT NULL,
    incarnation    BIGINT NOT NULL
);
INSERT INTO store_state (id, policy_version, incarnation) VALUES (1, 1, 1);

-- The append-only record. body is the exact bytes that leaf is the hash of:
-- SHA-256(0x00 || body). The other columns repeat what queries need. An intent's id is its
-- call's. Every index costs each call a page written twice, so there are few: a call's
-- rows are found by calls, an agent's calls by record_agent.
CREATE TABLE record (
    id        TEXT   NOT NULL PRIMARY KEY,
    at        BIGINT NOT NULL,
    kind      TEXT   NOT NULL,
    call_id   TEXT,
    agent     TEXT,
    principal TEXT,
    body      BYTEA  NOT NULL,
    leaf      BYTEA  NOT NULL
);
CREATE INDEX record_agent ON record (agent, id);

-- The calls as lists show them: a projection of the record, plus what isn't kept for ever
-- (salts, hashes of the arguments for joining, the message).
CREATE TABLE calls (
    id                TEXT   NOT NULL PRIMARY KEY,
    principal         TEXT   NOT NULL,
    name              TEXT   NOT NULL,
    client            TEXT   NOT NULL,
    edge              TEXT   NOT NULL,
    agent             TEXT   NOT NULL,
    generation        BIGINT NOT NULL,
    tool              TEXT   NOT NULL,
    effect            TEXT   NOT NULL,
    args              TEXT   NOT NULL,
    commitment        BYTEA  NOT NULL,
    salt              BYTEA,
    idempotency_key   TEXT,
    join_key          TEXT,
    match_hash        TEXT   NOT NULL,
    instance          TEXT   NOT NULL,
    state             TEXT   NOT NULL,
    code              TEXT   NOT NULL,
    reason            TEXT   NOT NULL,
    message           TEXT   NOT NULL,
    exit_code         BIGINT,
    took_us           BIGINT NOT NULL,
    result_commitment BYTEA,
    result_salt       BYTEA,
    created_at        BIGINT NOT NULL,
    deadline          BIGINT,
    finished_at       BIGINT,
    outcome_id        TEXT
);
CREATE INDEX calls_principal ON calls (principal, id);
CREATE INDEX calls_open ON calls (id) WHERE finished_at IS NULL;
CREATE UNIQUE INDEX calls_key ON calls (principal, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX calls_join ON calls (principal, join_key, id) WHERE join_key IS NOT NULL;

-- Results, for a day. They're pruned in the order of call_id, which is that of time.
CREATE TABLE results (
    call_id    TEXT   NOT NULL PRIMARY KEY REFERENCES calls (id) ON DELETE CASCADE,
    body       BYTEA  NOT NULL,
    created_at BIGINT NOT NULL
);

-- Agents. A removed one keeps its row for ever, so that its id is never given out again.
-- rev is the policy_version that last changed the row.
CREATE TABLE agents (
    id               TEXT   NOT NULL PRIMARY KEY,
    generation       BIGINT NOT NULL,
    labels           TEXT   NOT NULL,
    description      TEXT   NOT NULL,
    facts            TEXT   NOT NULL,
    capabilities     TEXT   NOT NULL,
    created_at       BIGINT NOT NULL,
    last_seen        BIGINT,
    instance         TEXT   NOT NULL,
    epoch            BIGINT NOT NULL,
    acked_epoch      BIGINT NOT NULL,
    quarantine       TEXT   NOT NULL,
    quarantined_at   BIGINT,
    quarantine_until BIGINT,
    removed_at       BIGINT,
    rev              BIGINT NOT NULL
);
CREATE INDEX agents_rev ON agents (rev);

-- Every key an agent ever had, by generation.
CREATE TABLE agent_keys (
    agent_id   TEXT   NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    generation BIGINT NOT NULL,
    public_key BYTEA  NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (agent_id, generation)
);

-- One-time enrolment tokens. The token's secret isn't here: only its public key.
CREATE TABLE enrol_tokens (
    id              TEXT    NOT NULL PRIMARY KEY,
    public_key      BYTEA   NOT NULL,
    agent_id        TEXT    NOT NULL,
    replaces        BOOLEAN NOT NULL,
    labels          TEXT    NOT NULL,
    created_at      BIGINT  NOT NULL,
    created_by      TEXT    NOT NULL,
    expires_at      BIGINT  NOT NULL,
    used_at         BIGINT,
    used_key        BYTEA,
    used_generation BIGINT,
    revoked_at      BIGINT
);
CREATE INDEX enrol_tokens_agent ON enrol_tokens (agent_id);

-- Personal access tokens, by the hash of their text.
CREATE TABLE pats (
    id           TEXT    NOT NULL PRIMARY KEY,
    name         TEXT    NOT NULL,
    hash         BYTEA   NOT NULL,
    admin        BOOLEAN NOT NULL,
    grants       TEXT    NOT NULL,
    created_at   BIGINT  NOT NULL,
    created_by   TEXT    NOT NULL,
    expires_at   BIGINT,
    revoked_at   BIGINT,
    last_used_at BIGINT,
    rev          BIGINT  NOT NULL
);
CREATE UNIQUE INDEX pats_hash ON pats (hash);
CREATE INDEX pats_rev ON pats (rev);

-- +goose Down
DROP TABLE pats;
DROP TABLE enrol_tokens;
DROP TABLE agent_keys;
DROP TABLE agents;
DROP TABLE results;
DROP TABLE calls;
DROP TABLE record;
DROP TABLE store_state;
