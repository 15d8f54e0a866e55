//! What must be true in the end: every log is archived, whole, proven without a server, and says exactly what clients
//! were told.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::Failure;
use super::client::{Call, Caller};
use super::notes::{Noted, id, text};
use super::readers::Followed;
use super::world::World;

/// How long everything may take to come to rest.
const PATIENCE: Duration = Duration::from_mins(5);
/// How many logs are read at once.
const AT_ONCE: usize = 4;

/// What was proven.
#[derive(Default)]
pub struct Proven {
    pub tasks: usize,
    pub events: usize,
    pub reports: usize,
    pub acknowledged: usize,
    pub outcomes: BTreeMap<String, usize>,
    pub audit: String,
    pub settled_in: Duration,
}

impl Proven {
    pub fn json(&self) -> Value {
        json!({"tasks": self.tasks, "events": self.events, "reports": self.reports,
            "acknowledged_events": self.acknowledged, "outcomes": self.outcomes, "audit": self.audit,
            "settled_in_seconds": self.settled_in.as_secs_f64()})
    }
}

/// Waits until every task is closed and every log archived.
pub async fn settle(world: &World) -> Result<Duration, Failure> {
    let (begin, mut db) = (Instant::now(), PgConnection::connect(&world.database_url()?).await?);
    loop {
        let left = "SELECT count(*) FILTER (WHERE outcome IS NULL), count(*) FILTER (WHERE log_archived_at IS NULL)
            FROM agent_runtime.tasks";
        let (open, left): (i64, i64) = sqlx::query_as(left).fetch_one(&mut db).await?;
        if left == 0 {
            db.close().await?;
            return Ok(begin.elapsed());
        }
        if begin.elapsed() > PATIENCE {
            return Err(format!("after {PATIENCE:?} {open} tasks are open and {left} logs not archived").into());
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// Proves all of it.
pub async fn prove(
    world: &World,
    caller: &Caller,
    notes: &[(String, Noted)],
    followed: &Followed,
) -> Result<Proven, Failure> {
    let folder = world.folder().join("exported");
    std::fs::create_dir_all(&folder)?;
    let mut proven = Proven::default();
    let mut all: HashSet<Uuid> = HashSet::new();
    let logs = futures::stream::iter(notes);
    let mut logs = logs.map(|(name, noted)| log(world, caller, &folder, name, noted)).buffer_unordered(AT_ONCE);
    while let Some(log) = logs.try_next().await? {
        proven.tasks += 1;
        proven.events += log.events.len();
        proven.reports += log.reports;
        proven.acknowledged += log.acknowledged;
        *proven.outcomes.entry(log.outcome).or_default() += 1;
        let before = all.len();
        all.extend(&log.events);
        if all.len() != before + log.events.len() {
            return Err("two logs have an event id in common".into());
        }
    }
    drop(logs);
    if followed.events != all || followed.repeated > 0 || followed.expired > 0 {
        let missing = all.difference(&followed.events).count();
        return Err(format!(
            "the feed: {missing} of {} events are missing, {} came again, {} cursors expired",
            all.len(),
            followed.repeated,
            followed.expired
        )
        .into());
    }
    let audit = world.command().arg("audit").output().await?;
    String::from_utf8_lossy(&audit.stdout).trim_end().clone_into(&mut proven.audit);
    let expected =
        format!("{} tasks, {} events and {} reports audited, 0 findings", proven.tasks, proven.events, proven.reports);
    if !audit.status.success() || proven.audit != expected {
        let complaint = String::from_utf8_lossy(&audit.stderr);
        return Err(format!("the audit says {:?} and not {expected:?}: {complaint}", proven.audit).into());
    }
    Ok(proven)
}

/// Neither process ever found the store to contradict a log, or had a row refused.
pub async fn store_agrees(http: &reqwest::Client, bases: &[String]) -> Result<(), Failure> {
    for base in bases {
        let text = http.get(format!("{base}/metrics")).send().await?.error_for_status()?.text().await?;
        for name in ["mandate_log_mismatch", "mandate_log_refused_rows_total", "mandate_log_contradictions_total"] {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            if value.ok_or_else(|| format!("no metric {name}"))? != "0" {
                return Err(format!("{name} is {value:?}").into());
            }
        }
    }
    Ok(())
}

struct Log {
    events: Vec<Uuid>,
    reports: usize,
    acknowledged: usize,
    outcome: String,
}

async fn log(world: &World, caller: &Caller, folder: &Path, name: &str, noted: &Noted) -> Result<Log, Failure> {
    let path = format!("/agent-tasks/{name}");
    let task = caller.must(&Call::get("read task", path.as_str()).waiting()).await?;
    let head = text(&task, "/log_digest")?.to_owned();
    let proof = caller.must(&Call::get("proof", format!("{path}/proof")).waiting()).await?;
    if proof["log_digest"] != head.as_str() || proof["location"] != "log_store" || task["log_archived_at"].is_null() {
        return Err(format!("{name} is not proven: {proof}").into());
    }
    let export = Call::get("export", format!("{path}/events")).header("accept", "application/x-ndjson").waiting();
    let Some(export) = caller.may(&export, &[]).await? else { return Err("no export".into()) };
    let file = folder.join(format!("{name}.ndjson"));
    std::fs::write(&file, &export.text)?;
    let verified = world.command().arg("verify").arg(&file).args(["--head", &head]).output().await?;
    if !verified.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&verified.stderr)).into());
    }
    std::fs::remove_file(&file)?;
    let entries: Vec<Value> = export.text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    for artifact in &noted.artifacts {
        caller.must(&Call::bare("artifact", reqwest::Method::HEAD, format!("/artifacts/{artifact}")).waiting()).await?;
    }
    compare(&task, &entries, noted).map_err(|fault| format!("{name}: {fault}").into())
}

