//! A harness: it works one task after the other, in all the ways there are, and notes what it was told.

use std::sync::Arc;
use std::time::Duration;

use mandate::domain::digest::Digest;
use mandate::service::Clock;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Failure;
use super::client::{Call, Caller};
use super::dice::Dice;
use super::notes::{Notes, id, text};

/// The model whose price is known.
pub const MODEL: &str = "sonnet";
/// Sessions end after so long without a sign of life; a silent harness is silent for longer.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(30);
const SILENCE: Duration = Duration::from_secs(40);
/// A payload of this many bytes goes to the artifact store.
const LARGE: usize = 70 * 1024;

/// Why the work on a task does not go on.
enum Halt {
    /// Somebody, or the time, closed it.
    Closed,
    /// Somebody cancelled it: it is the harness that ends it.
    Cancelled,
    /// The session ended.
    SessionLost,
    Failed(Failure),
}

impl From<Failure> for Halt {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// One harness.
pub struct Harness {
    pub account: Arc<Caller>,
    /// Who creates its tasks.
    pub person: Arc<Caller>,
    pub notes: Arc<Notes>,
    pub agent: String,
    pub number: usize,
    pub dice: Dice,
    pub stop: CancellationToken,
}

/// A task in work.
struct Job {
    short_id: String,
    session: Uuid,
    sessions: usize,
    last_seq: i64,
    report: Option<Uuid>,
}

impl Job {
    fn path(&self, rest: &str) -> String {
        format!("/agent-tasks/{}{rest}", self.short_id)
    }
}

impl Harness {
    /// Works until it is told to stop, and then to the end of its task.
    pub async fn work(mut self) -> Result<(), Failure> {
        for nth in 0_usize.. {
            if self.stop.is_cancelled() {
                break;
            }
            let short_id = self.create(nth).await?;
            let steps = 6 + self.dice.roll(16);
            self.task(short_id, steps).await?;
        }
        Ok(())
    }

    async fn create(&mut self, nth: usize) -> Result<String, Failure> {
        let key = format!("worker-{}-{nth}", self.number);
        let mut body = json!({"agent_slug": self.agent, "title": format!("Task {nth} of worker {}", self.number),
            "description": "Find the failing test, mend it and say why it failed.", "idempotency_key": key,
            "labels": {"worker": self.number.to_string(), "team": (["core", "web", "data"][self.dice.roll(3)])}});
        if self.dice.roll(3) == 0 {
            // Some of them spend more than that.
            body["budget"] = ["2", "0.5", "0.02"][self.dice.roll(3)].into();
        }
        let task = self.person.must(&Call::post("create", "/agent-tasks/", &body)).await?;
        let short_id = text(&task, "/short_id")?.to_owned();
        self.notes.created(&short_id)?;
        Ok(short_id)
    }

    async fn task(&mut self, short_id: String, steps: usize) -> Result<(), Failure> {
        let mut job = Job { short_id, session: Uuid::nil(), sessions: 0, last_seq: 0, report: None };
        let mut halted = self.open(&mut job, false).await.err();
        let mut left = steps;
        loop {
            match halted {
                None if left == 0 => halted = self.finish(&mut job).await.err(),
                None => {
                    left -= 1;
                    halted = self.step(&mut job).await.err();
                    continue;
                }
                Some(Halt::SessionLost) => {
                    halted = self.open(&mut job, true).await.err();
                    continue;
                }
                Some(_) => {}
            }
            return match halted {
                None | Some(Halt::Closed) => Ok(()),
                Some(Halt::Cancelled) => self.give_up(&job).await,
                Some(Halt::Failed(failure)) => Err(failure),
                Some(Halt::SessionLost) => continue,
            };
        }
    }

    /// What the call is answered, or why the task does not go on.
    async fn tell(&self, call: Call) -> Result<Value, Halt> {
        let reply = self.account.call(&call).await?;
        if reply.is_success() {
            return Ok(reply.json());
        }
        Err(match reply.code().as_str() {
            "task_closed" | "task_archived" => Halt::Closed,
            "task_cancelled" => Halt::Cancelled,
            "session_closed" | "session_superseded" => Halt::SessionLost,
            _ => Halt::Failed(format!("a harness's call: {} {}", reply.status, reply.text).into()),
        })
    }

    async fn open(&self, job: &mut Job, takeover: bool) -> Result<(), Halt> {
        job.sessions += 1;
        let body = json!({"session_key": format!("run-{}", job.sessions), "takeover": takeover,
            "harness_instance": format!("worker-{}", self.number)});
        let opened = self.tell(Call::post("open session", job.path("/sessions"), &body)).await?;
        job.session = id(&opened, "/session/id")?;
        Ok(())
    }

