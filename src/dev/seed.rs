//! The seed: what an administrator would set up over HTTP, set up over HTTP.

use std::path::{Path, PathBuf};

use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Access;

/// The organization's slug.
pub(super) const ORG: &str = "acme";
/// The agent's slug.
const AGENT: &str = "reviewer";
/// The model's slug: 10 and 30 US dollars per million tokens in and out, cached ones at 1 and 12.5.
const MODEL: &str = "gpt-4-turbo";

/// Why the seed could not be planted.
#[derive(Debug, thiserror::Error)]
pub enum SeedError {
    /// The server did not answer.
    #[error("the seed: the server does not answer: {0}")]
    Http(#[from] reqwest::Error),
    /// The server refused.
    #[error("the seed: {path}: {answer}")]
    Refused {
        /// The route.
        path: String,
        /// What it said.
        answer: String,
    },
    /// The agent's secret could not be kept.
    #[error("{path}: {fault}")]
    File {
        /// Where.
        path: PathBuf,
        /// What the system says.
        fault: std::io::Error,
    },
}

/// The agent's credential, kept because the server tells a secret only once.
#[derive(Serialize, Deserialize)]
struct Kept {
    client_id: String,
    client_secret: String,
}

/// Plants it once, and answers how to reach it. What was changed since stays as it is; a credential that is no longer
/// taken has a successor.
pub(super) async fn plant(
    url: &str,
    data: &Path,
    token: String,
    token_2: String,
    second_person: &str,
) -> Result<Access, SeedError> {
    let http = reqwest::Client::builder().no_proxy().build()?;
    let call = async |method: Method, path: &str, body: Value| -> Result<Value, SeedError> {
        let request = http.request(method, format!("{url}/organizations/{ORG}{path}")).bearer_auth(&token);
        let answer = request.json(&body).send().await?;
        let ok = answer.status().is_success();
        let text = answer.text().await?;
        match serde_json::from_str(&text) {
            Ok(body) if ok => Ok(body),
            _ => Err(SeedError::Refused { path: path.to_owned(), answer: text }),
        }
    };
    let file = data.join("agent.json");
    let told = |answer: &Value| {
        let text = |name: &str| answer[name].as_str().map(str::to_owned);
        Some(Kept { client_id: text("client_id")?, client_secret: text("client_secret")? })
    };
    let access = |kept: Kept| Access {
        url: url.to_owned(),
        org: ORG.to_owned(),
        agent: AGENT.to_owned(),
        model: MODEL.to_owned(),
        client_id: kept.client_id,
        client_secret: kept.client_secret,
        token: token.clone(),
        token_2: token_2.clone(),
    };
    // The agent comes last, so all was there with it.
    let planted = http.get(format!("{url}/organizations/{ORG}/agents/{AGENT}")).bearer_auth(&token).send().await?;
    if planted.status().is_success() {
        if let Some(kept) = read(&file)
            && kept.is_taken(&http, url).await?
        {
            return Ok(access(kept));
        }
        // The secret cannot be told again.
        let path = format!("/agents/{AGENT}/credentials");
        let answer = call(Method::POST, &path, json!({})).await?;
        let fresh = told(&answer).ok_or(SeedError::Refused { path, answer: answer.to_string() })?;
        return Ok(access(keep(&file, fresh)?));
    }
    let member = json!({"name": "Grace", "roles": ["admin"]});
    call(Method::PUT, &format!("/members/{second_person}"), member).await?;
    call(Method::PUT, "/projects/app", json!({"name": "App"})).await?;
    let model = json!({"provider": "openai", "model_id": "gpt-4-1106-preview", "aliases": [],
        "input_cost_per_million": "10", "output_cost_per_million": "30",
        "cache_read_cost_per_million": "1", "cache_write_cost_per_million": "12.5"});
    call(Method::PUT, &format!("/models/{MODEL}"), model).await?;
    let agent = call(Method::PUT, &format!("/agents/{AGENT}"), json!({"name": "Reviewer"})).await?;
    let first = told(&agent).ok_or_else(|| SeedError::Refused { path: AGENT.to_owned(), answer: agent.to_string() })?;
    Ok(access(keep(&file, first)?))
}

impl Kept {
    /// Whether the server still sells a token for it.
    async fn is_taken(&self, http: &reqwest::Client, url: &str) -> Result<bool, SeedError> {
        let form = [
            ("grant_type", "client_credentials"),
            ("client_id", &self.client_id),
            ("client_secret", &self.client_secret),
        ];
        let answer = http.post(format!("{url}/auth/token")).form(&form).send().await?;
        Ok(answer.status().is_success())
    }
}

fn read(file: &Path) -> Option<Kept> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

fn keep(file: &Path, kept: Kept) -> Result<Kept, SeedError> {
    let text = serde_json::to_string(&kept).unwrap_or_default();
    super::write_file(file, &text).map_err(|fault| match fault {
        super::DevError::File { path, fault } => SeedError::File { path, fault },
        other => SeedError::Refused { path: file.display().to_string(), answer: other.to_string() },
    })?;
    Ok(kept)
}
