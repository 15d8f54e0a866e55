//! The limit: routes that do nothing but the one statement, behind the accept loop that Mandate has, on a pool of sqlx
//! with as many connections. Nobody is asked who he is, nothing is checked, no digest is computed; what is written is
//! of the same size. Where Mandate reads before it decides, only the statement that writes is here.

use std::io::Read as _;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path as Parameter, State};
use axum::routing::{get, post};
use http::StatusCode;
use mandate::http::server::{self, ServerSettings};
use mandate::service::Clock;
use mandate::shutdown::Shutdown;
use mandate::store::bare;
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgPool, Row as _};
use tokio::net::TcpListener;
use uuid::Uuid;

use super::Failure;
use super::asked;
use super::binding::{DIGEST, change, create, report, write};
use super::sample::{Event, NUMBER, Sample, Step};
use super::seed::Target;

/// What the bare server is told, in a file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Plan {
    pub database_url: String,
    pub max_connections: u32,
    /// By the client's number: what it writes to.
    pub work: Vec<Target>,
    /// By the client's number: what it reads.
    pub reading: Vec<Target>,
    pub sample: Sample,
}

/// How long it waits for a client.
const MINUTE: Duration = Duration::from_mins(1);

struct Bare {
    pool: PgPool,
    /// With the length of the log.
    work: Vec<(Target, AtomicI64)>,
    reading: Vec<Target>,
    /// The task that each client has made, and its session.
    lives: Vec<Mutex<(Uuid, Uuid)>>,
    sample: Sample,
}

