-- The permanent log. The columns are those of the embedded log store (migrations/postgres/0005_agent_log.sql).
--
-- Every statement may run again and ends with a semicolon at the end of a line: they are sent one by one.
--
-- Rows may arrive more than once: a repeated one lands beside its twin, and merges keep that of the highest version.
-- No TTL: the log is kept for good.
--
-- PostgreSQL is pruned on the word of these tables, so what is acknowledged must outlive a power cut. By default
-- ClickHouse leaves that to the operating system's cache:
--   fsync_after_insert: the files of a part are on disk before the insert is answered,
--   fsync_part_directory: so are their names,
--   min_compressed_bytes_to_fsync_after_merge: a merge replaces parts that were on disk, so its result must be too.
--
-- index_granularity: most reads are of one task, a hundred rows; of the usual 8,192 rows a mark, payloads and all, most
-- would be read in vain.

CREATE TABLE IF NOT EXISTS agent_task_events (
    organization_id UUID,
    task_id         UUID,
    seq             Int64,
    event_id        UUID,
    type            LowCardinality(String),
    schema_version  Int32,
    actor_kind      LowCardinality(String),
    actor_id        String,
    channel         LowCardinality(Nullable(String)),
    session_id      Nullable(UUID),
    at              DateTime64(6, 'UTC'),
    recorded_at     DateTime64(6, 'UTC'),
    payload         String CODEC(ZSTD), -- text, so that no digit, key or order may change
    redacted        Array(String),
    digest          String,
    short_number    Int64,
    agent_id        UUID,
    agent_slug      LowCardinality(String),
    project_id      Nullable(UUID),
    version         UInt64
) ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(recorded_at)
ORDER BY (organization_id, task_id, seq, event_id)
SETTINGS index_granularity = 1024, fsync_after_insert = 1, fsync_part_directory = 1,
    min_compressed_bytes_to_fsync_after_merge = 1;

CREATE TABLE IF NOT EXISTS agent_usage (
    organization_id              UUID,
    task_id                      UUID,
    report_id                    UUID,
    seq                          Int64,
    account_id                   UUID,
    idempotency_key              String,
    session_id                   Nullable(UUID),
    model_id                     LowCardinality(String),
    model_ref                    Nullable(UUID),
    tokens_in                    Int64,
    tokens_out                   Int64,
    cache_read_tokens            Int64,
    cache_write_tokens           Int64,
    input_cost_per_million       Nullable(Decimal(18, 6)),
    output_cost_per_million      Nullable(Decimal(18, 6)),
    cache_read_cost_per_million  Nullable(Decimal(18, 6)),
    cache_write_cost_per_million Nullable(Decimal(18, 6)),
    cost                         Nullable(Decimal(38, 12)),
    measured                     Bool,
    corrects                     Nullable(UUID),
    unmeasured_delta             Int16,
    unpriced_delta               Int16,
    recorded_at                  DateTime64(6, 'UTC'),
    short_number                 Int64,
    agent_id                     UUID,
    agent_slug                   LowCardinality(String),
    project_id                   Nullable(UUID),
    project_slug                 LowCardinality(Nullable(String)),
    version                      UInt64
) ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(recorded_at)
ORDER BY (organization_id, task_id, report_id)
SETTINGS index_granularity = 1024, fsync_after_insert = 1, fsync_part_directory = 1,
    min_compressed_bytes_to_fsync_after_merge = 1;

-- Resolutions and terminal outcomes: a projection of events, not a second place to write them. What is inserted above is
-- copied here in the same insert, in the order in which the operations log is read: the log itself, in the order of its
-- tasks, would have to be read whole for the newest page. Nothing is inserted before the view is there: whoever writes
-- looks for it first.
CREATE TABLE IF NOT EXISTS agent_operations AS agent_task_events
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(recorded_at)
ORDER BY (organization_id, recorded_at, task_id, seq, event_id)
SETTINGS index_granularity = 1024, fsync_after_insert = 1, fsync_part_directory = 1,
    min_compressed_bytes_to_fsync_after_merge = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS agent_operations_feed TO agent_operations AS
SELECT * FROM agent_task_events WHERE type IN ('outcome.set', 'request.resolved');

-- ClickHouse's JSON functions give up on a document with a number beyond 64 bits or a double (a person's constraints
-- may have one), so there the status is looked for in the text: the server writes it before everything that people
-- wrote, and without white space.
CREATE OR REPLACE VIEW operations_log AS
SELECT if(type = 'outcome.set', 'outcome', 'resolution') AS kind, e.*
FROM agent_operations AS e FINAL
WHERE type = 'outcome.set'
    OR (type = 'request.resolved'
        AND if(isValidJSON(payload), JSONExtractString(payload, 'status'),
                simpleJSONExtractString(payload, 'status'))
            IN ('answered', 'approved', 'rejected'));
