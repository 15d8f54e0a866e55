//! The statements that write a change. Each is one round trip: the compare-and-set on `last_seq` is the lock, and
//! everything else in the statement happens only when it matched.

use std::sync::LazyLock;

/// `$1` organization, `$2` task, `$3` expected seq, `$4` recorded at, then eleven arrays of equal length.
const EVENTS: &str = "
e AS (
    INSERT INTO agent_runtime.events (
        organization_id, task_id, seq, event_id, type, schema_version, actor_kind, actor_id, channel, session_id, at,
        recorded_at, payload, redacted, digest)
    SELECT $1, $2, e.seq, e.event_id, e.type, e.schema_version, e.actor_kind, e.actor_id, e.channel, e.session_id,
        e.at, $4, e.payload::json,
        CASE WHEN e.redacted IS NULL THEN '{}'::text[]
             ELSE ARRAY(SELECT json_array_elements_text(e.redacted::json)) END,
        e.digest
    FROM t, unnest($5::bigint[], $6::uuid[], $7::text[], $8::integer[], $9::text[], $10::text[], $11::text[],
        $12::uuid[], $13::timestamptz[], $14::text[], $15::text[], $16::bytea[])
        AS e(seq, event_id, type, schema_version, actor_kind, actor_id, channel, session_id, at, payload, redacted,
             digest)
)";

/// A sign of life of the session `$17`, if it is open.
const ALIVE: &str = "
a AS (
    UPDATE agent_runtime.sessions s SET heartbeat_at = greatest(s.heartbeat_at, clock_timestamp())
    FROM t WHERE s.organization_id = $1 AND s.task_id = $2 AND s.id = $17 AND s.closed_at IS NULL
)";

/// One row of the ledger, `$28` to `$46`.
const LEDGER: &str = "
l AS (
    INSERT INTO agent_runtime.budget_ledger (
        organization_id, task_id, recorded_at, id, account_id, idempotency_key, request_hash, session_id, model_id,
        model_ref, tokens_in, tokens_out, cache_read_tokens, cache_write_tokens, input_cost_per_million,
        output_cost_per_million, cache_read_cost_per_million, cache_write_cost_per_million, cost, measured, corrects,
        unmeasured_delta, unpriced_delta, seq)
    SELECT $1, $2, $4, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, $41, $42, $43, $44, $45, $46,
        $47, $48
    FROM t
)";

const WHERE: &str = "WHERE organization_id = $1 AND id = $2 AND last_seq = $3 AND log_archived_at IS NULL";

/// Events alone: `$18` last seq, `$19` head, `$20` phase, `$21` milestone.
pub(super) static APPEND: LazyLock<String> = LazyLock::new(|| {
    format!(
        "WITH t AS (
            UPDATE agent_runtime.tasks SET last_seq = $18, log_digest = $19, updated_at = $4, phase = $20,
                furthest_milestone = $21, dirty = true
            {WHERE} RETURNING id
        ), {EVENTS}, {ALIVE}
        SELECT count(*) FROM t"
    )
});

