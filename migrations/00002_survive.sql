-- What calls need to survive a cut, a restart and a host that is away. A plain call writes
-- no page more than before: the new columns are short, the new table and index are for the
-- few that are queued or whose end isn't known.

-- +goose Up

-- boot is the agent's journal and boot when the call was made, or sent if it was queued.
-- queue_until is when a queued call expires. evidence is what was learnt after an outcome
-- of outcome_unknown. sent_id and evidence_id lead to their rows of the record.
ALTER TABLE calls ADD COLUMN boot TEXT;
ALTER TABLE calls ADD COLUMN queue_until BIGINT;
ALTER TABLE calls ADD COLUMN sent_id TEXT;
ALTER TABLE calls ADD COLUMN evidence TEXT;
ALTER TABLE calls ADD COLUMN evidence_at BIGINT;
ALTER TABLE calls ADD COLUMN evidence_id TEXT;

-- The exact argument bytes of calls that wait for their agent. A row goes when its call is
-- sent or ends.
CREATE TABLE queued (
    call_id TEXT  NOT NULL PRIMARY KEY REFERENCES calls (id) ON DELETE CASCADE,
    args    BYTEA NOT NULL
);

CREATE INDEX calls_unsettled ON calls (agent, id) WHERE state = 'outcome_unknown' AND evidence IS NULL;
-- Who has started background jobs, and where: they're stopped with their credential.
CREATE INDEX calls_jobs ON calls (id, principal, agent) WHERE tool = 'job_start';

-- +goose Down
DROP INDEX calls_jobs;
DROP INDEX calls_unsettled;
DROP TABLE queued;
ALTER TABLE calls DROP COLUMN evidence_id;
ALTER TABLE calls DROP COLUMN evidence_at;
ALTER TABLE calls DROP COLUMN evidence;
ALTER TABLE calls DROP COLUMN sent_id;
ALTER TABLE calls DROP COLUMN queue_until;
ALTER TABLE calls DROP COLUMN boot;
