-- The state of tasks. Every key and unique index leads with organization_id: an organization is one shard's work, and
-- tenants are apart by key. Money is numeric(28, 12): exact, and the application refuses what does not fit.

CREATE SCHEMA agent_runtime;

CREATE TABLE agent_runtime.task_id_sequences (
    organization_id uuid   PRIMARY KEY,
    last_number     bigint NOT NULL CHECK (last_number >= 0)
);

CREATE TABLE agent_runtime.tasks (
    -- Identity and what creation pinned: these never change.
    organization_id       uuid        NOT NULL,
    id                    uuid        NOT NULL,
    short_number          bigint      NOT NULL CHECK (short_number >= 1),
    agent_id              uuid        NOT NULL,
    agent_slug            text        NOT NULL,
    agent_version         integer     NOT NULL,
    prompt_version        integer     NOT NULL,
    service_account_id    uuid        NOT NULL,
    project_id            uuid,
    project_slug          text,
    title                 text        NOT NULL,
    description           text        NOT NULL,
    subject               text,
    labels                jsonb       NOT NULL,
    params                json,
    origin_kind           text        NOT NULL CHECK (origin_kind IN ('human', 'schedule', 'webhook', 'task')),
    -- Who a creation key belongs to: the user, the scheduled task, the webhook or the parent task.
    origin_principal      text        NOT NULL,
    origin_delivery       text,
    origin_agent_id       uuid,
    parent_task_id        uuid,
    parent_short_number   bigint,
    created_by_account    uuid,
    idempotency_key       text,
    request_hash          bytea       CHECK (octet_length(request_hash) = 32),
    budget                numeric(28, 12) CHECK (budget >= 0),
    task_timeout_seconds  integer,
    max_depth             integer     NOT NULL,
    max_children          integer     NOT NULL,
    depth                 integer     NOT NULL CHECK (depth >= 0),
    created_at            timestamptz NOT NULL,
    -- Facts, changed only together with an event.
    owner                 text        NOT NULL,
    status                text        NOT NULL CHECK (status IN ('queued', 'running', 'blocked', 'paused', 'closed')),
    status_since          timestamptz NOT NULL,
    control               text        NOT NULL CHECK (control IN ('run', 'pause', 'cancel')),
    phase                 text,
    furthest_milestone    text,
    outcome               text        CHECK (outcome IN (
        'done_acted', 'done_nothing_to_act_on', 'no_reason_to_run', 'partial_capped', 'suppressed_duplicate',
        'superseded', 'cancelled_by_human', 'interrupted_by_operator', 'failed_at_gate', 'failed_external',
        'unmapped_subject', 'exceeded_ceiling', 'unhandled_no_actor', 'request_expired', 'refused_rate_ceiling')),
    outcome_reason        text,
    result                json,
    cost_total            numeric(28, 12) NOT NULL,
    set_aside             numeric(28, 12) NOT NULL CHECK (set_aside >= 0),
    tokens_in             bigint      NOT NULL,
    tokens_out            bigint      NOT NULL,
    cache_read_tokens     bigint      NOT NULL,
    cache_write_tokens    bigint      NOT NULL,
    unmeasured_reports    bigint      NOT NULL CHECK (unmeasured_reports >= 0),
    unpriced_reports      bigint      NOT NULL CHECK (unpriced_reports >= 0),
    open_requests         integer     NOT NULL CHECK (open_requests >= 0),
    open_sessions         integer     NOT NULL CHECK (open_sessions >= 0),
    open_children         integer     NOT NULL CHECK (open_children >= 0),
    last_generation       integer     NOT NULL CHECK (last_generation >= 0),
    taken_over            boolean     NOT NULL,
    last_seq              bigint      NOT NULL CHECK (last_seq >= 1),
    log_digest            bytea       NOT NULL CHECK (octet_length(log_digest) = 32),
    updated_at            timestamptz NOT NULL,
    closed_at             timestamptz,
    timeout_at            timestamptz,
    -- Bookkeeping of the sweep, which writes no event.
    dirty                 boolean     NOT NULL DEFAULT true,
    verified_at           timestamptz,
    verify_failures       integer     NOT NULL DEFAULT 0,
    log_archived_at       timestamptz,
    PRIMARY KEY (organization_id, id),
    UNIQUE (organization_id, short_number),
    -- Status is a function of the facts; the same function is domain::status.
    CONSTRAINT status_follows_from_the_facts CHECK (status = CASE
        WHEN outcome IS NOT NULL THEN 'closed'
        WHEN control = 'pause' THEN 'paused'
        WHEN open_requests > 0 THEN 'blocked'
        WHEN open_sessions > 0 THEN 'running'
        ELSE 'queued' END),
    CONSTRAINT closed_exactly_with_an_outcome CHECK ((outcome IS NULL) = (closed_at IS NULL)),
    CONSTRAINT a_closed_task_has_nothing_open CHECK (outcome IS NULL OR (open_sessions = 0 AND open_requests = 0)),
    -- done_acted takes no reason, every other outcome one of its own.
    CONSTRAINT outcome_and_reason_agree CHECK (CASE outcome
        WHEN 'done_acted' THEN outcome_reason IS NULL
        WHEN 'done_nothing_to_act_on' THEN
            coalesce(outcome_reason IN ('already_satisfied', 'no_findings', 'condition_cleared'), false)
        WHEN 'no_reason_to_run' THEN
            coalesce(outcome_reason IN ('precondition_not_met', 'subject_gone', 'disabled_by_policy'), false)
        WHEN 'partial_capped' THEN
            coalesce(outcome_reason IN ('turn_cap', 'time_cap', 'scope_cap', 'tool_cap'), false)
        WHEN 'suppressed_duplicate' THEN
            coalesce(outcome_reason IN ('same_subject_open', 'same_subject_recent', 'same_trigger'), false)
        WHEN 'superseded' THEN
            coalesce(outcome_reason IN ('newer_task', 'newer_trigger', 'replaced_by_operator'), false)
        WHEN 'cancelled_by_human' THEN
            coalesce(outcome_reason IN ('cancel_seen', 'cancelled_without_session', 'harness_lost'), false)
        WHEN 'interrupted_by_operator' THEN
            coalesce(outcome_reason IN ('harness_drain', 'deploy', 'forced_unconfirmed', 'emergency_stop'), false)
        WHEN 'failed_at_gate' THEN coalesce(outcome_reason IN ('approval_rejected', 'check_failed', 'policy_denied',
            'capability_missing', 'read_only_violation'), false)
        WHEN 'failed_external' THEN coalesce(outcome_reason IN ('dependency_unavailable', 'provider_error',
            'tool_error', 'credentials_rejected', 'internal_error'), false)
        WHEN 'unmapped_subject' THEN
            coalesce(outcome_reason IN ('no_project', 'no_repository', 'unknown_subject'), false)
        WHEN 'exceeded_ceiling' THEN
            coalesce(outcome_reason IN ('budget', 'task_timeout', 'turn_limit', 'token_limit'), false)
        WHEN 'unhandled_no_actor' THEN
            coalesce(outcome_reason IN ('no_harness', 'agent_disabled', 'agent_deleted', 'no_owner'), false)
        WHEN 'request_expired' THEN
            coalesce(outcome_reason IN ('feedback_expired', 'approval_expired'), false)
        WHEN 'refused_rate_ceiling' THEN
            coalesce(outcome_reason IN ('org_rate', 'agent_rate', 'trigger_rate'), false)
        ELSE outcome IS NULL AND outcome_reason IS NULL END),
    CONSTRAINT only_closed_tasks_are_archived CHECK (log_archived_at IS NULL OR outcome IS NOT NULL),
    CONSTRAINT a_task_origin_has_a_parent CHECK ((origin_kind = 'task') = (parent_task_id IS NOT NULL)),
    -- A parent is a task of the same organization.
    FOREIGN KEY (organization_id, parent_task_id) REFERENCES agent_runtime.tasks (organization_id, id)
) WITH (fillfactor = 70); -- room for HOT updates: no hot write touches an indexed column