/// Appends and reports of several tasks of the organization `$1`: `$2` to `$16` have an entry per task, `$17` to `$29` one
/// per event and `$30` to `$51` one per report, the first of which numbers its task among them, from 1. The rows of tasks and
/// sessions are locked without waiting, so groups and whoever holds several tasks never wait for each other in a circle,
/// and who has to wait for a lock holds nobody else up.
/// Answers the numbers of those that were written.
///
/// Each array stands in a query of its own, which hides its length from the planner: it would find that a plan for these
/// few rows is worth making, and make one each time.
pub(super) const GROUP: &str = "
    WITH l AS (
        SELECT c.*, t.place
        FROM unnest((SELECT $2::uuid[]), (SELECT $3::bigint[]), (SELECT $4::timestamptz[]),
            (SELECT $5::bigint[]), (SELECT $6::bytea[]), (SELECT $7::text[]),
            (SELECT $8::text[]), (SELECT $9::uuid[]), (SELECT $10::numeric[]), (SELECT $11::bigint[]),
            (SELECT $12::bigint[]), (SELECT $13::bigint[]), (SELECT $14::bigint[]),
            (SELECT $15::bigint[]), (SELECT $16::bigint[])) WITH ORDINALITY
            AS c(task_id, expected_seq, recorded_at, last_seq, log_digest, phase, milestone, alive,
                 cost_total, tokens_in, tokens_out, cache_read, cache_write, unmeasured, unpriced, n)
        CROSS JOIN LATERAL (
            SELECT t.ctid AS place FROM agent_runtime.tasks t
            WHERE t.organization_id = $1 AND t.id = c.task_id AND t.last_seq = c.expected_seq
                AND t.log_archived_at IS NULL
            FOR NO KEY UPDATE SKIP LOCKED) AS t
        LEFT JOIN LATERAL (
            SELECT true AS ours FROM agent_runtime.sessions s
            WHERE s.organization_id = $1 AND s.task_id = c.task_id AND s.id = c.alive
                AND s.closed_at IS NULL
            FOR NO KEY UPDATE SKIP LOCKED) AS s ON true
        WHERE c.alive IS NULL OR s.ours
    ), t AS (
        UPDATE agent_runtime.tasks t SET last_seq = l.last_seq, log_digest = l.log_digest, updated_at = l.recorded_at,
            phase = l.phase, furthest_milestone = l.milestone, cost_total = l.cost_total, tokens_in = l.tokens_in,
            tokens_out = l.tokens_out, cache_read_tokens = l.cache_read, cache_write_tokens = l.cache_write,
            unmeasured_reports = l.unmeasured, unpriced_reports = l.unpriced, dirty = true
        FROM l
        WHERE t.ctid = l.place AND t.organization_id = $1 AND t.id = l.task_id
            AND t.last_seq = l.expected_seq AND t.log_archived_at IS NULL
        RETURNING l.n, l.task_id, l.recorded_at, l.alive
    ), e AS (
        INSERT INTO agent_runtime.events (
            organization_id, task_id, seq, event_id, type, schema_version, actor_kind, actor_id, channel, session_id,
            at, recorded_at, payload, redacted, digest)
        SELECT $1, t.task_id, e.seq, e.event_id, e.type, e.schema_version, e.actor_kind, e.actor_id,
            e.channel, e.session_id, e.at, t.recorded_at, e.payload::json,
            CASE WHEN e.redacted IS NULL THEN '{}'::text[]
                 ELSE ARRAY(SELECT json_array_elements_text(e.redacted::json)) END,
            e.digest
        FROM t JOIN unnest((SELECT $17::bigint[]), (SELECT $18::bigint[]), (SELECT $19::uuid[]), (SELECT $20::text[]),
            (SELECT $21::integer[]), (SELECT $22::text[]),
            (SELECT $23::text[]), (SELECT $24::text[]), (SELECT $25::uuid[]), (SELECT $26::timestamptz[]),
            (SELECT $27::text[]), (SELECT $28::text[]), (SELECT $29::bytea[]))
            AS e(n, seq, event_id, type, schema_version, actor_kind, actor_id, channel, session_id, at, payload,
                 redacted, digest) USING (n)
    ), a AS (
        UPDATE agent_runtime.sessions s SET heartbeat_at = greatest(s.heartbeat_at, clock_timestamp())
        FROM t
        WHERE s.organization_id = $1 AND s.task_id = t.task_id AND s.id = t.alive
            AND s.closed_at IS NULL
    ), r AS (
        INSERT INTO agent_runtime.budget_ledger (
            organization_id, task_id, recorded_at, id, account_id, idempotency_key, request_hash, session_id, model_id,
            model_ref, tokens_in, tokens_out, cache_read_tokens, cache_write_tokens, input_cost_per_million,
            output_cost_per_million, cache_read_cost_per_million, cache_write_cost_per_million, cost, measured,
            corrects, unmeasured_delta, unpriced_delta, seq)
        SELECT $1, t.task_id, t.recorded_at, r.id, r.account_id, r.idempotency_key, r.request_hash,
            r.session_id, r.model_id, r.model_ref, r.tokens_in, r.tokens_out, r.cache_read, r.cache_write, r.input_cost,
            r.output_cost, r.cache_read_cost, r.cache_write_cost, r.cost, r.measured, r.corrects, r.unmeasured_delta,
            r.unpriced_delta, r.seq
        FROM t JOIN unnest((SELECT $30::bigint[]), (SELECT $31::uuid[]), (SELECT $32::uuid[]), (SELECT $33::text[]),
            (SELECT $34::bytea[]), (SELECT $35::uuid[]), (SELECT $36::text[]),
            (SELECT $37::uuid[]), (SELECT $38::bigint[]), (SELECT $39::bigint[]), (SELECT $40::bigint[]),
            (SELECT $41::bigint[]), (SELECT $42::numeric[]), (SELECT $43::numeric[]),
            (SELECT $44::numeric[]), (SELECT $45::numeric[]), (SELECT $46::numeric[]), (SELECT $47::boolean[]),
            (SELECT $48::uuid[]), (SELECT $49::smallint[]),
            (SELECT $50::smallint[]), (SELECT $51::bigint[]))
            AS r(n, id, account_id, idempotency_key, request_hash, session_id, model_id, model_ref, tokens_in,
                 tokens_out, cache_read, cache_write, input_cost, output_cost, cache_read_cost, cache_write_cost, cost,
                 measured, corrects, unmeasured_delta, unpriced_delta, seq) USING (n)
    )
    SELECT n FROM t";

