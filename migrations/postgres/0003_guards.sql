-- What the database itself refuses, whoever asks. Conditions stand in WHEN clauses, which cost the hot path next to
-- nothing: the function runs only to refuse. Each guard has its own test in tests/api/guards.rs.

CREATE FUNCTION agent_runtime.refuse() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'MD001', MESSAGE = TG_ARGV[0];
END $$;

-- Guard: identity, origin and everything that creation pinned are immutable.
CREATE TRIGGER tasks_pins_immutable BEFORE UPDATE ON agent_runtime.tasks
    FOR EACH ROW WHEN (
        (OLD.organization_id, OLD.id, OLD.short_number, OLD.agent_id, OLD.agent_slug, OLD.agent_version,
         OLD.prompt_version, OLD.service_account_id, OLD.project_id, OLD.project_slug, OLD.title, OLD.description,
         OLD.subject, OLD.labels, OLD.params::text, OLD.origin_kind, OLD.origin_principal, OLD.origin_delivery,
         OLD.origin_agent_id, OLD.parent_task_id, OLD.parent_short_number, OLD.created_by_account,
         OLD.idempotency_key, OLD.request_hash, OLD.budget, OLD.task_timeout_seconds, OLD.max_depth,
         OLD.max_children, OLD.depth, OLD.created_at)
        IS DISTINCT FROM
        (NEW.organization_id, NEW.id, NEW.short_number, NEW.agent_id, NEW.agent_slug, NEW.agent_version,
         NEW.prompt_version, NEW.service_account_id, NEW.project_id, NEW.project_slug, NEW.title, NEW.description,
         NEW.subject, NEW.labels, NEW.params::text, NEW.origin_kind, NEW.origin_principal, NEW.origin_delivery,
         NEW.origin_agent_id, NEW.parent_task_id, NEW.parent_short_number, NEW.created_by_account,
         NEW.idempotency_key, NEW.request_hash, NEW.budget, NEW.task_timeout_seconds, NEW.max_depth,
         NEW.max_children, NEW.depth, NEW.created_at))
    EXECUTE FUNCTION agent_runtime.refuse('identity, origin and pinned values of a task are immutable');

-- Guard: closed is final. What was spent and what children return may still be added.
CREATE TRIGGER tasks_closed_is_final BEFORE UPDATE ON agent_runtime.tasks
    FOR EACH ROW WHEN (
        OLD.outcome IS NOT NULL
        AND (OLD.status, OLD.status_since, OLD.outcome, OLD.outcome_reason, OLD.control, OLD.phase,
             OLD.furthest_milestone, OLD.result::text, OLD.owner, OLD.open_requests, OLD.open_sessions,
             OLD.last_generation, OLD.taken_over, OLD.closed_at, OLD.timeout_at)
            IS DISTINCT FROM
            (NEW.status, NEW.status_since, NEW.outcome, NEW.outcome_reason, NEW.control, NEW.phase,
             NEW.furthest_milestone, NEW.result::text, NEW.owner, NEW.open_requests, NEW.open_sessions,
             NEW.last_generation, NEW.taken_over, NEW.closed_at, NEW.timeout_at))
    EXECUTE FUNCTION agent_runtime.refuse('a closed task never reopens and its state never changes');

-- Guard: a fact changes only in a commit that writes an event, so last_seq rises; the sweep's bookkeeping is free.
CREATE TRIGGER tasks_change_with_an_event BEFORE UPDATE ON agent_runtime.tasks
    FOR EACH ROW WHEN (
        NEW.last_seq < OLD.last_seq
        OR (NEW.last_seq = OLD.last_seq
            AND (OLD.owner, OLD.status, OLD.status_since, OLD.control, OLD.phase, OLD.furthest_milestone, OLD.outcome,
                 OLD.outcome_reason, OLD.result::text, OLD.cost_total, OLD.set_aside, OLD.tokens_in, OLD.tokens_out,
                 OLD.cache_read_tokens, OLD.cache_write_tokens, OLD.unmeasured_reports, OLD.unpriced_reports,
                 OLD.open_requests, OLD.open_sessions, OLD.open_children, OLD.last_generation, OLD.taken_over,
                 OLD.log_digest, OLD.updated_at, OLD.closed_at, OLD.timeout_at)
                IS DISTINCT FROM
                (NEW.owner, NEW.status, NEW.status_since, NEW.control, NEW.phase, NEW.furthest_milestone, NEW.outcome,
                 NEW.outcome_reason, NEW.result::text, NEW.cost_total, NEW.set_aside, NEW.tokens_in, NEW.tokens_out,
                 NEW.cache_read_tokens, NEW.cache_write_tokens, NEW.unmeasured_reports, NEW.unpriced_reports,
                 NEW.open_requests, NEW.open_sessions, NEW.open_children, NEW.last_generation, NEW.taken_over,
                 NEW.log_digest, NEW.updated_at, NEW.closed_at, NEW.timeout_at)))
    EXECUTE FUNCTION agent_runtime.refuse('a task changes only in a commit that writes an event');

