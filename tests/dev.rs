//! `mandate dev`, as a person runs it: the real program with a real PostgreSQL of its own.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

fn mandate(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mandate"));
    command.current_dir(folder).stdin(Stdio::null());
    command
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Ends the program when the test does, whatever happens.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `mandate dev` on a free port and waits until it has told how to reach it.
async fn start(folder: &Path) -> (Running, BTreeMap<String, String>) {
    let file = folder.join("mandate.env");
    let _ = std::fs::remove_file(&file);
    let arguments = ["dev", "--port", "0", "--env-file", "mandate.env"];
    let mut running = Running(mandate(folder).args(arguments).stdout(Stdio::null()).spawn().unwrap());
    for _ in 0..1_200 {
        if let Ok(text) = std::fs::read_to_string(&file) {
            let pairs = text.lines().map(|line| line.split_once('=').unwrap());
            return (running, pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect());
        }
        assert_eq!(running.0.try_wait().unwrap(), None, "mandate dev ended early");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("mandate dev was not ready within a minute");
}

async fn tasks(variables: &BTreeMap<String, String>, person: &str) -> Value {
    let url = format!("{}/organizations/{}/agent-tasks/", variables["MANDATE_URL"], variables["MANDATE_ORG"]);
    let answer = reqwest::Client::new().get(url).bearer_auth(&variables[person]).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.json().await.unwrap()
}

#[test]
fn the_demo_plays_a_whole_task_and_ends_with_status_0() {
    let folder = tempfile::tempdir().unwrap();
    for short_id in ["T-1", "T-2"] {
        let output = mandate(folder.path()).args(["dev", "--port", "0", "--demo", "--once"]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let closed = format!("{short_id} closed as done_acted");
        assert!(text(&output).contains(&closed), "{}", text(&output));
    }
}

#[tokio::test]
async fn its_variables_open_the_api_and_survive_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let (mut running, variables) = start(folder.path()).await;
    let names = [
        "MANDATE_URL",
        "MANDATE_ORG",
        "MANDATE_AGENT",
        "MANDATE_MODEL",
        "MANDATE_CLIENT_ID",
        "MANDATE_CLIENT_SECRET",
        "MANDATE_TOKEN",
        "MANDATE_TOKEN_2",
    ];
    for name in names {
        assert!(!variables[name].is_empty(), "{name}");
    }
    let http = reqwest::Client::new();
    let url = format!("{}/organizations/{}/agent-tasks/", variables["MANDATE_URL"], variables["MANDATE_ORG"]);
    let body = json!({"agent_slug": variables["MANDATE_AGENT"], "title": "Kept", "description": "Through a kill."});
    let created = http.post(url).bearer_auth(&variables["MANDATE_TOKEN"]).json(&body).send().await.unwrap();
    assert_eq!(created.status(), 201);
    assert_eq!(tasks(&variables, "MANDATE_TOKEN_2").await[0]["title"], "Kept");
    // SHA-256 of nothing.
    let nothing = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let url = format!("{}/organizations/{}/artifacts/{nothing}", variables["MANDATE_URL"], variables["MANDATE_ORG"]);
    let sent = http.put(&url).bearer_auth(&variables["MANDATE_TOKEN"]).send().await.unwrap();
    assert_eq!(sent.status(), 201);
    let docs = http.get(format!("{}/docs/", variables["MANDATE_URL"])).send().await.unwrap();
    assert_eq!(docs.status(), 200);

    running.0.kill().unwrap();
    running.0.wait().unwrap();
    let (_running, again) = start(folder.path()).await;
    assert_eq!(tasks(&again, "MANDATE_TOKEN").await[0]["title"], "Kept");
    let form = [
        ("grant_type", "client_credentials"),
        ("client_id", again["MANDATE_CLIENT_ID"].as_str()),
        ("client_secret", again["MANDATE_CLIENT_SECRET"].as_str()),
    ];
    let token = http.post(format!("{}/auth/token", again["MANDATE_URL"])).form(&form).send().await.unwrap();
    assert_eq!(token.status(), 200);
}

#[test]
fn settings_that_are_wrong_are_all_named() {
    let folder = tempfile::tempdir().unwrap();
    let output = mandate(folder.path())
        .arg("serve")
        .env("MANDATE_SERVER__REQUEST_TIMEOUT_SECONDS", "0")
        .env("MANDATE_AUTH__AUDIENCE", "x")
        .output()
        .unwrap();
    assert!(!output.status.success());
    for setting in ["database.url", "server.request_timeout_seconds"] {
        assert!(text(&output).contains(setting), "{}", text(&output));
    }
}

/// What somebody tries out is not undone by the next start.
#[tokio::test]
async fn what_was_changed_since_the_first_start_stays_so() {
    let folder = tempfile::tempdir().unwrap();
    let (running, variables) = start(folder.path()).await;
    let http = reqwest::Client::new();
    let base = |variables: &BTreeMap<String, String>| {
        format!("{}/organizations/{}", variables["MANDATE_URL"], variables["MANDATE_ORG"])
    };
    let at = base(&variables);
    let put = async |path: &str, body: Value| {
        let answer = http.put(format!("{at}{path}")).bearer_auth(&variables["MANDATE_TOKEN"]).json(&body).send().await;
        assert!(answer.unwrap().status().is_success(), "{path}");
    };
    put("/members/grace", json!({"name": "Grace H.", "roles": ["viewer"]})).await;
    put("/agents/reviewer", json!({"name": "Another name"})).await;
    put(
        "/models/gpt-4-turbo",
        json!({"provider": "openai", "model_id": "gpt-4-1106-preview", "aliases": ["four"],
        "input_cost_per_million": "11", "output_cost_per_million": "31"}),
    )
    .await;
    let routes = ["/members/grace", "/agents/reviewer", "/models/gpt-4-turbo"];
    let read = async |variables: &BTreeMap<String, String>| {
        let mut found = Vec::new();
        for route in routes {
            let call = http.get(format!("{}{route}", base(variables))).bearer_auth(&variables["MANDATE_TOKEN"]);
            let answer = call.send().await.unwrap();
            assert_eq!(answer.status(), 200, "{route}");
            found.push(answer.json::<Value>().await.unwrap());
        }
        found
    };
    let changed = read(&variables).await;
    // The kept credential is taken back too: the next start prints one that is taken.
    let credentials = http.get(format!("{at}/agents/reviewer/credentials")).bearer_auth(&variables["MANDATE_TOKEN"]);
    let credentials: Value = credentials.send().await.unwrap().json().await.unwrap();
    let first = credentials[0]["client_id"].as_str().unwrap();
    let revoke = http.delete(format!("{at}/agents/reviewer/credentials/{first}"));
    assert!(revoke.bearer_auth(&variables["MANDATE_TOKEN"]).send().await.unwrap().status().is_success());
    drop(running);
    let (_running, later) = start(folder.path()).await;
    assert_eq!(read(&later).await, changed);
    assert_ne!(later["MANDATE_CLIENT_ID"], variables["MANDATE_CLIENT_ID"]);
    let form = [
        ("grant_type", "client_credentials"),
        ("client_id", &later["MANDATE_CLIENT_ID"]),
        ("client_secret", &later["MANDATE_CLIENT_SECRET"]),
    ];
    let token = http.post(format!("{}/auth/token", later["MANDATE_URL"])).form(&form).send().await.unwrap();
    assert_eq!(token.status(), 200);
}
