//! An organization with an agent, a model, a project, a trigger and people, written as the directory writes them.

#![allow(clippy::disallowed_methods, reason = "fresh names and ids for rows that tests plant")]

use mandate::auth::secrets;
use sqlx::PgPool;
use uuid::Uuid;

/// An agent with its credential.
#[derive(Debug, Clone)]
pub struct AgentSeed {
    pub id: Uuid,
    pub slug: String,
    pub account_id: Uuid,
    pub client_id: String,
    pub client_secret: String,
}

/// What an organization was seeded with.
#[derive(Debug, Clone)]
pub struct Seed {
    pub organization_id: Uuid,
    pub slug: String,
    pub agent: AgentSeed,
    /// A model at 1.25, 10, 0.625 and 2 US dollars per million.
    pub model: String,
    pub project_id: Uuid,
    pub trigger_client_id: String,
    pub trigger_client_secret: String,
}

impl Seed {
    /// Plants an organization of that slug.
    pub async fn plant(db: &PgPool, slug: &str) -> Self {
        let organization_id = Uuid::now_v7();
        sqlx::query("INSERT INTO agent_directory.organizations VALUES ($1, $2, $2, NULL, now(), now())")
            .bind(organization_id)
            .bind(slug)
            .execute(db)
            .await
            .unwrap();
        for (person, role) in [("ada", "admin"), ("oscar", "operator"), ("vera", "viewer"), ("abe", "approver")] {
            sqlx::query("INSERT INTO agent_directory.members VALUES ($1, $2, ARRAY[$3], $2, NULL, NULL, now(), now())")
                .bind(organization_id)
                .bind(person)
                .bind(role)
                .execute(db)
                .await
                .unwrap();
        }
        let agent = Self::agent(db, organization_id, "reviewer").await;
        let (_, trigger_client_id, trigger_client_secret) = account(db, organization_id, "trigger", "cron").await;
        let model = Uuid::now_v7();
        sqlx::query(
            "WITH m AS (INSERT INTO agent_directory.models VALUES
                ($1, $2, 'sonnet', 'anthropic', 'claude-sonnet', '{sonnet-latest}', NULL, now(), now(), NULL)),
             n AS (INSERT INTO agent_directory.model_names VALUES
                ($1, 'sonnet', $2), ($1, 'claude-sonnet', $2), ($1, 'sonnet-latest', $2))
             INSERT INTO agent_directory.model_prices VALUES ($1, $2, 'epoch', 1.25, 10, 0.625, 2)",
        )
        .bind(organization_id)
        .bind(model)
        .execute(db)
        .await
        .unwrap();
        let project_id = Uuid::now_v7();
        sqlx::query("INSERT INTO agent_directory.projects VALUES ($1, $2, 'app', 'App', NULL, now(), now(), NULL)")
            .bind(organization_id)
            .bind(project_id)
            .execute(db)
            .await
            .unwrap();
        Self {
            organization_id,
            slug: slug.to_owned(),
            agent,
            model: "sonnet".to_owned(),
            project_id,
            trigger_client_id,
            trigger_client_secret,
        }
    }

    /// Plants a model whose prices of input, output, cache reads and cache writes hold from the beginning; its id.
    pub async fn model(db: &PgPool, organization_id: Uuid, slug: &str, prices: [Option<&str>; 4]) -> Uuid {
        let model = mandate::service::Clock::new_id();
        sqlx::query(
            "WITH m AS (INSERT INTO agent_directory.models VALUES
                ($1, $2, $3, 'acme', $3, '{}', NULL, now(), now(), NULL))
             INSERT INTO agent_directory.model_names VALUES ($1, $3, $2)",
        )
        .bind(organization_id)
        .bind(model)
        .bind(slug)
        .execute(db)
        .await
        .unwrap();
        Self::prices(db, organization_id, model, "1970-01-01T00:00:00Z", prices).await;
        model
    }

    /// Sets the prices of a model from that instant on.
    pub async fn prices(db: &PgPool, organization_id: Uuid, model: Uuid, from: &str, prices: [Option<&str>; 4]) {
        sqlx::query(
            "INSERT INTO agent_directory.model_prices VALUES
                ($1, $2, $3::text::timestamptz, $4::text::numeric, $5::text::numeric, $6::text::numeric,
                 $7::text::numeric)",
        )
        .bind(organization_id)
        .bind(model)
        .bind(from)
        .bind(prices[0])
        .bind(prices[1])
        .bind(prices[2])
        .bind(prices[3])
        .execute(db)
        .await
        .unwrap();
    }

    /// Plants another agent.
    pub async fn agent(db: &PgPool, organization_id: Uuid, slug: &str) -> AgentSeed {
        let (account_id, client_id, client_secret) = account(db, organization_id, "agent", slug).await;
        let id = Uuid::now_v7();
        sqlx::query(
            "INSERT INTO agent_directory.agents (organization_id, id, slug, name, version, prompt_version, enabled,
                max_depth, max_children, service_account_id, created_at, updated_at)
             VALUES ($1, $2, $3, $3, 3, 7, true, 5, 50, $4, now(), now())",
        )
        .bind(organization_id)
        .bind(id)
        .bind(slug)
        .bind(account_id)
        .execute(db)
        .await
        .unwrap();
        AgentSeed { id, slug: slug.to_owned(), account_id, client_id, client_secret }
    }
}

async fn account(db: &PgPool, organization_id: Uuid, kind: &str, slug: &str) -> (Uuid, String, String) {
    let (account, credential, secret) = (Uuid::now_v7(), Uuid::now_v7(), secrets::generate());
    sqlx::query("INSERT INTO agent_directory.service_accounts VALUES ($1, $2, $3, $4, $4, NULL, now(), now(), NULL)")
        .bind(organization_id)
        .bind(account)
        .bind(kind)
        .bind(slug)
        .execute(db)
        .await
        .unwrap();
    sqlx::query("INSERT INTO agent_directory.credentials VALUES ($1, $2, $3, $4, now(), NULL)")
        .bind(organization_id)
        .bind(credential)
        .bind(account)
        .bind(secret.hash().to_vec())
        .execute(db)
        .await
        .unwrap();
    (account, credential.to_string(), secret.expose().to_owned())
}
