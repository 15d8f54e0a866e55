//! The limit: routes that do nothing but the one statement, behind the accept loop and the pool that Mandate has.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path as Parameter, State};
use axum::routing::post;
use http::StatusCode;
use mandate::http::server::{self, ServerSettings};
use mandate::service::Clock;
use mandate::shutdown::Shutdown;
use mandate::store::bare;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use time::OffsetDateTime;
use tokio::net::TcpListener;
use uuid::Uuid;

use super::Failure;
use super::seed::Target;

/// What the bare server is told, in a file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Plan {
    pub database_url: String,
    pub max_connections: u32,
    /// By the client's number.
    pub targets: Vec<Target>,
}

struct Bare {
    pool: PgPool,
    targets: Vec<(Target, AtomicI64)>,
}

/// Serves until standard input ends, and tells its address on standard output.
pub async fn serve(plan: &Path) -> Result<(), Failure> {
    let plan: Plan = serde_json::from_slice(&std::fs::read(plan)?)?;
    let connect = plan.database_url.parse::<PgConnectOptions>()?;
    let pool = PgPoolOptions::new()
        .max_connections(plan.max_connections)
        .test_before_acquire(false)
        .connect_lazy_with(connect.options([("statement_timeout", "30000"), ("timezone", "UTC")]));
    let targets = plan.targets.into_iter().map(|target| (target.clone(), AtomicI64::new(target.last_seq))).collect();
    let router = Router::new()
        .route("/append/{client}", post(append))
        .route("/heartbeat/{client}", post(heartbeat))
        .with_state(Arc::new(Bare { pool, targets }));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    std::thread::spawn(|| {
        // The benchmark is gone, however it ended.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let settings = ServerSettings { header_timeout: Duration::from_secs(10), max_connections: 20_000 };
    server::serve(listener, router, settings, Shutdown::new(Duration::ZERO)).await;
    Ok(())
}

type Answer = Result<StatusCode, (StatusCode, String)>;

#[allow(clippy::needless_pass_by_value, reason = "what map_err calls")]
fn failed(fault: impl ToString) -> (StatusCode, String) {
    (StatusCode::INTERNAL_SERVER_ERROR, fault.to_string())
}

async fn append(State(bare): State<Arc<Bare>>, Parameter(client): Parameter<usize>, payload: String) -> Answer {
    let (target, last_seq) = bare.targets.get(client).ok_or_else(|| failed("no such client"))?;
    let now = OffsetDateTime::from(Clock::system().now());
    // A client waits for its answer, so nobody else raises it in between.
    let seq = last_seq.load(Ordering::Relaxed);
    let digest = vec![0_u8; 32];
    let written: i64 = sqlx::query_scalar(bare::append())
        .bind(target.organization)
        .bind(target.task)
        .bind(seq)
        .bind(now)
        .bind(vec![seq + 1])
        .bind(vec![Clock::new_id()])
        .bind(vec!["turn"])
        .bind(vec![1_i32])
        .bind(vec!["agent"])
        .bind(vec!["01890a5d-ac96-774b-bcce-b302099a8057"])
        .bind(vec![Some("harness")])
        .bind(vec![Some(target.session)])
        .bind(vec![now])
        .bind(vec![payload])
        .bind(vec![None::<String>])
        .bind(vec![digest.clone()])
        .bind(target.session)
        .bind(seq + 1)
        .bind(digest)
        .bind(None::<String>)
        .bind(None::<String>)
        .fetch_one(&bare.pool)
        .await
        .map_err(failed)?;
    if written != 1 {
        return Err((StatusCode::CONFLICT, "somebody else wrote to the task".to_owned()));
    }
    last_seq.store(seq + 1, Ordering::Relaxed);
    Ok(StatusCode::CREATED)
}

async fn heartbeat(State(bare): State<Arc<Bare>>, Parameter(client): Parameter<usize>) -> Answer {
    let (target, _) = bare.targets.get(client).ok_or_else(|| failed("no such client"))?;
    let ids: [Uuid; 3] = [target.organization, target.task, target.session];
    let query = ids.into_iter().fold(sqlx::query(bare::heartbeat()), sqlx::query::Query::bind);
    query.fetch_one(&bare.pool).await.map_err(failed)?;
    Ok(StatusCode::OK)
}
