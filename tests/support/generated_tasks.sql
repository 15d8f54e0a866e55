-- Fills an empty database with as many tasks as the setting finding.tasks says. Of each filter's values one is rare
-- and of the oldest tasks, which is the worst place for whoever looks from the newest on; one has half of all tasks;
-- and there are many others. The guards would want each task to have begun with an event, so they are off.
SET session_replication_role = replica;
SET synchronous_commit = off;

-- Indexes are made afterwards, which is many times faster.
CREATE TABLE public.made_later AS
    SELECT i.indexrelid::regclass::text AS name, pg_get_indexdef(i.indexrelid) AS definition
    FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
    WHERE c.relnamespace = 'agent_runtime'::regnamespace AND c.relname IN ('tasks', 'task_labels', 'task_texts', 'requests')
        AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid);
DO $$
DECLARE found record;
BEGIN
    FOR found IN SELECT * FROM public.made_later LOOP
        EXECUTE 'DROP INDEX ' || found.name;
    END LOOP;
END $$;

CREATE TEMP TABLE generated AS
    SELECT n, status, CASE number WHEN 1 THEN 'rare' WHEN 2 THEN 'frequent' ELSE 'other-' || number END AS value,
        -- The agent, its account, the project and the trigger.
        ('00000000-0000-7000-9000-' || lpad(to_hex(number), 12, '0'))::uuid AS of,
        ('00000000-0000-7000-8000-' || lpad(to_hex(1 + (n % 50 = 49)::integer), 12, '0'))::uuid AS organization_id,
        (lpad(to_hex(1700000000000 + n), 12, '0') || '7' || substr(md5(n::text), 1, 19))::uuid AS id,
        -- Some are of one microsecond.
        timestamptz '2026-01-01 00:00:00+00' + (n / 3) * interval '1 second' AS created_at
    FROM (
        SELECT n, CASE WHEN n <= 60 THEN 1 WHEN n % 2 = 0 THEN 2 ELSE 100 + n % 199 END AS number,
            CASE WHEN n <= 60 THEN 'paused'
                WHEN n % 20 <> 0 THEN 'closed'
                WHEN n % 100 = 0 THEN 'blocked'
                WHEN n % 100 = 20 THEN 'running'
                ELSE 'queued' END AS status
        FROM generate_series(1, current_setting('finding.tasks')::integer) AS n
    ) AS drawn;

INSERT INTO agent_runtime.tasks (
    organization_id, id, short_number, agent_id, agent_slug, agent_version, prompt_version, service_account_id,
    project_id, project_slug, title, description, subject, labels, origin_kind, origin_principal, origin_delivery,
    created_by_account, max_depth, max_children, depth, created_at, owner, status, status_since, control, outcome, cost_total, set_aside,
    tokens_in, tokens_out, cache_read_tokens, cache_write_tokens, unmeasured_reports, unpriced_reports, open_requests,
    open_sessions, open_children, last_generation, taken_over, last_seq, log_digest, updated_at, closed_at, dirty)
SELECT organization_id, id, n, of, value, 1, 1, of, of, value, 'Review ' || value || ' change ' || n, 'Look for missing tests.', value,
    CASE n % 10 WHEN 0 THEN jsonb_build_object('team', value, 'run', n::text) ELSE jsonb_build_object('team', value) END,
    CASE value WHEN 'rare' THEN 'webhook' WHEN 'frequent' THEN 'schedule' ELSE 'human' END, value,
    CASE value WHEN 'rare' THEN n::text END, of, 5, 50, 0, created_at, value, status, created_at + n % 7 * interval '1 hour',
    CASE status WHEN 'paused' THEN 'pause' ELSE 'run' END, CASE status WHEN 'closed' THEN 'done_acted' END, 0, 0,
    0, 0, 0, 0, 0, 0, (status = 'blocked')::integer, (status = 'running')::integer, 0, 0, false, 1,
    decode(repeat('00', 32), 'hex'), created_at, CASE status WHEN 'closed' THEN created_at END, false
FROM generated ORDER BY n;

INSERT INTO agent_runtime.task_labels (organization_id, key, value, created_at, task_id)
SELECT organization_id, label.key, label.value, created_at, id
FROM generated, LATERAL (VALUES ('team', generated.value), ('run', n::text)) AS label (key, value)
WHERE label.key = 'team' OR n % 10 = 0 ORDER BY n;

INSERT INTO agent_runtime.task_texts (organization_id, created_at, task_id, text)
SELECT organization_id, created_at, id, concat(chr(31), 'review ', value, ' change ', n, chr(31), value,
    chr(31), value, chr(31), 't', chr(31), n, chr(31))
FROM generated ORDER BY n;

-- A tenth has asked something; of tasks that are blocked it is open.
INSERT INTO agent_runtime.requests (
    organization_id, task_id, id, agent_id, kind, status, title, options, artifacts, artifact_digests, opened_at,
    expires_at, request_hash, resolved_at)
SELECT organization_id, id, id, of, CASE WHEN n <= 600 THEN 'approval' ELSE 'feedback' END,
    CASE WHEN status = 'blocked' THEN 'open' WHEN n <= 600 THEN 'approved' ELSE 'answered' END, 'Which?', '{}', '[]',
    '{x}', created_at, 'infinity', decode(repeat('00', 32), 'hex'),
    CASE WHEN status <> 'blocked' THEN created_at END
FROM generated WHERE n % 10 = 0 ORDER BY n;

DROP TABLE generated;
