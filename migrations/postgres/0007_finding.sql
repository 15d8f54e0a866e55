-- Finding tasks and requests as their tables grow: each filter of a list has an index that serves the list's order, so
-- that a page costs what it shows. No index is on a column that appending changes, so appends stay HOT.

-- Both are trusted: whoever may create in the database may add them. btree_gin lets the organization lead a GIN index.
CREATE EXTENSION IF NOT EXISTS pg_trgm;
CREATE EXTENSION IF NOT EXISTS btree_gin;

CREATE INDEX tasks_by_status_newest ON agent_runtime.tasks (organization_id, status, created_at DESC, id DESC);
CREATE INDEX tasks_by_status_since ON agent_runtime.tasks (organization_id, status_since, id);
CREATE INDEX tasks_by_owner ON agent_runtime.tasks (organization_id, owner, created_at DESC, id DESC);
CREATE INDEX tasks_by_origin ON agent_runtime.tasks (organization_id, origin_kind, created_at DESC, id DESC);
CREATE INDEX tasks_by_project ON agent_runtime.tasks (organization_id, project_id, created_at DESC, id DESC)
    WHERE project_id IS NOT NULL;
CREATE INDEX tasks_by_subject ON agent_runtime.tasks (organization_id, subject, created_at DESC, id DESC)
    WHERE subject IS NOT NULL;
CREATE INDEX tasks_by_trigger ON agent_runtime.tasks (organization_id, created_by_account, created_at DESC, id DESC)
    WHERE created_by_account IS NOT NULL;

-- What creation pinned and a btree on tasks cannot find. The rows are written by the statement that creates the task
-- and never again, so a change of the task costs nothing here. No foreign key: it would lock and write the task's row
-- once more for each, and neither side ever goes.
CREATE TABLE agent_runtime.task_labels (
    organization_id uuid        NOT NULL,
    key             text        NOT NULL,
    value           text        NOT NULL,
    created_at      timestamptz NOT NULL, -- the task's
    task_id         uuid        NOT NULL,
    PRIMARY KEY (organization_id, task_id, key)
);

-- The text that `q` looks through: title, agent, project and number in lower case, apart by U+001F.
CREATE TABLE agent_runtime.task_texts (
    organization_id uuid        NOT NULL,
    created_at      timestamptz NOT NULL, -- the task's
    task_id         uuid        NOT NULL,
    text            text        NOT NULL,
    PRIMARY KEY (organization_id, task_id)
);

INSERT INTO agent_runtime.task_labels (organization_id, key, value, created_at, task_id)
    SELECT t.organization_id, l.key, l.value, t.created_at, t.id
    FROM agent_runtime.tasks t, jsonb_each_text(t.labels) l;
INSERT INTO agent_runtime.task_texts (organization_id, created_at, task_id, text)
    SELECT organization_id, created_at, id, lower(
        concat(chr(31), title, chr(31), agent_slug, chr(31), project_slug, chr(31), 't', chr(31), short_number, chr(31)))
    FROM agent_runtime.tasks;

CREATE INDEX task_labels_newest
    ON agent_runtime.task_labels (organization_id, key, value, created_at DESC, task_id DESC);
-- A search for what many tasks have walks back in time until a page is full; one for what few have goes by trigrams.
CREATE INDEX task_texts_newest ON agent_runtime.task_texts (organization_id, created_at DESC, task_id DESC);
-- The list of entries that are not sorted in yet is read by every search: it stays short.
CREATE INDEX task_texts_trigrams ON agent_runtime.task_texts USING gin (organization_id, text gin_trgm_ops)
    WITH (gin_pending_list_limit = 512);

-- Guard: what a task is found by is pinned by its creation, and stays.
CREATE TRIGGER task_labels_pinned BEFORE UPDATE OR DELETE ON agent_runtime.task_labels
    FOR EACH ROW EXECUTE FUNCTION agent_runtime.refuse('what a task is found by never changes');
CREATE TRIGGER task_labels_no_truncate BEFORE TRUNCATE ON agent_runtime.task_labels
    FOR EACH STATEMENT EXECUTE FUNCTION agent_runtime.refuse('what a task is found by never changes');
CREATE TRIGGER task_texts_pinned BEFORE UPDATE OR DELETE ON agent_runtime.task_texts
    FOR EACH ROW EXECUTE FUNCTION agent_runtime.refuse('what a task is found by never changes');
CREATE TRIGGER task_texts_no_truncate BEFORE TRUNCATE ON agent_runtime.task_texts
    FOR EACH STATEMENT EXECUTE FUNCTION agent_runtime.refuse('what a task is found by never changes');

-- The inbox by agent, without a look at each task. The guard refuses any change of a settled request but this one.
ALTER TABLE agent_runtime.requests ADD COLUMN agent_id uuid;
ALTER TABLE agent_runtime.requests DISABLE TRIGGER requests_settled_is_final;
UPDATE agent_runtime.requests r SET agent_id = t.agent_id
    FROM agent_runtime.tasks t WHERE t.organization_id = r.organization_id AND t.id = r.task_id;
ALTER TABLE agent_runtime.requests ENABLE TRIGGER requests_settled_is_final;
ALTER TABLE agent_runtime.requests ALTER COLUMN agent_id SET NOT NULL;

CREATE INDEX requests_by_kind ON agent_runtime.requests (organization_id, status, kind, opened_at, id);
CREATE INDEX requests_by_agent ON agent_runtime.requests (organization_id, agent_id, status, opened_at, id);
-- What waits for a person, counted from the index alone; and what is over though no worker has seen it yet.
CREATE INDEX requests_open ON agent_runtime.requests (organization_id, expires_at) INCLUDE (kind, agent_id)
    WHERE status = 'open';