/// A report that closes nothing: `$18` last seq, `$19` head, `$20` cost, `$21` to `$24` counts, `$25` unmeasured,
/// `$26` unpriced; `$27` is not used, so that the ledger's numbers are the same everywhere.
pub(super) static REPORT: LazyLock<String> = LazyLock::new(|| {
    format!(
        "WITH t AS (
            UPDATE agent_runtime.tasks SET last_seq = $18, log_digest = $19, updated_at = $4, cost_total = $20,
                tokens_in = $21, tokens_out = $22, cache_read_tokens = $23, cache_write_tokens = $24,
                unmeasured_reports = $25, unpriced_reports = $26, dirty = true
            {WHERE} AND $27::boolean RETURNING id
        ), {EVENTS}, {ALIVE}, {LEDGER}
        SELECT count(*) FROM t"
    )
});

/// Any change: `$18` to `$23` are JSON (facts, sessions opened and closed, requests opened and settled, ledger), and
/// `$24` the requests that must not have expired by the database's clock, in the statement that settles them.
pub(super) static CHANGE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "WITH f AS (
            SELECT * FROM json_to_record($18::json) AS f(
                owner text, status text, status_since timestamptz, control text, phase text, furthest_milestone text,
                outcome text, outcome_reason text, result text, cost_total numeric, set_aside numeric,
                tokens_in bigint, tokens_out bigint, cache_read_tokens bigint, cache_write_tokens bigint,
                unmeasured_reports bigint, unpriced_reports bigint, open_requests integer, open_sessions integer,
                open_children integer, last_generation integer, taken_over boolean, last_seq bigint, log_digest bytea,
                closed_at timestamptz, timeout_at timestamptz)
        ), t AS (
            UPDATE agent_runtime.tasks t SET owner = f.owner, status = f.status, status_since = f.status_since,
                control = f.control, phase = f.phase, furthest_milestone = f.furthest_milestone, outcome = f.outcome,
                outcome_reason = f.outcome_reason, result = f.result::json, cost_total = f.cost_total,
                set_aside = f.set_aside, tokens_in = f.tokens_in, tokens_out = f.tokens_out,
                cache_read_tokens = f.cache_read_tokens, cache_write_tokens = f.cache_write_tokens,
                unmeasured_reports = f.unmeasured_reports, unpriced_reports = f.unpriced_reports,
                open_requests = f.open_requests, open_sessions = f.open_sessions, open_children = f.open_children,
                last_generation = f.last_generation, taken_over = f.taken_over, last_seq = f.last_seq,
                log_digest = f.log_digest, updated_at = $4, closed_at = f.closed_at, timeout_at = f.timeout_at,
                dirty = true
            FROM f
            WHERE t.organization_id = $1 AND t.id = $2 AND t.last_seq = $3 AND t.log_archived_at IS NULL
                AND NOT EXISTS (
                    SELECT FROM agent_runtime.requests r
                    WHERE r.organization_id = $1 AND r.task_id = $2 AND r.id = ANY ($24::uuid[])
                        AND r.expires_at <= clock_timestamp())
            RETURNING t.id, t.agent_id
        ), {EVENTS}, {ALIVE}, {SESSIONS}, {REQUESTS}, {LEDGER_JSON}
        SELECT count(*) FROM t"
    )
});