    async fn step(&mut self, job: &mut Job) -> Result<(), Halt> {
        match self.dice.roll(200) {
            0..=84 => self.append(job).await,
            85..=119 => self.report(job).await,
            120..=149 => self.heartbeat(job).await,
            150..=163 => self.read(job).await,
            164..=171 => self.ask(job).await,
            172..=179 => self.delegate(job).await,
            180..=184 => self.artifact(job).await,
            185..=186 => self.large(job).await,
            187..=192 => self.correct(job).await,
            193..=198 => self.change_session(job).await,
            _ => {
                sleep(SILENCE).await;
                Ok(())
            }
        }
    }

    async fn append(&mut self, job: &Job) -> Result<(), Halt> {
        let count = 1 + self.dice.roll(3);
        let events: Vec<_> = (0..count).map(|_| self.event()).collect();
        self.write(job, events).await
    }

    fn event(&mut self) -> (Uuid, Value) {
        let body = "I read the failing test and the function that it covers. ".repeat(1 + self.dice.roll(5));
        let (kind, payload) = match self.dice.roll(8) {
            0 => ("phase.changed", json!({"phase": (["investigate", "mend", "check"][self.dice.roll(3)])})),
            1 => ("todos.updated", json!({"todos": [{"title": "Find the race", "done": self.dice.roll(2) == 0}]})),
            2 => ("check.reported", json!({"name": "tests", "verdict": "pass", "value": self.dice.roll(100)})),
            3 | 4 => (
                "tool.called",
                json!({"tool": "shell", "mutating": false, "arguments": {"command": "ls"}, "result_summary": body}),
            ),
            _ => ("turn", json!({"body": body})),
        };
        let event_id = Clock::new_id();
        (event_id, json!({"event_id": event_id, "type": kind, "payload": payload}))
    }

    async fn write(&self, job: &Job, events: Vec<(Uuid, Value)>) -> Result<(), Halt> {
        let (ids, events): (Vec<_>, Vec<_>) = events.into_iter().unzip();
        let body = json!({"session_id": job.session, "events": events});
        let answer = self.tell(Call::post("append", job.path("/events"), &body)).await?;
        let written = answer["written"].as_array().map(Vec::as_slice).unwrap_or_default();
        let seq_of = |id: &Uuid| written.iter().find(|event| event["event_id"] == id.to_string())?["seq"].as_i64();
        let duplicates = answer["duplicates"].as_array().map_or(0, Vec::len);
        if written.len() + duplicates != ids.len() {
            return Err(Halt::Failed(format!("a batch of {} events was answered with {answer}", ids.len()).into()));
        }
        self.notes.about(&job.short_id, |noted| noted.events.extend(ids.iter().map(|id| (*id, seq_of(id)))));
        Ok(())
    }

    async fn report(&mut self, job: &mut Job) -> Result<(), Halt> {
        // Now and then one without a price, and one without counts.
        let model = if self.dice.roll(20) == 0 { "a-model-that-nobody-knows" } else { MODEL };
        let mut body = json!({"idempotency_key": Clock::new_id().to_string(), "model_id": model,
            "session_id": job.session});
        if self.dice.roll(20) > 0 {
            body["tokens_in"] = self.dice.roll(5_000).into();
            body["tokens_out"] = self.dice.roll(1_000).into();
            body["cache_read_tokens"] = self.dice.roll(20_000).into();
        }
        let answer = self.tell(Call::post("usage", job.path("/usage"), &body)).await?;
        self.notes.about(&job.short_id, |noted| noted.reports += 1);
        job.report = Some(id(&answer, "/id")?);
        Ok(())
    }

    async fn correct(&mut self, job: &mut Job) -> Result<(), Halt> {
        let Some(report) = job.report else { return Ok(()) };
        let body = json!({"idempotency_key": Clock::new_id().to_string(), "model_id": MODEL, "corrects": report,
            "tokens_in": self.dice.roll(5_000), "tokens_out": self.dice.roll(1_000), "session_id": job.session});
        self.tell(Call::post("correction", job.path("/usage"), &body)).await?;
        self.notes.about(&job.short_id, |noted| noted.reports += 1);
        Ok(())
    }

    async fn heartbeat(&self, job: &Job) -> Result<(), Halt> {
        let path = job.path(&format!("/sessions/{}/heartbeat", job.session));
        let state = self.tell(Call::bare("heartbeat", Method::POST, path)).await?;
        if state["control"] == "cancel" { Err(Halt::Cancelled) } else { Ok(()) }
    }

