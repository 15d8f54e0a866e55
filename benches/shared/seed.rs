//! An organization with an agent, written as the directory writes it, and working tasks, made through the API.

use std::path::Path;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use mandate::auth::mint::PersonMint;
use mandate::auth::secrets;
use mandate::service::Clock;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use super::Failure;

/// The organization's slug.
pub const ORG: &str = "bench";
/// The agent.
pub const AGENT: &str = "worker";
/// The one model that has prices.
pub const MODEL: &str = "sonnet";
const PERSON: &str = "ada";
const ISSUER: &str = "https://people.example.com";
const AUDIENCE: &str = "mandate";

/// How many tasks are made at once.
const AT_ONCE: usize = 8;

/// A working task: what one client calls about.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Target {
    pub organization: Uuid,
    pub task: Uuid,
    pub short_id: String,
    pub session: Uuid,
    pub last_seq: i64,
}

/// An issuer of people's tokens whose key set lies in `file`; the mint, and the setting that trusts it.
pub fn people(file: &Path) -> Result<(PersonMint, String), Failure> {
    let mint = PersonMint::generate()?;
    std::fs::write(file, mint.jwks().to_string())?;
    let setting = format!(
        r#"[{{issuer = "{ISSUER}", key_file = "{}", audience = "{AUDIENCE}", algorithms = ["EdDSA"]}}]"#,
        file.display()
    );
    Ok((mint, setting))
}

/// Somebody with a token.
pub struct Caller {
    http: reqwest::Client,
    base: String,
    token: String,
}

/// The callers that make and work tasks.
pub struct Callers {
    organization: Uuid,
    /// Whose tasks they are.
    pub person: Caller,
    /// Whose token the clients use.
    pub agent: Caller,
}

impl Callers {
    /// Plants the organization and gets its callers their tokens.
    pub async fn plant(
        database_url: &str,
        base: &str,
        http: &reqwest::Client,
        mint: &PersonMint,
    ) -> Result<Self, Failure> {
        let (organization, credential) = (Clock::new_id(), Clock::new_id());
        let secret = secrets::generate();
        plant(database_url, organization, credential, &secret.hash()).await?;
        let form = [
            ("grant_type", "client_credentials"),
            ("client_id", &credential.to_string()),
            ("client_secret", secret.expose()),
        ];
        let answer = http.post(format!("{base}/auth/token")).form(&form).send().await?.error_for_status()?;
        let answer: Value = answer.json().await?;
        let caller = |token: String| Caller { http: http.clone(), base: base.to_owned(), token };
        let day = Duration::from_hours(24);
        let person = mint.mint(PERSON, ISSUER, AUDIENCE, day, Map::new(), Clock::system().now());
        let agent = text(&answer, "/access_token")?.to_owned();
        Ok(Self { organization, person: caller(person), agent: caller(agent) })
    }

    /// Makes the one model with prices.
    #[allow(dead_code, reason = "not every benchmark has something priced")]
    pub async fn price(&self) -> Result<(), Failure> {
        let prices = json!({"provider": "anthropic", "model_id": "sonnet-1", "input_cost_per_million": "3",
            "output_cost_per_million": "15", "cache_read_cost_per_million": "0.3",
            "cache_write_cost_per_million": "3.75"});
        self.person.put(&format!("/models/{MODEL}"), &prices).await.map(drop)
    }

    /// Makes tasks and opens a session of each.
    pub async fn targets(&self, count: usize) -> Result<Vec<Target>, Failure> {
        futures::stream::iter(0..count).map(|_| self.target()).buffered(AT_ONCE).try_collect().await
    }

    async fn target(&self) -> Result<Target, Failure> {
        let body = json!({"agent_slug": AGENT, "title": "A task", "description": "Do it."});
        let task = self.person.post("/agent-tasks/", &body).await?;
        let short_id = text(&task, "/short_id")?.to_owned();
        let path = format!("/agent-tasks/{short_id}/sessions");
        let opened = self.agent.post(&path, &json!({"session_key": "bench"})).await?;
        Ok(Target {
            organization: self.organization,
            task: text(&task, "/id")?.parse()?,
            short_id,
            session: text(&opened, "/session/id")?.parse()?,
            last_seq: opened["task"]["last_seq"].as_i64().ok_or("a session without the length of its log")?,
        })
    }
}

impl Caller {
    /// The bearer token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Posts, and answers the answer.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.send(self.http.post(self.url(path)), path, body).await
    }

    /// Puts.
    pub async fn put(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.send(self.http.put(self.url(path)), path, body).await
    }

    fn url(&self, path: &str) -> String {
        format!("{}/organizations/{ORG}{path}", self.base)
    }

    async fn send(&self, request: reqwest::RequestBuilder, path: &str, body: &Value) -> Result<Value, Failure> {
        let answer = request.bearer_auth(&self.token).json(body).send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        if !status.is_success() {
            return Err(format!("{path}: {status} {text}").into());
        }
        Ok(serde_json::from_str(&text)?)
    }
}

/// A text of an answer.
pub fn text<'a>(value: &'a Value, pointer: &str) -> Result<&'a str, Failure> {
    value.pointer(pointer).and_then(Value::as_str).ok_or_else(|| format!("an answer without {pointer}: {value}").into())
}

async fn plant(database_url: &str, organization: Uuid, credential: Uuid, secret_hash: &[u8]) -> Result<(), Failure> {
    let (account, agent) = (Clock::new_id(), Clock::new_id());
    let mut db = PgConnection::connect(database_url).await?;
    sqlx::query("INSERT INTO agent_directory.organizations VALUES ($1, $2, $2, NULL, now(), now())")
        .bind(organization)
        .bind(ORG)
        .execute(&mut db)
        .await?;
    sqlx::query("INSERT INTO agent_directory.members VALUES ($1, $2, ARRAY['admin'], $2, NULL, NULL, now(), now())")
        .bind(organization)
        .bind(PERSON)
        .execute(&mut db)
        .await?;
    sqlx::query(
        "INSERT INTO agent_directory.service_accounts VALUES ($1, $2, 'agent', $3, $3, NULL, now(), now(), NULL)",
    )
    .bind(organization)
    .bind(account)
    .bind(AGENT)
    .execute(&mut db)
    .await?;
    sqlx::query("INSERT INTO agent_directory.credentials VALUES ($1, $2, $3, $4, now(), NULL)")
        .bind(organization)
        .bind(credential)
        .bind(account)
        .bind(secret_hash)
        .execute(&mut db)
        .await?;
    sqlx::query(
        "INSERT INTO agent_directory.agents (organization_id, id, slug, name, version, prompt_version, enabled,
            max_depth, max_children, service_account_id, created_at, updated_at)
         VALUES ($1, $2, $3, $3, 1, 1, true, 5, 50, $4, now(), now())",
    )
    .bind(organization)
    .bind(agent)
    .bind(AGENT)
    .bind(account)
    .execute(&mut db)
    .await?;
    db.close().await?;
    Ok(())
}