/// Silence is judged by the database's clock, so it is counted from there too: `opened_at` is the server's.
const SESSIONS: &str = "
so AS (
    INSERT INTO agent_runtime.sessions (
        organization_id, task_id, id, session_key, harness_instance, generation, opened_at, heartbeat_at, request_hash,
        check_at)
    SELECT $1, $2, s.id, s.session_key, s.harness_instance, s.generation, $4, clock_timestamp(),
        s.request_hash, clock_timestamp() + s.timeout_us * interval '1 microsecond'
    FROM t, json_to_recordset($19::json) AS s(
        id uuid, session_key text, harness_instance text, generation integer, request_hash bytea, timeout_us bigint)
), sc AS (
    UPDATE agent_runtime.sessions s SET closed_at = $4, close_reason = c.reason
    FROM t, json_to_recordset($20::json) AS c(id uuid, reason text)
    WHERE s.organization_id = $1 AND s.task_id = $2 AND s.id = c.id
)";

/// Settling comes before opening, because both may carry the same key.
const REQUESTS: &str = "
rs AS (
    UPDATE agent_runtime.requests r SET status = c.status, resolved_at = $4, resolved_by = c.resolved_by,
        answer = c.answer, choice = c.choice, constraints = c.constraints::json, superseded_by = c.superseded_by,
        resolution_digests = c.resolution_digests, resolution_channel = c.resolution_channel
    FROM t, json_to_recordset($22::json) AS c(
        id uuid, status text, resolved_by text, answer text, choice text, constraints text, superseded_by uuid,
        resolution_digests text[], resolution_channel text)
    WHERE r.organization_id = $1 AND r.task_id = $2 AND r.id = c.id
    RETURNING r.id
), ro AS (
    INSERT INTO agent_runtime.requests (
        organization_id, task_id, id, session_id, kind, status, title, why, options, artifacts, artifact_digests,
        opened_at, expires_at, request_key, request_hash, agent_id)
    SELECT $1, $2, r.id, r.session_id, r.kind, 'open', r.title, r.why, r.options, r.artifacts, r.artifact_digests, $4,
        r.expires_at, r.request_key, r.request_hash, t.agent_id
    FROM t, json_to_recordset($21::json) AS r(
        id uuid, session_id uuid, kind text, title text, why text, options text[], artifacts json,
        artifact_digests text[], expires_at timestamptz, request_key text, request_hash bytea)
    WHERE (SELECT count(*) FROM rs) >= 0
)";

const LEDGER_JSON: &str = "
l AS (
    INSERT INTO agent_runtime.budget_ledger (
        organization_id, task_id, recorded_at, id, account_id, idempotency_key, request_hash, session_id, model_id,
        model_ref, tokens_in, tokens_out, cache_read_tokens, cache_write_tokens, input_cost_per_million,
        output_cost_per_million, cache_read_cost_per_million, cache_write_cost_per_million, cost, measured, corrects,
        unmeasured_delta, unpriced_delta, seq)
    SELECT $1, $2, $4, l.*
    FROM t, json_to_recordset($23::json) AS l(
        id uuid, account_id uuid, idempotency_key text, request_hash bytea, session_id uuid, model_id text,
        model_ref uuid, tokens_in bigint, tokens_out bigint, cache_read_tokens bigint, cache_write_tokens bigint,
        input_cost_per_million numeric, output_cost_per_million numeric, cache_read_cost_per_million numeric,
        cache_write_cost_per_million numeric, cost numeric, measured boolean, corrects uuid,
        unmeasured_delta smallint, unpriced_delta smallint, seq bigint)
)";

