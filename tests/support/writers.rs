//! Writers that note what was acknowledged to them.

#![allow(dead_code, reason = "each test program uses its part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use crate::support::{Client, Reply, World, eventually};

/// What one writer was told.
#[derive(Debug, Default)]
pub struct Written {
    /// Event ids of answered batches.
    pub events: Vec<Uuid>,
    /// Keys of answered reports.
    pub reports: Vec<String>,
    /// The call whose answer never came: path and body.
    pub unanswered: Option<(String, Value)>,
}

/// Many writers, and the count of what was acknowledged so far.
pub struct Writers {
    pub acknowledged: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<Written>>,
}

/// Whether an answer is one that a writer may meet.
pub type Allowed = fn(&Reply) -> bool;

impl Writers {
    /// Starts `count` writers on `tasks`, each at the client that `client` gives it. A writer ends when it is told to,
    /// or when its server goes away. Whatever is not `allowed` fails the test.
    pub fn start(count: usize, tasks: &[String], client: impl Fn(usize) -> Client, allowed: Allowed) -> Self {
        Self::paced(Duration::ZERO, count, tasks, client, allowed)
    }

    /// The same, with a pause after each call: what is written meanwhile depends less on how fast the machine is.
    pub fn paced(
        pause: Duration,
        count: usize,
        tasks: &[String],
        client: impl Fn(usize) -> Client,
        allowed: Allowed,
    ) -> Self {
        let (acknowledged, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let tasks = (0..count)
            .map(|nth| {
                let (client, task) = (client(nth), tasks[nth % tasks.len()].clone());
                tokio::spawn(write(client, task, nth, Arc::clone(&acknowledged), Arc::clone(&stop), allowed, pause))
            })
            .collect();
        Self { acknowledged, stop, tasks }
    }

    /// Waits until so many calls more were acknowledged, as long as it goes on.
    pub async fn advance(&self, calls: usize) {
        let done = || self.acknowledged.load(Ordering::SeqCst);
        let goal = done() + calls;
        while done() < goal {
            let next = goal.min(done() + 20);
            eventually("the writers advance", async || {
                let over = self.tasks.iter().any(tokio::task::JoinHandle::is_finished);
                assert!(!over, "a writer ended by itself");
                done() >= next
            })
            .await;
        }
    }

    /// Tells the writers to end and gathers what they were told.
    pub async fn end(self) -> Vec<Written> {
        self.stop.store(true, Ordering::SeqCst);
        let mut all = Vec::new();
        for task in self.tasks {
            all.push(task.await.unwrap());
        }
        all
    }
}

async fn write(
    client: Client,
    task: String,
    writer: usize,
    acknowledged: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    allowed: Allowed,
    pause: Duration,
) -> Written {
    let mut written = Written::default();
    for nth in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let ids = [
            Uuid::from_u128((writer as u128) << 64 | nth << 8),
            Uuid::from_u128((writer as u128) << 64 | nth << 8 | 1),
        ];
        let key = format!("w{writer}-{nth}");
        let is_report = nth % 4 == 3;
        let (path, body) = if is_report {
            let body = json!({"idempotency_key": key, "model_id": "sonnet", "tokens_in": 1});
            (format!("/agent-tasks/{task}/usage"), body)
        } else {
            let event = |id: &Uuid| json!({"event_id": id, "type": "turn", "payload": {"body": key}});
            (format!("/agent-tasks/{task}/events"), json!({"events": ids.iter().map(event).collect::<Vec<_>>()}))
        };
        // The same call again until it is answered: a key makes that safe.
        loop {
            let Some(reply) = client.try_post(&path, &body).await else {
                written.unanswered = Some((path, body));
                return written;
            };
            if reply.status < 300 {
                break;
            }
            assert!(allowed(&reply), "{reply:?}");
            if stop.load(Ordering::SeqCst) {
                written.unanswered = Some((path, body));
                return written;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        acknowledged.fetch_add(1, Ordering::SeqCst);
        if is_report {
            written.reports.push(key);
        } else {
            written.events.extend(ids);
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
    written
}

/// No refusal at all.
pub fn never(_: &Reply) -> bool {
    false
}

/// 503 that says when to try again.
pub fn unavailable(reply: &Reply) -> bool {
    reply.status == 503 && reply.body["code"] == "unavailable" && reply.header("retry-after").is_some()
}

/// Tasks that are worked, by their short ids.
pub async fn tasks(world: &World, count: usize) -> Vec<String> {
    let agent = world.agent().await;
    let mut tasks = Vec::new();
    for _ in 0..count {
        tasks.push(world.working(&agent).await.0);
    }
    tasks
}

/// Asserts that everything that was acknowledged is there, once, and no batch by half.
pub async fn assert_kept(db: &PgPool, all: &[Written]) {
    let events: Vec<Uuid> =
        sqlx::query_scalar("SELECT event_id FROM agent_runtime.events").fetch_all(db).await.unwrap();
    let events: std::collections::HashSet<_> = events.into_iter().collect();
    let reports = sqlx::query_scalar("SELECT idempotency_key FROM agent_runtime.budget_ledger");
    let reports: Vec<String> = reports.fetch_all(db).await.unwrap();
    let unique: std::collections::HashSet<_> = reports.iter().cloned().collect();
    assert_eq!(unique.len(), reports.len(), "a report counts twice");
    for written in all {
        for id in &written.events {
            assert!(events.contains(id), "an acknowledged event is lost: {id}");
        }
        for key in &written.reports {
            assert!(unique.contains(key), "an acknowledged report is lost: {key}");
        }
        if let Some((_, body)) = &written.unanswered {
            let batch = body["events"].as_array().cloned().unwrap_or_default();
            let there = |event: &&Value| events.contains(&event["event_id"].as_str().unwrap().parse::<Uuid>().unwrap());
            let there = batch.iter().filter(there).count();
            assert!(there == 0 || there == batch.len(), "half a batch: {body}");
        }
    }
}

/// Waits until no connection of the service does anything in the database of `db`.
pub async fn settled(db: &PgPool) {
    let busy =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'mandate'
        AND state <> 'idle'";
    eventually("the service's connections come to rest", async || {
        sqlx::query_scalar::<_, i64>(busy).fetch_one(db).await.unwrap() == 0
    })
    .await;
}