-- Guard: an archived log is sealed.
CREATE TRIGGER tasks_archived_is_sealed BEFORE UPDATE ON agent_runtime.tasks
    FOR EACH ROW WHEN (
        OLD.log_archived_at IS NOT NULL
        AND (NEW.last_seq <> OLD.last_seq OR NEW.log_archived_at IS DISTINCT FROM OLD.log_archived_at))
    EXECUTE FUNCTION agent_runtime.refuse('the log of an archived task is sealed');

-- Guard: tasks, sessions and requests are never deleted.
CREATE TRIGGER tasks_kept BEFORE DELETE ON agent_runtime.tasks
    FOR EACH ROW EXECUTE FUNCTION agent_runtime.refuse('tasks are never deleted');
CREATE TRIGGER tasks_no_truncate BEFORE TRUNCATE ON agent_runtime.tasks
    FOR EACH STATEMENT EXECUTE FUNCTION agent_runtime.refuse('tasks are never deleted');
CREATE TRIGGER sessions_kept BEFORE DELETE ON agent_runtime.sessions
    FOR EACH ROW EXECUTE FUNCTION agent_runtime.refuse('sessions are never deleted');
CREATE TRIGGER sessions_no_truncate BEFORE TRUNCATE ON agent_runtime.sessions
    FOR EACH STATEMENT EXECUTE FUNCTION agent_runtime.refuse('sessions are never deleted');
CREATE TRIGGER requests_kept BEFORE DELETE ON agent_runtime.requests
    FOR EACH ROW EXECUTE FUNCTION agent_runtime.refuse('requests are never deleted');
CREATE TRIGGER requests_no_truncate BEFORE TRUNCATE ON agent_runtime.requests
    FOR EACH STATEMENT EXECUTE FUNCTION agent_runtime.refuse('requests are never deleted');

-- Guard: a closed session and a settled request never change again.
CREATE TRIGGER sessions_closed_is_final BEFORE UPDATE ON agent_runtime.sessions
    FOR EACH ROW WHEN (OLD.closed_at IS NOT NULL)
    EXECUTE FUNCTION agent_runtime.refuse('a closed session never changes');
CREATE TRIGGER requests_settled_is_final BEFORE UPDATE ON agent_runtime.requests
    FOR EACH ROW WHEN (OLD.status <> 'open')
    EXECUTE FUNCTION agent_runtime.refuse('a settled request never changes');

-- Guard: events never change.
CREATE TRIGGER events_append_only BEFORE UPDATE ON agent_runtime.events
    FOR EACH ROW EXECUTE FUNCTION agent_runtime.refuse('events never change');
CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON agent_runtime.events
    FOR EACH STATEMENT EXECUTE FUNCTION agent_runtime.refuse('events are deleted only with the archiving of their task');

-- Guard: an event is written only by a commit of its task: the row exists, counts it and is not archived.
CREATE FUNCTION agent_runtime.events_belong_to_a_commit() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF EXISTS (
        SELECT FROM written w
        LEFT JOIN agent_runtime.tasks t ON t.organization_id = w.organization_id AND t.id = w.task_id
        WHERE t.id IS NULL OR t.log_archived_at IS NOT NULL OR w.seq > t.last_seq
    ) THEN
        RAISE EXCEPTION USING ERRCODE = 'MD001',
            MESSAGE = 'an event needs a task that counts it and whose log is not archived';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER events_belong_to_a_commit AFTER INSERT ON agent_runtime.events
    REFERENCING NEW TABLE AS written
    FOR EACH STATEMENT EXECUTE FUNCTION agent_runtime.events_belong_to_a_commit();

-- Guard: events are deleted only with the archiving of their task, in its transaction.
CREATE FUNCTION agent_runtime.events_deleted_with_archiving() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF EXISTS (
        SELECT FROM deleted d
        LEFT JOIN agent_runtime.tasks t ON t.organization_id = d.organization_id AND t.id = d.task_id
        WHERE t.id IS NULL OR t.log_archived_at IS NULL
    ) THEN
        RAISE EXCEPTION USING ERRCODE = 'MD001',
            MESSAGE = 'events are deleted only with the archiving of their task';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER events_deleted_with_archiving AFTER DELETE ON agent_runtime.events
    REFERENCING OLD TABLE AS deleted
    FOR EACH STATEMENT EXECUTE FUNCTION agent_runtime.events_deleted_with_archiving();

-- Guard: the ledger is append-only.
CREATE TRIGGER budget_ledger_append_only BEFORE UPDATE OR DELETE ON agent_runtime.budget_ledger
    FOR EACH ROW EXECUTE FUNCTION agent_runtime.refuse('ledger rows never change and are never deleted');
CREATE TRIGGER budget_ledger_no_truncate BEFORE TRUNCATE ON agent_runtime.budget_ledger
    FOR EACH STATEMENT EXECUTE FUNCTION agent_runtime.refuse('ledger rows are never deleted');
