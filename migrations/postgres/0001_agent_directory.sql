-- The directory: who may call, which agents, models and projects there are. Runtime rows keep ids of these rows by
-- value; no foreign key leads from agent_runtime to here. Every key and unique index leads with organization_id, so
-- that an organization is one shard's work; organizations themselves are the one exception.

CREATE SCHEMA agent_directory;

CREATE TABLE agent_directory.organizations (
    id           uuid        PRIMARY KEY,
    slug         text        NOT NULL UNIQUE,
    name         text        NOT NULL,
    external_ref text,
    created_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL
);

-- Names and addresses of people live only here.
CREATE TABLE agent_directory.members (
    organization_id uuid        NOT NULL REFERENCES agent_directory.organizations (id),
    person_id       text        NOT NULL,
    roles           text[]      NOT NULL CHECK (roles <@ ARRAY['viewer', 'operator', 'approver', 'admin']),
    name            text,
    email           text,
    external_ref    text,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, person_id)
);

-- The accounts of agents, and triggers (schedulers and webhook gateways).
CREATE TABLE agent_directory.service_accounts (
    organization_id uuid        NOT NULL REFERENCES agent_directory.organizations (id),
    id              uuid        NOT NULL,
    kind            text        NOT NULL CHECK (kind IN ('agent', 'trigger')),
    slug            text        NOT NULL,
    name            text        NOT NULL,
    external_ref    text,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    deleted_at      timestamptz,
    PRIMARY KEY (organization_id, id)
);

CREATE UNIQUE INDEX service_accounts_live_slug
    ON agent_directory.service_accounts (organization_id, kind, slug) WHERE deleted_at IS NULL;

CREATE TABLE agent_directory.credentials (
    organization_id uuid        NOT NULL,
    id              uuid        NOT NULL, -- the OAuth client_id
    account_id      uuid        NOT NULL,
    secret_hash     bytea       NOT NULL CHECK (octet_length(secret_hash) = 32),
    created_at      timestamptz NOT NULL,
    revoked_at      timestamptz,
    PRIMARY KEY (organization_id, id),
    FOREIGN KEY (organization_id, account_id) REFERENCES agent_directory.service_accounts (organization_id, id)
);

CREATE INDEX credentials_account ON agent_directory.credentials (organization_id, account_id);
-- The token route knows a client_id and no organization.
CREATE INDEX credentials_client ON agent_directory.credentials (id);

CREATE TABLE agent_directory.agents (
    organization_id      uuid           NOT NULL REFERENCES agent_directory.organizations (id),
    id                   uuid           NOT NULL,
    slug                 text           NOT NULL,
    name                 text           NOT NULL,
    version              integer        NOT NULL CHECK (version >= 1),
    prompt_version       integer        NOT NULL CHECK (prompt_version >= 1),
    enabled              boolean        NOT NULL,
    task_budget          numeric(28, 12) CHECK (task_budget >= 0),
    monthly_cost_cap     numeric(28, 12) CHECK (monthly_cost_cap >= 0),
    max_concurrent_tasks integer        CHECK (max_concurrent_tasks >= 1),
    task_timeout_seconds integer        CHECK (task_timeout_seconds >= 1),
    max_depth            integer        NOT NULL CHECK (max_depth >= 0),
    max_children         integer        NOT NULL CHECK (max_children >= 0),
    service_account_id   uuid           NOT NULL,
    external_ref         text,
    created_at           timestamptz    NOT NULL,
    updated_at           timestamptz    NOT NULL,
    deleted_at           timestamptz,
    PRIMARY KEY (organization_id, id),
    UNIQUE (organization_id, service_account_id),
    FOREIGN KEY (organization_id, service_account_id)
        REFERENCES agent_directory.service_accounts (organization_id, id)
);

CREATE UNIQUE INDEX agents_live_slug ON agent_directory.agents (organization_id, slug) WHERE deleted_at IS NULL;

CREATE TABLE agent_directory.models (
    organization_id uuid        NOT NULL REFERENCES agent_directory.organizations (id),
    id              uuid        NOT NULL,
    slug            text        NOT NULL,
    provider        text        NOT NULL,
    model_id        text        NOT NULL, -- the provider's name of it
    aliases         text[]      NOT NULL DEFAULT '{}',
    external_ref    text,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    deleted_at      timestamptz,
    PRIMARY KEY (organization_id, id)
);

-- Slug, provider's name and aliases share one name space: a report names exactly one model or none.
CREATE TABLE agent_directory.model_names (
    organization_id uuid NOT NULL,
    name            text NOT NULL,
    model_id        uuid NOT NULL,
    PRIMARY KEY (organization_id, name),
    FOREIGN KEY (organization_id, model_id) REFERENCES agent_directory.models (organization_id, id)
);

-- US dollars per million tokens. An absent price is unknown, which is not zero.
CREATE TABLE agent_directory.model_prices (
    organization_id              uuid        NOT NULL,
    model_id                     uuid        NOT NULL,
    effective_from               timestamptz NOT NULL,
    input_cost_per_million       numeric(13, 6) CHECK (input_cost_per_million >= 0),
    output_cost_per_million      numeric(13, 6) CHECK (output_cost_per_million >= 0),
    cache_read_cost_per_million  numeric(13, 6) CHECK (cache_read_cost_per_million >= 0),
    cache_write_cost_per_million numeric(13, 6) CHECK (cache_write_cost_per_million >= 0),
    PRIMARY KEY (organization_id, model_id, effective_from),
    FOREIGN KEY (organization_id, model_id) REFERENCES agent_directory.models (organization_id, id)
);

CREATE TABLE agent_directory.projects (
    organization_id uuid        NOT NULL REFERENCES agent_directory.organizations (id),
    id              uuid        NOT NULL,
    slug            text        NOT NULL,
    name            text        NOT NULL,
    external_ref    text,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    deleted_at      timestamptz,
    PRIMARY KEY (organization_id, id)
);

CREATE UNIQUE INDEX projects_live_slug ON agent_directory.projects (organization_id, slug) WHERE deleted_at IS NULL;

-- One row per change of the directory; secrets and their hashes never appear.
CREATE TABLE agent_directory.audit (
    organization_id uuid        NOT NULL,
    id              uuid        NOT NULL,
    at              timestamptz NOT NULL,
    actor_kind      text        NOT NULL,
    actor_id        text        NOT NULL,
    action          text        NOT NULL,
    subject_kind    text        NOT NULL,
    subject_id      text        NOT NULL,
    before          json,
    after           json,
    PRIMARY KEY (organization_id, id)
);

CREATE FUNCTION agent_directory.refuse() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'MD001', MESSAGE = TG_ARGV[0];
END $$;

-- Guard: the audit trail is append-only.
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON agent_directory.audit
    FOR EACH ROW EXECUTE FUNCTION agent_directory.refuse('audit rows never change and are never deleted');
CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON agent_directory.audit
    FOR EACH STATEMENT EXECUTE FUNCTION agent_directory.refuse('audit rows are never deleted');

-- Guard: what a task pinned stays meaningful, because versions only rise.
CREATE TRIGGER agents_versions_rise BEFORE UPDATE ON agent_directory.agents
    FOR EACH ROW WHEN (NEW.version < OLD.version OR NEW.prompt_version < OLD.prompt_version)
    EXECUTE FUNCTION agent_directory.refuse('version and prompt_version only rise');
