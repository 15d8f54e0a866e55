//! People: one who looks, answers, pauses and cancels, and those who resolve; and a trigger.

use std::sync::Arc;
use std::time::Duration;

use mandate::service::Clock;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Failure;
use super::client::{Call, Caller};
use super::dice::Dice;
use super::notes::{Notes, text};

/// How many pages of a list somebody reads.
const PAGES: usize = 3;
/// How often the approvers look, and the trigger fires.
const APART: Duration = Duration::from_millis(500);
const FIRES: Duration = Duration::from_secs(2);
/// What a call about a task may meet because others work it too.
const OVERTAKEN: [&str; 5] =
    ["task_closed", "task_archived", "task_cancelled", "cancel_pending", "precondition_failed"];

/// Somebody with a browser.
pub struct Person {
    pub caller: Arc<Caller>,
    pub notes: Arc<Notes>,
    pub dice: Dice,
    /// The id of a project with which tasks are associated.
    pub project: String,
    pub stop: CancellationToken,
}

impl Person {
    /// Operates until it is told to stop.
    pub async fn operate(mut self) -> Result<(), Failure> {
        while !self.stop.is_cancelled() {
            let tasks = self.list().await?;
            for _ in 0..4 {
                let Some(task) = self.dice.pick(&tasks).cloned() else { break };
                self.look(&task).await?;
            }
            // Only what runs is worked, so that a task that nobody holds is never paused for ever.
            if let Some(task) = self.dice.pick(&self.running().await?).cloned() {
                self.interfere(&task).await?;
            }
            self.overview().await?;
        }
        Ok(())
    }

    /// Reads some pages of one of the lists.
    async fn list(&mut self) -> Result<Vec<String>, Failure> {
        let filters = [
            "",
            "status=closed",
            "status=running&status=blocked",
            "mine=true",
            "label=team=core",
            "origin_kind=task",
            "sort=status_since",
            "q=worker",
            "owner=ada&status=running",
        ];
        let filter = self.dice.pick(&filters).copied().unwrap_or_default();
        let mut path = format!("/agent-tasks/?limit=20&{filter}");
        let mut names = Vec::new();
        for _ in 0..PAGES {
            let Some(reply) = self.caller.may(&Call::get("list", path), &[]).await? else { break };
            let page = reply.json();
            for task in page.as_array().map(Vec::as_slice).unwrap_or_default() {
                names.push(text(task, "/short_id")?.to_owned());
            }
            let Some(next) = reply.next() else { break };
            path = next;
        }
        Ok(names)
    }

    async fn running(&self) -> Result<Vec<String>, Failure> {
        let page = self.caller.must(&Call::get("list", "/agent-tasks/?status=running&limit=50")).await?;
        let names = page.as_array().map(Vec::as_slice).unwrap_or_default().iter();
        names.map(|task| Ok(text(task, "/short_id")?.to_owned())).collect()
    }

    async fn look(&mut self, task: &str) -> Result<(), Failure> {
        let about = ["", "/events?limit=50", "/sessions", "/requests", "/usage", "/tree", "/relations", "/proof"];
        let rest = self.dice.pick(&about).copied().unwrap_or_default();
        self.caller.must(&Call::get("look", format!("/agent-tasks/{task}{rest}"))).await?;
        Ok(())
    }

