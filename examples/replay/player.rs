//! The harness: works one task from its creation to its outcome, and obeys what people want of it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use url::Url;
use uuid::Uuid;

use super::client::{As, Call, Client, Patience};
use super::plan::{Event, Plan};
use super::summary::Summary;
use super::{Fault, Options};

/// How often to look while the task is paused.
const PAUSED: Duration = Duration::from_secs(1);
/// Sessions that one task may have of a replay.
const SESSIONS_MAX: u32 = 1_000;
/// Events of one page when the log is read.
const PAGE: usize = 100;

/// What ends the work before the recording does.
enum Halt {
    /// A person cancelled the task.
    Cancelled,
    /// The task is closed.
    Closed,
    /// The work cannot go on.
    Fault(Fault),
}

impl From<Fault> for Halt {
    fn from(fault: Fault) -> Self {
        match fault.code() {
            Some("task_closed" | "task_archived") => Self::Closed,
            Some("task_cancelled") => Self::Cancelled,
            _ => Self::Fault(fault),
        }
    }
}

/// Tells a person how it goes.
pub type Say<'a> = &'a mut (dyn FnMut(&str) + Send);

/// Plays `plan` as a task of its own, or goes on with that of an earlier run, and says how it went.
pub async fn play(options: &Options, plan: &Plan, say: Say<'_>) -> Result<Summary, Fault> {
    let mut client = Client::new(options)?;
    let task = create(&mut client, plan).await?;
    let missing = Fault::Answer { call: "the creation".to_owned(), what: "short_id" };
    let short_id = task["short_id"].as_str().ok_or(missing)?.to_owned();
    say(&format!("task {short_id}, {}", task["status"].as_str().unwrap_or_default()));
    let mut player = Player {
        client,
        plan,
        short_id,
        session: None,
        sessions: 0,
        heartbeat: Duration::from_secs(15),
        alive_at: Instant::now(),
        duplicates: 0,
        say,
    };
    let ended = if task["status"] == "closed" { Err(Halt::Closed) } else { player.work().await };
    match ended {
        Ok(()) | Err(Halt::Closed) => {}
        Err(Halt::Cancelled) => player.confirm_cancel().await?,
        Err(Halt::Fault(fault)) => return Err(fault),
    }
    player.summary().await
}

async fn create(client: &mut Client, plan: &Plan) -> Result<Value, Fault> {
    let mut body = plan.task.clone();
    body["agent_slug"] = json!(client.options().agent);
    let url = client.url(&["organizations", &client.options().org, "agent-tasks", ""]);
    client.call(&Call::post(As::Person, url, Some(body.to_string())).with_key(plan.keys.task())).await
}

struct Player<'a> {
    client: Client,
    plan: &'a Plan,
    short_id: String,
    session: Option<Uuid>,
    /// How many keys of sessions were used.
    sessions: u32,
    heartbeat: Duration,
    /// When the session last gave a sign of life.
    alive_at: Instant,
    duplicates: u64,
    say: Say<'a>,
}