/// Serves until standard input ends, and tells its address on standard output.
pub async fn serve(plan: &Path) -> Result<(), Failure> {
    let plan: Plan = serde_json::from_slice(&std::fs::read(plan)?)?;
    let connect = plan.database_url.parse::<PgConnectOptions>()?;
    let pool = PgPoolOptions::new()
        .max_connections(plan.max_connections)
        .test_before_acquire(false)
        .connect_lazy_with(connect.options([("statement_timeout", "30000"), ("timezone", "UTC")]));
    let lives = plan.work.iter().map(|_| Mutex::default()).collect();
    let work = plan.work.into_iter().map(|target| (target.clone(), AtomicI64::new(target.last_seq))).collect();
    let router = Router::new()
        .route("/append/{client}", post(append))
        .route("/heartbeat/{client}", post(heartbeat))
        .route("/poll/{client}/{after}", get(poll))
        .route("/usage/{client}", post(usage))
        .route("/resolve/{number}", post(resolve))
        .route("/create/{client}", post(begin_life))
        .route("/live/{step}/{client}", post(live))
        .with_state(Arc::new(Bare { pool, work, reading: plan.reading, lives, sample: plan.sample }));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    std::thread::spawn(|| {
        // The benchmark is gone, however it ended.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let settings = ServerSettings { header_timeout: MINUTE, idle_timeout: MINUTE, max_connections: 20_000 };
    server::serve(listener, router, settings, Shutdown::new(Duration::ZERO)).await;
    Ok(())
}

type Refusal = (StatusCode, String);
type Answer = Result<StatusCode, Refusal>;

#[allow(clippy::needless_pass_by_value, reason = "what map_err calls")]
fn failed(fault: impl ToString) -> Refusal {
    (StatusCode::INTERNAL_SERVER_ERROR, fault.to_string())
}

/// A statement that says how many tasks it wrote.
fn written(count: i64) -> Answer {
    if count == 1 {
        Ok(StatusCode::CREATED)
    } else {
        Err((StatusCode::CONFLICT, "the task was not as it was expected".to_owned()))
    }
}

impl Bare {
    fn work(&self, client: usize) -> Result<&(Target, AtomicI64), Refusal> {
        self.work.get(client).ok_or_else(|| failed("no such client"))
    }
}

/// Appends the lines of the body.
async fn append(State(bare): State<Arc<Bare>>, Parameter(client): Parameter<usize>, body: String) -> Answer {
    let (target, last_seq) = bare.work(client)?;
    // A client waits for its answer, so nobody else raises it in between.
    let seq = last_seq.load(Ordering::Relaxed);
    let turn = &bare.sample.append.events[0];
    let lines: Vec<(&Event, &str)> = body.lines().map(|payload| (turn, payload)).collect();
    let after = seq + i64::try_from(lines.len()).map_err(failed)?;
    let session = Some(target.session);
    let query = write(bare::append(), (target.organization, target.task), seq, &lines, session, session);
    let query = query.bind(after).bind(DIGEST).bind(None::<String>).bind(None::<String>);
    written(query.fetch_one(&bare.pool).await.map_err(failed)?)?;
    last_seq.store(after, Ordering::Relaxed);
    Ok(StatusCode::CREATED)
}

async fn heartbeat(State(bare): State<Arc<Bare>>, Parameter(client): Parameter<usize>) -> Answer {
    let (target, _) = bare.work(client)?;
    let ids: [Uuid; 3] = [target.organization, target.task, target.session];
    let query = ids.into_iter().fold(sqlx::query(bare::heartbeat()), sqlx::query::Query::bind);
    query.fetch_one(&bare.pool).await.map_err(failed)?;
    Ok(StatusCode::OK)
}

/// Answers the payloads, so that as much goes over the wire as has to.
async fn poll(
    State(bare): State<Arc<Bare>>,
    Parameter((client, after)): Parameter<(usize, i64)>,
) -> Result<String, Refusal> {
    let target = bare.reading.get(client).ok_or_else(|| failed("no such client"))?;
    let query = sqlx::query(bare::poll()).bind(after).bind(101_i64).bind(target.organization).bind(target.task);
    let rows = query.fetch_all(&bare.pool).await.map_err(failed)?;
    let mut body = "[".to_owned();
    for row in &rows {
        if let Some(payload) = row.try_get::<Option<&str>, _>("payload").map_err(failed)? {
            body.push_str(if body.len() > 1 { "," } else { "" });
            body.push_str(payload);
        }
    }
    Ok(body + "]")
}

async fn usage(State(bare): State<Arc<Bare>>, Parameter(client): Parameter<usize>) -> Answer {
    let (target, last_seq) = bare.work(client)?;
    let seq = last_seq.load(Ordering::Relaxed);
    let query = report(&bare.sample, target.task, target.session, seq);
    written(query.fetch_one(&bare.pool).await.map_err(failed)?)?;
    last_seq.store(seq + 1, Ordering::Relaxed);
    Ok(StatusCode::CREATED)
}

/// Answers the question with that number.
async fn resolve(State(bare): State<Arc<Bare>>, Parameter(number): Parameter<u32>) -> Answer {
    let (sample, id) = (&bare.sample, asked::id(number));
    let step = &sample.asked.resolve;
    let settled = step.rows.replace(&sample.asked.request.to_string(), &id.to_string());
    let query = change(step, (sample.organization, id), None, None, ["[]", "[]", "[]", &settled], vec![id]);
    written(query.fetch_one(&bare.pool).await.map_err(failed)?)
}

/// The first step of a life: the two statements of a creation in their transaction.
async fn begin_life(State(bare): State<Arc<Bare>>, Parameter(client): Parameter<usize>) -> Answer {
    let life = bare.lives.get(client).ok_or_else(|| failed("no such client"))?;
    let (sample, task) = (&bare.sample, Clock::new_id());
    let mut transaction = bare.pool.begin().await.map_err(failed)?;
    let number = sqlx::query_scalar(bare::next_number()).bind(sample.organization).bind(sample.agent);
    let number: i64 = number.fetch_one(&mut *transaction).await.map_err(failed)?;
    let pinned = sample.create.rows.replace(NUMBER, &number.to_string());
    let query = create(&sample.create, (sample.organization, task), &pinned);
    written(query.fetch_one(&mut *transaction).await.map_err(failed)?)?;
    transaction.commit().await.map_err(failed)?;
    *life.lock().unwrap_or_else(PoisonError::into_inner) = (task, Clock::new_id());
    Ok(StatusCode::CREATED)
}

/// The other steps of a life.
async fn live(
    State(bare): State<Arc<Bare>>,
    Parameter((step, client)): Parameter<(String, usize)>,
    body: String,
) -> Answer {
    let life = bare.lives.get(client).ok_or_else(|| failed("no such client"))?;
    let (task, session) = *life.lock().unwrap_or_else(PoisonError::into_inner);
    let sample = &bare.sample;
    let place = (sample.organization, task);
    let named = |step: &Step| step.rows.replace(&sample.session.to_string(), &session.to_string());
    let rows = match step.as_str() {
        "open" => named(&sample.open),
        "close" => named(&sample.close),
        _ => String::new(),
    };
    let query = match step.as_str() {
        "open" => change(&sample.open, place, Some(session), None, [&rows, "[]", "[]", "[]"], Vec::new()),
        "append" => {
            let (seq, session) = (sample.append.expected, Some(session));
            let lines = [(&sample.append.events[0], body.as_str())];
            let query = write(bare::append(), place, seq, &lines, session, session);
            query.bind(seq + 1).bind(DIGEST).bind(None::<String>).bind(None::<String>)
        }
        "usage" => report(sample, task, session, sample.report.expected),
        "close" => {
            let rows = ["[]", &rows, "[]", "[]"];
            change(&sample.close, place, Some(session), Some(session), rows, Vec::new())
        }
        _ => return Err(failed("no such step")),
    };
    written(query.fetch_one(&bare.pool).await.map_err(failed)?)
}
