-- The embedded log store, for installations without ClickHouse: the same tables with the same columns. One row per key;
-- a higher version replaces a lower one.

CREATE SCHEMA agent_log;

CREATE TABLE agent_log.agent_task_events (
    organization_id uuid        NOT NULL,
    task_id         uuid        NOT NULL,
    seq             bigint      NOT NULL,
    event_id        uuid        NOT NULL,
    type            text        NOT NULL,
    schema_version  integer     NOT NULL,
    actor_kind      text        NOT NULL,
    actor_id        text        NOT NULL,
    channel         text,
    session_id      uuid,
    at              timestamptz NOT NULL,
    recorded_at     timestamptz NOT NULL,
    payload         text        NOT NULL, -- text, so that no digit, key or order may change
    redacted        text[]      NOT NULL,
    digest          text        NOT NULL,
    short_number    bigint      NOT NULL,
    agent_id        uuid        NOT NULL,
    agent_slug      text        NOT NULL,
    project_id      uuid,
    version         bigint      NOT NULL,
    PRIMARY KEY (organization_id, task_id, seq, event_id)
);

CREATE TABLE agent_log.agent_usage (
    organization_id              uuid        NOT NULL,
    task_id                      uuid        NOT NULL,
    report_id                    uuid        NOT NULL,
    seq                          bigint      NOT NULL,
    account_id                   uuid        NOT NULL,
    idempotency_key              text        NOT NULL,
    session_id                   uuid,
    model_id                     text        NOT NULL,
    model_ref                    uuid,
    tokens_in                    bigint      NOT NULL,
    tokens_out                   bigint      NOT NULL,
    cache_read_tokens            bigint      NOT NULL,
    cache_write_tokens           bigint      NOT NULL,
    input_cost_per_million       numeric(13, 6),
    output_cost_per_million      numeric(13, 6),
    cache_read_cost_per_million  numeric(13, 6),
    cache_write_cost_per_million numeric(13, 6),
    cost                         numeric(28, 12),
    measured                     boolean     NOT NULL,
    corrects                     uuid,
    unmeasured_delta             smallint    NOT NULL,
    unpriced_delta               smallint    NOT NULL,
    recorded_at                  timestamptz NOT NULL,
    short_number                 bigint      NOT NULL,
    agent_id                     uuid        NOT NULL,
    agent_slug                   text        NOT NULL,
    project_id                   uuid,
    project_slug                 text,
    version                      bigint      NOT NULL,
    PRIMARY KEY (organization_id, task_id, report_id)
);

CREATE INDEX agent_usage_time ON agent_log.agent_usage (organization_id, recorded_at);

-- Resolutions and terminal outcomes: a projection of events, not a second place to write them.
CREATE VIEW agent_log.operations_log AS
SELECT CASE type WHEN 'outcome.set' THEN 'outcome' ELSE 'resolution' END AS kind, e.*
FROM agent_log.agent_task_events e
WHERE type = 'outcome.set'
    OR (type = 'request.resolved' AND payload::json ->> 'status' IN ('answered', 'approved', 'rejected'));

CREATE INDEX operations_log_time ON agent_log.agent_task_events (organization_id, recorded_at, task_id, seq)
    WHERE type IN ('outcome.set', 'request.resolved');
