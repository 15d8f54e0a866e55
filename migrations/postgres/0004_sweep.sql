-- Bookkeeping of the sweep, which writes no event: how far a log was verified in the log store, and when its rows were
-- last sent again.
ALTER TABLE agent_runtime.tasks
    ADD COLUMN verified_seq   bigint  NOT NULL DEFAULT 0,
    ADD COLUMN republished_at timestamptz,
    ADD COLUMN republications integer NOT NULL DEFAULT 0;

-- The sweep's second work list: what is closed and waits to be archived. A log that failed its verification three times
-- is reported and left.
CREATE INDEX tasks_to_archive ON agent_runtime.tasks (closed_at, organization_id, id)
    WHERE outcome IS NOT NULL AND log_archived_at IS NULL AND verify_failures < 3;
-- What was left, for the metric that reports it.
CREATE INDEX tasks_log_mismatch ON agent_runtime.tasks (organization_id, id)
    WHERE log_archived_at IS NULL AND verify_failures >= 3;

-- Which process does what only one may do at a time. A row, not a lock of the session: those break behind poolers.
CREATE TABLE agent_runtime.worker_leases (
    name       text        PRIMARY KEY,
    holder     uuid        NOT NULL,
    expires_at timestamptz NOT NULL
);