impl Player<'_> {
    fn url(&self, segments: &[&str]) -> Url {
        let org = self.client.options().org.clone();
        self.client.url(&[&["organizations", &org, "agent-tasks", &self.short_id], segments].concat())
    }

    async fn work(&mut self) -> Result<(), Halt> {
        let plan = self.plan;
        self.open_session().await?;
        self.append(&plan.start).await?;
        let half = plan.steps.len() / 2;
        for (index, step) in plan.steps.iter().enumerate() {
            self.boundary(self.client.options().pace).await?;
            if index == half {
                self.append(&plan.middle).await?;
            }
            for call in step.calls.clone() {
                self.report(call).await?;
            }
            self.append(&step.events).await?;
            (self.say)(&format!("step {} of {}", index + 1, plan.steps.len()));
        }
        self.append(&plan.end).await?;
        self.boundary(Duration::ZERO).await?;
        self.write("outcome", &json!({"outcome": "done_acted", "reason": null, "result": plan.result})).await?;
        Ok(())
    }

    /// Opens a session under the next key that was not used up: the key of a closed session is refused.
    async fn open_session(&mut self) -> Result<(), Halt> {
        let mut patience = Patience::new(self.client.options().patience);
        while self.sessions < SESSIONS_MAX {
            let key = self.plan.keys.session(self.sessions + 1);
            let body = json!({"session_key": key, "harness_instance": "replay"});
            let call = Call::post(As::Agent, self.url(&["sessions"]), Some(body.to_string()));
            match self.client.call(&call).await {
                Ok(answer) => {
                    let id = answer["session"]["id"].as_str().and_then(|id| id.parse().ok());
                    let missing = Fault::Answer { call: "the opening of a session".to_owned(), what: "session.id" };
                    self.session = Some(id.ok_or(missing)?);
                    self.sessions += 1;
                    self.alive_at = Instant::now();
                    let interval = answer["task"]["heartbeat_interval_seconds"].as_u64().unwrap_or(15);
                    self.heartbeat = Duration::from_secs(interval.clamp(1, 60));
                    (self.say)(&format!("session {key}"));
                    return Ok(());
                }
                Err(fault) => match fault.code() {
                    Some("session_closed" | "session_superseded") => self.sessions += 1,
                    // The agent works as many tasks as it may: one of them will end.
                    Some("concurrency_limit") => patience.wait("POST sessions", fault.to_string(), None).await?,
                    _ => return Err(fault.into()),
                },
            }
        }
        Err(Fault::Options(format!("{} has {SESSIONS_MAX} sessions of this recording already", self.short_id)).into())
    }

    /// Makes a write that names the session; when that was lost in the meantime, a new one is opened and named.
    async fn write(&mut self, route: &str, body: &Value) -> Result<Value, Halt> {
        loop {
            let mut body = body.clone();
            body["session_id"] = json!(self.session);
            let call = Call::post(As::Agent, self.url(&[route]), Some(body.to_string()));
            match self.client.call(&call).await {
                Ok(answer) => {
                    self.alive_at = Instant::now();
                    return Ok(answer);
                }
                Err(fault) if fault.code() == Some("session_closed") => self.open_session().await?,
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    async fn append(&mut self, events: &[Event]) -> Result<(), Halt> {
        match self.write("events", &json!({"events": events})).await {
            Ok(answer) => {
                self.duplicates += answer["duplicates"].as_array().map_or(0, |ids| ids.len() as u64);
                Ok(())
            }
            Err(Halt::Closed) => {
                // The task closed under the turn. An effect that was made is accepted all the same.
                let calls: Vec<_> = events.iter().filter(|event| event.kind == "tool.called").collect();
                if !calls.is_empty() {
                    self.write("events", &json!({"events": calls})).await?;
                }
                Err(Halt::Closed)
            }
            Err(halt) => Err(halt),
        }
    }

    async fn report(&mut self, call: u64) -> Result<(), Halt> {
        let mut body = json!({"idempotency_key": self.plan.keys.usage(call), "model_id": self.client.options().model});
        if let Some((tokens_in, tokens_out)) = self.plan.usage.of_call(call) {
            body["tokens_in"] = json!(tokens_in);
            body["tokens_out"] = json!(tokens_out);
        }
        let answer = self.write("usage", &body).await?;
        // The budget may have closed it; the tool of this turn is then not called.
        if answer["task"]["status"] == "closed" { Err(Halt::Closed) } else { Ok(()) }
    }

    /// The boundary of a turn: a sign of life, and what people want. Holds while the task is paused.
    async fn boundary(&mut self, pace: Duration) -> Result<(), Halt> {
        self.rest(pace).await?;
        let mut told = false;
        loop {
            let state = self.beat().await?;
            match state["control"].as_str() {
                Some("cancel") => return Err(Halt::Cancelled),
                Some("pause") => {
                    if !told {
                        (self.say)("paused");
                        told = true;
                    }
                    tokio::time::sleep(PAUSED.min(self.heartbeat)).await;
                }
                _ => return Ok(()),
            }
        }
    }

    /// Waits, with a heartbeat whenever one is due.
    async fn rest(&mut self, time: Duration) -> Result<(), Halt> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let due = self.heartbeat.saturating_sub(self.alive_at.elapsed());
            if left <= due {
                tokio::time::sleep(left).await;
                return Ok(());
            }
            tokio::time::sleep(due).await;
            self.beat().await?;
        }
    }

    async fn beat(&mut self) -> Result<Value, Halt> {
        loop {
            let session = self.session.map(|id| id.to_string()).unwrap_or_default();
            let call = Call::post(As::Agent, self.url(&["sessions", &session, "heartbeat"]), None);
            match self.client.call(&call).await {
                Ok(state) => {
                    self.alive_at = Instant::now();
                    return Ok(state);
                }
                Err(fault) if fault.code() == Some("session_closed") => self.open_session().await?,
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    /// Tells that the cancel was seen. A run that begins under a cancel may open no session; it names the one that an
    /// earlier run left open, if any.
    async fn confirm_cancel(&mut self) -> Result<(), Fault> {
        (self.say)("cancelled");
        if self.session.is_none() {
            let listed = self.client.call(&Call::get(As::Agent, self.url(&["sessions"]))).await?;
            let prefix = self.plan.keys.session(1);
            let ours = |session: &&Value| {
                session["closed_at"].is_null()
                    && session["session_key"].as_str().is_some_and(|key| key.starts_with(&prefix))
            };
            let open = listed.as_array().and_then(|sessions| sessions.iter().find(ours));
            self.session = open.and_then(|session| session["id"].as_str()?.parse().ok());
        }
        loop {
            let body = json!({"outcome": "cancelled_by_human", "reason": "cancel_seen", "session_id": self.session});
            let call = Call::post(As::Agent, self.url(&["outcome"]), Some(body.to_string()));
            let Err(fault) = self.client.call(&call).await else { return Ok(()) };
            match fault.code() {
                // It closed in the meantime; how, the summary tells.
                Some("task_closed" | "task_archived") => return Ok(()),
                // Lost, while somebody else's keeps the task open.
                Some("session_closed") if self.session.take().is_some() => {}
                _ => return Err(fault),
            }
        }
    }

    /// Reads the task and its whole log, and compares both with the recording.
    async fn summary(&mut self) -> Result<Summary, Fault> {
        let task = self.client.call(&Call::get(As::Agent, self.url(&[]))).await?;
        let mut summary = Summary::of(&task);
        let mut seen: HashMap<Uuid, u64> = HashMap::new();
        let mut last_seq = 0;
        loop {
            let mut url = self.url(&["events"]);
            url.query_pairs_mut()
                .append_pair("after_seq", &last_seq.to_string())
                .append_pair("limit", &PAGE.to_string());
            let page = self.client.call(&Call::get(As::Agent, url)).await?;
            let Some(entries) = page.as_array().filter(|entries| !entries.is_empty()) else { break };
            for entry in entries {
                let seq = entry["seq"].as_u64().unwrap_or_default();
                if seq != last_seq + 1 {
                    summary.faults.push(format!("seq {seq} follows seq {last_seq}"));
                }
                last_seq = seq;
                if let Some(id) = entry["event_id"].as_str().and_then(|id| id.parse().ok()) {
                    *seen.entry(id).or_default() += 1;
                }
            }
        }
        if last_seq != summary.events {
            summary.faults.push(format!("the log ends at seq {last_seq}, the task says {}", summary.events));
        }
        if summary.status == "closed" && summary.outcome.as_deref() == Some("done_acted") {
            self.compare(&mut summary, &seen);
        } else {
            summary.faults.push("the task did not close with done_acted".to_owned());
        }
        summary.duplicates = self.duplicates;
        summary.retries = self.client.retries();
        Ok(summary)
    }

    /// Compares a log and ledger that should be complete with the recording.
    fn compare(&self, summary: &mut Summary, seen: &HashMap<Uuid, u64>) {
        let once = self.plan.event_ids().filter(|id| seen.get(id) == Some(&1)).count();
        let planned = self.plan.event_ids().count();
        if once != planned {
            summary.faults.push(format!("{once} of {planned} recorded events are in the log exactly once"));
        }
        let calls = i64::try_from(self.plan.usage.calls).unwrap_or(i64::MAX);
        let (tokens, unmeasured) = match self.plan.usage.tokens {
            Some((sent, received)) => ((sent.cast_signed(), received.cast_signed()), 0),
            None => ((0, 0), calls),
        };
        if summary.tokens != tokens || summary.unmeasured != unmeasured {
            let (sent, received) = tokens;
            let wanted = format!("{sent} tokens in, {received} out and {unmeasured} reports unmeasured");
            summary.faults.push(format!("the ledger's sums are not the recording's: {wanted}"));
        }
    }
}