    async fn interfere(&mut self, task: &str) -> Result<(), Failure> {
        let path = |rest: &str| format!("/agent-tasks/{task}{rest}");
        match self.dice.roll(10) {
            0..=3 => {
                let call = Call::post("reply", path("/reply"), &json!({"body": "Have a look at the clock as well."}));
                let call = call.header("idempotency-key", Clock::new_id().to_string());
                if self.caller.may(&call, &OVERTAKEN).await?.is_some() {
                    self.notes.about(task, |noted| noted.replies += 1);
                }
            }
            4 | 5 => {
                for way in ["/pause", "/resume"] {
                    let call = Call::post("pause or resume", path(way), &json!({"reason": "I want to look."}));
                    self.caller.may(&call, &OVERTAKEN).await?;
                }
            }
            6 => {
                let body = json!({"reason": "It is not needed.", "cascade": true});
                self.caller.may(&Call::post("cancel", path("/cancel"), &body), &OVERTAKEN).await?;
            }
            7 => {
                let owner = ["ada", "grace"][self.dice.roll(2)];
                let call = Call::post("reassign", path("/reassign"), &json!({"owner": owner}));
                self.caller.may(&call, &OVERTAKEN).await?;
            }
            8 => {
                if let Some(other) = self.dice.pick(&self.notes.recent()).filter(|other| *other != task) {
                    for method in [Method::PUT, Method::DELETE] {
                        let call = Call::bare("require", method, path(&format!("/requires/{other}")));
                        self.caller.may(&call, &OVERTAKEN).await?;
                    }
                }
            }
            _ => {
                for method in [Method::PUT, Method::DELETE] {
                    let call = Call::bare("project", method, path(&format!("/projects/{}", self.project)));
                    self.caller.may(&call, &OVERTAKEN).await?;
                }
            }
        }
        Ok(())
    }

    /// What is read from the log store, and the directory.
    async fn overview(&mut self) -> Result<(), Failure> {
        let paths = [
            "/agent-tasks/waiting",
            "/agent-usage?group_by=agent,model",
            "/operations-log?limit=20",
            "/agents",
            "/members",
            "/models",
            "/directory-audit?limit=5",
        ];
        let path = self.dice.pick(&paths).copied().unwrap_or_default();
        self.caller.must(&Call::get("overview", path)).await?;
        Ok(())
    }

    /// Resolves what waits until it is told to stop.
    pub async fn approve(mut self) -> Result<(), Failure> {
        while !self.stop.is_cancelled() {
            let open = self.caller.must(&Call::get("inbox", "/requests?limit=50").waiting()).await?;
            for request in open.as_array().map(Vec::as_slice).unwrap_or_default() {
                self.resolve(request).await?;
            }
            sleep(APART).await;
        }
        Ok(())
    }

    async fn resolve(&mut self, request: &Value) -> Result<(), Failure> {
        if request["title"] == "Leave me" {
            return Ok(());
        }
        let (task, id) = (text(request, "/task/short_id")?, text(request, "/id")?);
        let status = match request["kind"].as_str() {
            Some("feedback") => "answered",
            _ if self.dice.roll(5) == 0 => "rejected",
            _ => "approved",
        };
        let mut body = json!({"status": status});
        if status == "answered" {
            body["choice"] = "that".into();
        } else {
            body["artifact_digests"] = request["artifact_digests"].clone();
        }
        let call = Call::post("resolve", format!("/agent-tasks/{task}/requests/{id}/resolve"), &body).waiting();
        let refusals = ["request_resolved", "request_expired", "task_closed", "task_archived", "task_cancelled"];
        if self.caller.may(&call, &refusals).await?.is_some() {
            let id: Uuid = id.parse()?;
            self.notes.about(task, |noted| drop(noted.resolutions.insert(id, status.to_owned())));
        }
        Ok(())
    }

    /// Creates tasks as a webhook gateway does, some of them closed from the start.
    pub async fn fire(self, agent: String) -> Result<(), Failure> {
        let mut delivery = 0_usize;
        while !self.stop.is_cancelled() {
            delivery += 1;
            let mut body = json!({"agent_slug": agent, "title": "A push", "description": "Look at it.",
                "subject": format!("app#{}", delivery % 50), "idempotency_key": format!("delivery-{delivery}"),
                "initial_outcome": "suppressed_duplicate", "initial_outcome_reason": "same_subject_open"});
            if delivery.is_multiple_of(3) {
                body["initial_outcome"] = "no_reason_to_run".into();
                body["initial_outcome_reason"] = "precondition_not_met".into();
            }
            let call = Call::post("trigger", "/agent-tasks/", &body)
                .header("x-mandate-webhook", "push")
                .header("x-mandate-delivery", delivery.to_string())
                .header("x-mandate-accountable", "ada");
            let task = self.caller.must(&call).await?;
            self.notes.created(text(&task, "/short_id")?)?;
            sleep(FIRES).await;
        }
        Ok(())
    }
}