    async fn read(&self, job: &mut Job) -> Result<(), Halt> {
        let path = job.path(&format!("/events?after_seq={}", job.last_seq));
        let events = self.tell(Call::get("poll", path)).await?;
        for event in events.as_array().map(Vec::as_slice).unwrap_or_default() {
            let seq = event["seq"].as_i64().unwrap_or_default();
            if seq != job.last_seq + 1 {
                let path = job.path("");
                return Err(Halt::Failed(format!("{path}: seq {seq} follows {}", job.last_seq).into()));
            }
            job.last_seq = seq;
        }
        // What is known already costs no body.
        let task = self.account.may(&Call::get("read task", job.path("")), &[]).await?;
        if let Some(tag) = task.as_ref().and_then(|task| task.headers.get("etag")?.to_str().ok()) {
            let call = Call::get("read task again", job.path("")).header("if-none-match", tag);
            self.account.may(&call, &[]).await?;
        }
        Ok(())
    }

    async fn ask(&mut self, job: &Job) -> Result<(), Halt> {
        let key = Clock::new_id().to_string();
        // One that the approvers leave alone, so that it expires and closes the task.
        let expires = self.dice.roll(12) == 0;
        let mut body = if self.dice.roll(2) == 0 {
            let digest = Digest::of(key.as_bytes());
            json!({"kind": "approval", "title": "Merge the fix?", "artifact_digests": [digest.to_string()]})
        } else {
            json!({"kind": "feedback", "title": "Which one?", "options": ["this", "that"]})
        };
        body["request_key"] = key.into();
        body["session_id"] = job.session.to_string().into();
        if expires {
            body["title"] = "Leave me".into();
            let at = Clock::system().now().plus(Duration::from_secs(3));
            body["expires_at"] = at.to_string().into();
        }
        let asked = self.tell(Call::post("ask", job.path("/requests"), &body)).await?;
        let request = id(&asked, "/request/id")?;
        self.notes.about(&job.short_id, |noted| noted.requests.extend([request]));
        if !expires && self.dice.roll(15) == 0 {
            let path = job.path(&format!("/requests/{request}/withdraw"));
            let call = Call::post("withdraw", path, &json!({"session_id": job.session}));
            return match self.account.may(&call, &["request_resolved"]).await {
                Ok(_) => Ok(()),
                Err(_) => self.heartbeat(job).await,
            };
        }
        let after = asked["task"]["last_seq"].as_i64().unwrap_or_default() - 1;
        let is_answer = |event: &Value| event["payload"]["request_id"] == request.to_string();
        self.wait_for(job, after, &["request.resolved", "request.expired", "outcome.set", "control.changed"], is_answer)
            .await
    }

    /// Waits for an event behind `after`, with signs of life in between.
    async fn wait_for(
        &self,
        job: &Job,
        mut after: i64,
        types: &[&str],
        is_it: impl Fn(&Value) -> bool,
    ) -> Result<(), Halt> {
        let types: String = types.iter().flat_map(|name| ["&type=", name]).collect();
        loop {
            self.heartbeat(job).await?;
            let path = job.path(&format!("/events?after_seq={after}&wait=15{types}"));
            let events = self.tell(Call::get("long-poll", path).waiting()).await?;
            for event in events.as_array().map(Vec::as_slice).unwrap_or_default() {
                match event["type"].as_str() {
                    Some("outcome.set") => return Err(Halt::Closed),
                    _ if is_it(event) => return Ok(()),
                    _ => after = event["seq"].as_i64().unwrap_or(after),
                }
            }
        }
    }

    async fn delegate(&mut self, job: &Job) -> Result<(), Halt> {
        let body = json!({"agent_slug": self.agent, "title": "A part", "description": "Do your part.",
            "idempotency_key": Clock::new_id().to_string(), "budget": "0.05", "session_id": job.session});
        let call = Call::post("delegate", job.path("/children"), &body);
        let reply = self.account.call(&call).await?;
        if ["budget_exhausted", "children_limit", "depth_limit"].contains(&reply.code().as_str()) {
            return Ok(());
        }
        let answer = if reply.is_success() { reply.json() } else { self.tell(call).await? };
        let (child, child_id) = (text(&answer, "/short_id")?.to_owned(), id(&answer, "/id")?);
        self.notes.created(&child)?;
        self.notes.about(&job.short_id, |noted| noted.children.extend([child_id]));
        let mut part = Job { short_id: child, session: Uuid::nil(), sessions: 0, last_seq: 0, report: None };
        match self.part(&mut part).await {
            // Whoever cancelled the parent may have cancelled the child with it.
            Err(Halt::Cancelled) => self.give_up(&part).await?,
            Err(Halt::Failed(failure)) => return Err(Halt::Failed(failure)),
            Err(Halt::SessionLost) => self.cancel(&part).await?,
            Ok(()) | Err(Halt::Closed) => {}
        }
        let is_it = |event: &Value| event["payload"]["child_task_id"] == child_id.to_string();
        self.wait_for(job, 0, &["child.closed", "outcome.set", "control.changed"], is_it).await
    }