/// What lists find the new task by.
const FOUND_BY: &str = "
fl AS (
    INSERT INTO agent_runtime.task_labels (organization_id, key, value, created_at, task_id)
    SELECT $1, l.key, l.value, $4, t.id FROM t, jsonb_each_text(t.labels) AS l
), ft AS (
    INSERT INTO agent_runtime.task_texts (organization_id, created_at, task_id, text)
    SELECT $1, $4, t.id, p.found_by FROM t, json_to_record($19::json) AS p(found_by text)
)";

/// Creates a task with its first events; the facts are the same JSON as above, `$18`, the pinned part is `$19`.
pub(super) static CREATE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "WITH t AS (
            INSERT INTO agent_runtime.tasks (
                organization_id, id, short_number, agent_id, agent_slug, agent_version, prompt_version,
                service_account_id, project_id, project_slug, title, description, subject, labels, params, origin_kind,
                origin_principal, origin_delivery, origin_agent_id, parent_task_id, parent_short_number,
                created_by_account, idempotency_key, request_hash, budget, task_timeout_seconds, max_depth,
                max_children, depth, created_at, owner, status, status_since, control, phase, furthest_milestone,
                outcome, outcome_reason, result, cost_total, set_aside, tokens_in, tokens_out, cache_read_tokens,
                cache_write_tokens, unmeasured_reports, unpriced_reports, open_requests, open_sessions, open_children,
                last_generation, taken_over, last_seq, log_digest, updated_at, closed_at, timeout_at)
            SELECT $1, $2, p.short_number, p.agent_id, p.agent_slug, p.agent_version, p.prompt_version,
                p.service_account_id, p.project_id, p.project_slug, p.title, p.description, p.subject, p.labels,
                p.params::json, p.origin_kind, p.origin_principal, p.origin_delivery, p.origin_agent_id, p.parent_task_id,
                p.parent_short_number, p.created_by_account, p.idempotency_key, p.request_hash, p.budget,
                p.task_timeout_seconds, p.max_depth, p.max_children, p.depth, $4, f.owner, f.status, f.status_since,
                f.control, f.phase, f.furthest_milestone, f.outcome, f.outcome_reason, f.result::json, f.cost_total,
                f.set_aside, f.tokens_in, f.tokens_out, f.cache_read_tokens, f.cache_write_tokens,
                f.unmeasured_reports, f.unpriced_reports, f.open_requests, f.open_sessions, f.open_children,
                f.last_generation, f.taken_over, f.last_seq, f.log_digest, $4, f.closed_at, f.timeout_at
            FROM json_to_record($18::json) AS f(
                owner text, status text, status_since timestamptz, control text, phase text, furthest_milestone text,
                outcome text, outcome_reason text, result text, cost_total numeric, set_aside numeric,
                tokens_in bigint, tokens_out bigint, cache_read_tokens bigint, cache_write_tokens bigint,
                unmeasured_reports bigint, unpriced_reports bigint, open_requests integer, open_sessions integer,
                open_children integer, last_generation integer, taken_over boolean, last_seq bigint, log_digest bytea,
                closed_at timestamptz, timeout_at timestamptz),
            json_to_record($19::json) AS p(
                short_number bigint, agent_id uuid, agent_slug text, agent_version integer, prompt_version integer,
                service_account_id uuid, project_id uuid, project_slug text, title text, description text,
                subject text, labels jsonb, params text, origin_kind text, origin_principal text,
                origin_delivery text, origin_agent_id uuid, parent_task_id uuid, parent_short_number bigint,
                created_by_account uuid, idempotency_key text, request_hash bytea, budget numeric,
                task_timeout_seconds integer, max_depth integer, max_children integer, depth integer)
            WHERE $3::bigint = 0 AND $17::uuid IS NULL
            RETURNING id, labels
        ), {FOUND_BY}, {EVENTS}
        SELECT count(*) FROM t"
    )
});