/// Compares a log with what clients were told about its task.
fn compare(task: &Value, entries: &[Value], noted: &Noted) -> Result<Log, Failure> {
    let events: Vec<Uuid> = entries.iter().map(|entry| id(entry, "/event_id")).collect::<Result<_, _>>()?;
    let places: HashMap<Uuid, i64> = events.iter().copied().zip(1..).collect();
    let seqs = entries.iter().map(|entry| entry["seq"].as_i64());
    if !seqs.eq((1..).map(Some).take(entries.len())) || places.len() != events.len() {
        return Err("its seqs have a gap, or an event is there twice".into());
    }
    if task["last_seq"].as_i64() != i64::try_from(events.len()).ok() {
        return Err(format!("it has {} events and the task says {}", events.len(), task["last_seq"]).into());
    }
    let mut before = 0;
    for (event, seq) in &noted.events {
        let place = *places.get(event).ok_or_else(|| format!("the acknowledged event {event} is lost"))?;
        if place <= before || seq.is_some_and(|seq| seq != place) {
            return Err(format!("{event} was acknowledged as {seq:?} behind {before} and stands at {place}").into());
        }
        before = place;
    }
    let of = |kind: &'static str| entries.iter().filter(move |entry| entry["type"] == kind);
    let ids = |kind, pointer| of(kind).map(|entry| id(entry, pointer)).collect::<Result<HashSet<_>, _>>();
    let same = |what: &str, there: usize, told: usize| -> Result<(), Failure> {
        let fault = || format!("{there} {what} are there, {told} were acknowledged").into();
        if there == told { Ok(()) } else { Err(fault()) }
    };
    same("reports", of("usage.reported").count(), noted.reports)?;
    same("replies", of("turn").filter(|entry| entry["actor_kind"] == "human").count(), noted.replies)?;
    same("requests", of("request.opened").count(), noted.requests.len())?;
    same("children", of("child.created").count(), noted.children.len())?;
    if ids("request.opened", "/payload/request_id")? != noted.requests
        || ids("child.created", "/payload/child_task_id")? != noted.children
        || ids("child.closed", "/payload/child_task_id")? != noted.children
    {
        return Err("its requests or children are others than were acknowledged".into());
    }
    for (request, status) in &noted.resolutions {
        let resolved = |entry: &&Value| entry["payload"]["request_id"] == request.to_string();
        let said: Vec<_> = of("request.resolved").filter(resolved).map(|entry| &entry["payload"]["status"]).collect();
        if said != [status.as_str()] {
            return Err(format!("request {request} was resolved as {status}, and the log says {said:?}").into());
        }
    }
    let outcome = text(task, "/outcome")?;
    same("outcomes", of("outcome.set").count(), 1)?;
    if noted.outcome.as_ref().is_some_and(|told| told != outcome) {
        return Err(format!("its outcome is {outcome}, and {:?} was acknowledged", noted.outcome).into());
    }
    Ok(Log { reports: noted.reports, acknowledged: noted.events.len(), outcome: outcome.to_owned(), events })
}