    async fn part(&mut self, part: &mut Job) -> Result<(), Halt> {
        self.open(part, false).await?;
        self.append(part).await?;
        self.report(part).await?;
        self.finish(part).await
    }

    async fn artifact(&mut self, job: &Job) -> Result<(), Halt> {
        let mut bytes = Clock::new_id().as_bytes().to_vec();
        bytes.resize(1_000 + self.dice.roll(40_000), b'x');
        let (digest, size) = (Digest::of(&bytes), bytes.len());
        self.account.must(&Call::send("send artifact", format!("/artifacts/{digest}"), bytes)).await?;
        let event_id = Clock::new_id();
        let artifact = json!({"digest": digest.to_string(), "size": size, "media_type": "text/plain"});
        let payload = json!({"body": "See the artifact.", "artifact": artifact});
        let event = json!({"event_id": event_id, "type": "turn", "payload": payload});
        self.write(job, vec![(event_id, event)]).await?;
        self.notes.about(&job.short_id, |noted| noted.artifacts.push(digest.to_string()));
        let path = format!("/artifacts/{digest}");
        self.account.may(&Call::get("read artifact", path).header("range", "bytes=0-99"), &[]).await?;
        Ok(())
    }

    async fn large(&self, job: &Job) -> Result<(), Halt> {
        let event_id = Clock::new_id();
        let payload = json!({"body": format!("{event_id} ").repeat(LARGE / 37)});
        self.write(job, vec![(event_id, json!({"event_id": event_id, "type": "turn", "payload": payload}))]).await
    }

    async fn change_session(&mut self, job: &mut Job) -> Result<(), Halt> {
        if self.dice.roll(2) == 0 {
            let path = job.path(&format!("/sessions/{}/close", job.session));
            self.tell(Call::post("close session", path, &json!({"reason": "done_for_now"}))).await?;
        }
        self.open(job, true).await
    }

    async fn finish(&mut self, job: &mut Job) -> Result<(), Halt> {
        if self.dice.roll(20) == 0 {
            let path = job.path(&format!("/sessions/{}/close", job.session));
            self.tell(Call::post("close session", path, &json!({"reason": "gone_home"}))).await?;
            self.cancel(job).await?;
            return Ok(());
        }
        let (outcome, reason) = [
            ("done_acted", None),
            ("done_acted", None),
            ("done_nothing_to_act_on", Some("no_findings")),
            ("failed_external", Some("tool_error")),
        ][self.dice.roll(4)];
        self.end(job, outcome, reason).await
    }

    async fn end(&self, job: &Job, outcome: &str, reason: Option<&str>) -> Result<(), Halt> {
        let body = json!({"outcome": outcome, "reason": reason, "session_id": job.session,
            "result": {"summary": "It is done.", "artifacts": []}});
        self.tell(Call::post("outcome", job.path("/outcome"), &body)).await?;
        self.notes.about(&job.short_id, |noted| noted.outcome = Some(outcome.to_owned()));
        Ok(())
    }

    /// Ends a cancelled task.
    async fn give_up(&self, job: &Job) -> Result<(), Failure> {
        if job.session.is_nil() {
            return self.cancel(job).await;
        }
        match self.end(job, "cancelled_by_human", Some("cancel_seen")).await {
            Ok(()) | Err(Halt::Closed) => Ok(()),
            Err(Halt::Failed(failure)) => Err(failure),
            // Without a session nobody has to see it.
            Err(Halt::SessionLost | Halt::Cancelled) => self.cancel(job).await,
        }
    }

    /// Has its person cancel the task, whatever state it is in.
    async fn cancel(&self, job: &Job) -> Result<(), Failure> {
        let call = Call::post("cancel", job.path("/cancel"), &json!({"force": true}));
        self.person.may(&call, &["task_closed", "task_archived"]).await?;
        // With a session still open the first one only asks.
        self.person.may(&call, &["task_closed", "task_archived"]).await?;
        Ok(())
    }
}
