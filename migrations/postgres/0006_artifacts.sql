-- Artifacts: what is in the artifact store, what is on its way into or out of it, and which logs refer to what. Who
-- writes a row of the first or the last table holds the digest's advisory lock until the commit
-- (src/store/artifacts.rs).

CREATE TABLE agent_runtime.artifacts (
    organization_id uuid        NOT NULL,
    digest          bytea       NOT NULL CHECK (octet_length(digest) = 32),
    -- A part of the name of its bytes in the store: bytes that come again after a removal have another name, so that
    -- the removal of the old ones can never hit them.
    upload_id       uuid        NOT NULL,
    size            bigint      NOT NULL CHECK (size >= 0),
    media_type      text        NOT NULL,
    created_at      timestamptz NOT NULL,
    -- When somebody last sent it: an artifact without references is kept for a grace from then on.
    kept_at         timestamptz NOT NULL,
    -- Who sent it, and so may read it before any log refers to it.
    uploaded_by     text[]      NOT NULL,
    -- Whether any log refers to it. Logs are never pruned, so it never turns back.
    referenced      boolean     NOT NULL,
    PRIMARY KEY (organization_id, digest)
);

-- The remover's work list crosses organizations.
CREATE INDEX artifacts_unreferenced ON agent_runtime.artifacts (kept_at) WHERE NOT referenced;

-- Bytes that no artifact names: on their way in, or to be removed.
CREATE TABLE agent_runtime.artifact_uploads (
    organization_id uuid        NOT NULL,
    id              uuid        NOT NULL,
    digest          bytea       NOT NULL CHECK (octet_length(digest) = 32),
    -- From then on they are nobody's, should whoever sends them have died.
    remove_at       timestamptz NOT NULL,
    -- The remover has taken them: whoever sends them still has lost.
    abandoned       boolean     NOT NULL,
    PRIMARY KEY (organization_id, id)
);

CREATE INDEX artifact_uploads_due ON agent_runtime.artifact_uploads (remove_at);

-- Which logs refer to what. The digest may be of something that is kept elsewhere or comes later, so it is no foreign
-- key. Rows stay when a log is archived.
CREATE TABLE agent_runtime.artifact_refs (
    organization_id uuid        NOT NULL,
    digest          bytea       NOT NULL CHECK (octet_length(digest) = 32),
    task_id         uuid        NOT NULL,
    seq             bigint      NOT NULL CHECK (seq >= 1), -- of the first entry that names it
    PRIMARY KEY (organization_id, digest, task_id),
    FOREIGN KEY (organization_id, task_id) REFERENCES agent_runtime.tasks (organization_id, id)
);

CREATE INDEX artifact_refs_of_task ON agent_runtime.artifact_refs (organization_id, task_id);

-- Guard: what a log refers to stays referred to.
CREATE TRIGGER artifact_refs_append_only BEFORE UPDATE OR DELETE ON agent_runtime.artifact_refs
    FOR EACH ROW EXECUTE FUNCTION agent_runtime.refuse('references to artifacts never change and are never deleted');
CREATE TRIGGER artifact_refs_no_truncate BEFORE TRUNCATE ON agent_runtime.artifact_refs
    FOR EACH STATEMENT EXECUTE FUNCTION agent_runtime.refuse('references to artifacts are never deleted');