CREATE UNIQUE INDEX tasks_creation_key
    ON agent_runtime.tasks (organization_id, origin_kind, origin_principal, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX tasks_newest ON agent_runtime.tasks (organization_id, created_at DESC, id DESC);
CREATE INDEX tasks_by_status ON agent_runtime.tasks (organization_id, status, status_since, id);
CREATE INDEX tasks_by_agent ON agent_runtime.tasks (organization_id, agent_id, created_at DESC, id DESC);
CREATE INDEX tasks_working ON agent_runtime.tasks (organization_id, agent_id) WHERE open_sessions > 0;
CREATE INDEX tasks_open_of_agent ON agent_runtime.tasks (organization_id, agent_id, id) WHERE outcome IS NULL;
CREATE INDEX tasks_waiting ON agent_runtime.tasks (organization_id) WHERE open_requests > 0;
CREATE INDEX tasks_children ON agent_runtime.tasks (organization_id, parent_task_id) WHERE parent_task_id IS NOT NULL;
-- Due work and the sweep's work list cross organizations.
CREATE INDEX tasks_timeout_due ON agent_runtime.tasks (timeout_at) WHERE outcome IS NULL AND timeout_at IS NOT NULL;
CREATE INDEX tasks_dirty ON agent_runtime.tasks (organization_id, id) WHERE dirty;

CREATE TABLE agent_runtime.sessions (
    organization_id  uuid        NOT NULL,
    task_id          uuid        NOT NULL,
    id               uuid        NOT NULL,
    session_key      text        NOT NULL,
    harness_instance text,
    generation       integer     NOT NULL CHECK (generation >= 1),
    opened_at        timestamptz NOT NULL,
    heartbeat_at     timestamptz NOT NULL,
    closed_at        timestamptz,
    close_reason     text,
    request_hash     bytea       NOT NULL CHECK (octet_length(request_hash) = 32),
    -- When the expiry worker looks at the session next. A heartbeat does not move it (that keeps heartbeats HOT): the
    -- worker finds it due, sees a later heartbeat and sets it forward.
    check_at         timestamptz NOT NULL,
    PRIMARY KEY (organization_id, task_id, id),
    UNIQUE (organization_id, task_id, session_key),
    UNIQUE (organization_id, task_id, generation),
    CONSTRAINT closed_exactly_with_a_reason CHECK ((closed_at IS NULL) = (close_reason IS NULL)),
    FOREIGN KEY (organization_id, task_id) REFERENCES agent_runtime.tasks (organization_id, id)
) WITH (fillfactor = 70);

CREATE INDEX sessions_check_due ON agent_runtime.sessions (check_at) WHERE closed_at IS NULL;

-- No foreign key to tasks: the one statement that appends joins the task row, and a guard below checks the rest.
CREATE TABLE agent_runtime.events (
    organization_id uuid        NOT NULL,
    task_id         uuid        NOT NULL,
    seq             bigint      NOT NULL CHECK (seq >= 1),
    event_id        uuid        NOT NULL,
    type            text        NOT NULL,
    schema_version  integer     NOT NULL CHECK (schema_version >= 1),
    actor_kind      text        NOT NULL CHECK (actor_kind IN ('human', 'agent', 'subagent', 'system')),
    actor_id        text        NOT NULL,
    channel         text        CHECK (channel IN ('web', 'slack', 'mcp', 'api', 'harness')),
    session_id      uuid,
    at              timestamptz NOT NULL,
    recorded_at     timestamptz NOT NULL,
    payload         json        NOT NULL, -- json, not jsonb: no digit, key or order may change
    redacted        text[]      NOT NULL,
    digest          bytea       NOT NULL CHECK (octet_length(digest) = 32),
    tx              xid8        NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (organization_id, task_id, seq),
    CONSTRAINT events_event_id UNIQUE (organization_id, task_id, event_id)
);

-- The organization's feed, in an order that no later commit can slip into.
CREATE INDEX events_feed ON agent_runtime.events (organization_id, tx, task_id, seq);

CREATE TABLE agent_runtime.requests (
    organization_id      uuid        NOT NULL,
    task_id              uuid        NOT NULL,
    id                   uuid        NOT NULL,
    session_id           uuid,
    kind                 text        NOT NULL CHECK (kind IN ('feedback', 'approval')),
    status               text        NOT NULL
        CHECK (status IN ('open', 'answered', 'approved', 'rejected', 'expired', 'void')),
    title                text        NOT NULL,
    why                  text,
    options              text[]      NOT NULL,
    artifacts            json        NOT NULL,
    artifact_digests     text[]      NOT NULL,
    opened_at            timestamptz NOT NULL,
    expires_at           timestamptz NOT NULL,
    request_key          text,
    request_hash         bytea       NOT NULL CHECK (octet_length(request_hash) = 32),
    superseded_by        uuid,
    resolved_by          text,
    resolved_at          timestamptz,
    answer               text,
    choice               text,
    constraints          json,
    resolution_digests   text[],
    resolution_channel   text,
    PRIMARY KEY (organization_id, task_id, id),
    CONSTRAINT settled_exactly_with_a_time CHECK ((status = 'open') = (resolved_at IS NULL)),
    CONSTRAINT only_feedback_is_answered CHECK (status <> 'answered' OR kind = 'feedback'),
    CONSTRAINT only_approvals_are_judged CHECK (status NOT IN ('approved', 'rejected') OR kind = 'approval'),
    CONSTRAINT an_approval_binds_digests CHECK (kind <> 'approval' OR cardinality(artifact_digests) >= 1),
    FOREIGN KEY (organization_id, task_id) REFERENCES agent_runtime.tasks (organization_id, id)
);

CREATE UNIQUE INDEX requests_open_key
    ON agent_runtime.requests (organization_id, task_id, request_key) WHERE status = 'open' AND request_key IS NOT NULL;
CREATE INDEX requests_key ON agent_runtime.requests (organization_id, task_id, request_key) WHERE request_key IS NOT NULL;
CREATE INDEX requests_inbox ON agent_runtime.requests (organization_id, status, opened_at, id);
CREATE INDEX requests_due ON agent_runtime.requests (expires_at) WHERE status = 'open';

-- One row per usage report, priced by the server. A correction is a new row with the signed difference.
CREATE TABLE agent_runtime.budget_ledger (
    organization_id              uuid        NOT NULL,
    task_id                      uuid        NOT NULL,
    id                           uuid        NOT NULL,
    account_id                   uuid        NOT NULL,
    idempotency_key              text        NOT NULL,
    request_hash                 bytea       NOT NULL CHECK (octet_length(request_hash) = 32),
    session_id                   uuid,
    model_id                     text        NOT NULL, -- as the harness named it
    model_ref                    uuid,                 -- the directory's model, when the name is known
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
    -- What the row changes in the task's two counts of reports that money is not certain about.
    unmeasured_delta             smallint    NOT NULL CHECK (unmeasured_delta BETWEEN -1 AND 1),
    unpriced_delta               smallint    NOT NULL CHECK (unpriced_delta BETWEEN -1 AND 1),
    seq                          bigint      NOT NULL, -- of its usage.reported event
    recorded_at                  timestamptz NOT NULL,
    PRIMARY KEY (organization_id, task_id, id),
    CONSTRAINT budget_ledger_key UNIQUE (organization_id, account_id, task_id, idempotency_key),
    CONSTRAINT an_unmeasured_report_has_no_cost CHECK (measured OR cost IS NULL),
    FOREIGN KEY (organization_id, task_id, corrects)
        REFERENCES agent_runtime.budget_ledger (organization_id, task_id, id)
);

CREATE INDEX budget_ledger_corrections
    ON agent_runtime.budget_ledger (organization_id, task_id, corrects) WHERE corrects IS NOT NULL;

-- "dependent requires prerequisite": one row, read in two directions.
CREATE TABLE agent_runtime.task_dependencies (
    organization_id      uuid        NOT NULL,
    dependent_task_id    uuid        NOT NULL,
    prerequisite_task_id uuid        NOT NULL,
    created_by_kind      text        NOT NULL,
    created_by           text        NOT NULL,
    created_at           timestamptz NOT NULL,
    PRIMARY KEY (organization_id, dependent_task_id, prerequisite_task_id),
    CONSTRAINT no_task_requires_itself CHECK (dependent_task_id <> prerequisite_task_id),
    FOREIGN KEY (organization_id, dependent_task_id) REFERENCES agent_runtime.tasks (organization_id, id),
    FOREIGN KEY (organization_id, prerequisite_task_id) REFERENCES agent_runtime.tasks (organization_id, id)
);

CREATE INDEX task_dependencies_required_by
    ON agent_runtime.task_dependencies (organization_id, prerequisite_task_id);

-- Associated projects; the primary project is not among them. The slug is a snapshot.
CREATE TABLE agent_runtime.task_projects (
    organization_id uuid        NOT NULL,
    task_id         uuid        NOT NULL,
    project_id      uuid        NOT NULL,
    project_slug    text        NOT NULL,
    added_by_kind   text        NOT NULL,
    added_by        text        NOT NULL,
    added_at        timestamptz NOT NULL,
    PRIMARY KEY (organization_id, task_id, project_id),
    FOREIGN KEY (organization_id, task_id) REFERENCES agent_runtime.tasks (organization_id, id)
);
