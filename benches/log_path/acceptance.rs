//! Everything at once: clients write over HTTP while the broker restarts twice and ClickHouse once, then every task
//! closes, and every log must be archived, proven, and in the store with exactly its rows.

use std::sync::Arc;
use std::time::Duration;

use mandate::domain::time::Timestamp;
use mandate::log::LogStore;
use mandate::log::sink::Sink;
use mandate::service::{Clock, LogCounters};
use mandate::workers::run_sink;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::observed::{Landings, Observed};
use super::outages::{Outage, three};
use super::report::{Section, Spread, rate};
use super::service::Service;
use super::world::{Installation, Way, World, append, ending, metric};
use super::writers::{Answers, send};
use super::{Arguments, Failure};

/// How long the last log may take to be archived.
const PATIENCE: Duration = Duration::from_mins(5);
const SETTINGS: [(&str, &str); 3] =
    [("ARCHIVE__GRACE_SECONDS", "0"), ("ARCHIVE__SWEEP_INTERVAL_SECONDS", "2"), ("ARCHIVE__PATIENCE_SECONDS", "20")];

struct Run {
    /// As fast as they are answered, then at a rate.
    full_speed: f64,
    paced: f64,
    paced_from: Timestamp,
    outages: Vec<Outage>,
    closing: Duration,
    archiving: Duration,
}

/// What the processes counted, and what the store has.
struct Counts {
    committed: usize,
    reports: usize,
    unpublished: u64,
    republished: u64,
    contradictions: u64,
    audit: String,
}

pub async fn measure(world: &mut World, arguments: &Arguments) -> Result<Section, Failure> {
    eprintln!("acceptance: {} events of {} tasks", arguments.tasks * arguments.events, arguments.tasks);
    let installation = world.installation("acceptance", Way::KafkaAndClickHouse, None).await?.with(&SETTINGS);
    let migrated = installation.command("migrate").output().await?;
    if !migrated.status.success() {
        return Err(String::from_utf8_lossy(&migrated.stderr).into());
    }
    let mut api = installation.serve("api,publisher,expiry").await?;
    let mut sweeper = installation.serve("sweep").await?;
    let store = Arc::new(Observed::new(Arc::new(world.store("acceptance")?)));
    let (stop, counters) = (CancellationToken::new(), LogCounters::default());
    let sink = Arc::new(Sink::new(installation.kafka()?, Arc::clone(&store) as Arc<dyn LogStore>));
    let sinking = tokio::spawn(run_sink(sink, counters.clone(), Clock::system(), stop.clone()));

    let answers = Arc::new(Answers::default());
    let run = write(world, arguments, &installation, &api, &answers).await?;
    answers.check()?;
    stop.cancel();
    sinking.await?;
    let counts = counts(world, &installation, [&api, &sweeper]).await?;
    api.kill().await?;
    sweeper.kill().await?;
    if counters.refused.get() > 0 {
        return Err(format!("{} messages were set apart", counters.refused.get()).into());
    }
    Ok(section(arguments, &run, &counts, &answers, &store.landings()))
}

async fn write(
    world: &mut World,
    arguments: &Arguments,
    installation: &Installation,
    api: &Service,
    answers: &Arc<Answers>,
) -> Result<Run, Failure> {
    let callers = world.callers(installation, api).await?;
    let targets = callers.targets(arguments.tasks).await?;
    let appends: Vec<_> = targets.iter().map(|target| append(api, &callers, target, 1)).collect();
    let (address, clients, total) = (api.address(), arguments.clients, arguments.tasks * arguments.events);
    let first = total / 2;
    let took = send(address, appends.clone(), first, clients, None, answers).await?;
    let full_speed = rate(first, took);
    eprintln!("acceptance: {full_speed:.0} events/s at full speed; now servers restart");
    let (paced_from, pace) = (Clock::system().now(), Some(arguments.rate));
    let (took, outages) = tokio::try_join!(
        send(address, appends, total - first, clients, pace, answers),
        three(world, answers, first, total)
    )?;
    let paced = rate(total - first, took);
    let (reports, outcomes): (Vec<_>, Vec<_>) =
        targets.iter().map(|target| ending(api, &callers, target)).map(|[report, outcome]| (report, outcome)).unzip();
    let closing = send(address, reports, targets.len(), clients, None, answers).await?
        + send(address, outcomes, targets.len(), clients, None, answers).await?;
    let begin = Instant::now();
    let mut db = PgConnection::connect(&installation.database_url).await?;
    loop {
        let left = "SELECT count(*) FROM agent_runtime.tasks WHERE log_archived_at IS NULL";
        let left: i64 = sqlx::query_scalar(left).fetch_one(&mut db).await?;
        if left == 0 {
            break;
        }
        if begin.elapsed() > PATIENCE {
            return Err(format!("{left} logs are not archived after {PATIENCE:?}").into());
        }
        sleep(Duration::from_millis(50)).await;
    }
    let archiving = begin.elapsed();
    db.close().await?;
    Ok(Run { full_speed, paced, paced_from, outages, closing, archiving })
}

/// Asks everybody, and refuses what is not exactly right.
async fn counts(world: &World, installation: &Installation, services: [&Service; 2]) -> Result<Counts, Failure> {
    let mut db = PgConnection::connect(&installation.database_url).await?;
    let committed = "SELECT (SELECT sum(last_seq) FROM agent_runtime.tasks)::bigint,
        (SELECT count(*) FROM agent_runtime.budget_ledger), (SELECT count(*) FROM agent_runtime.events)";
    let (committed, reports, left): (i64, i64, i64) = sqlx::query_as(committed).fetch_one(&mut db).await?;
    db.close().await?;
    let stored = "SELECT (SELECT count() FROM agent_task_events FINAL), uniqExact(task_id, seq), uniqExact(event_id),
        (SELECT count() FROM agent_usage FINAL) FROM agent_task_events FORMAT TSV";
    let stored = world.in_clickhouse("acceptance", stored.to_owned()).await?;
    if (left, &stored) != (0, &format!("{committed}\t{committed}\t{committed}\t{reports}")) {
        return Err(format!(
            "{committed} events and {reports} reports were committed, {left} events are left in PostgreSQL; the store \
             has events, seqs, event ids and reports: {stored}"
        )
        .into());
    }
    let audit = installation.command("audit").output().await?;
    let said = String::from_utf8_lossy(&audit.stdout).trim_end().to_owned();
    if !audit.status.success() {
        return Err(format!("the audit: {said}\n{}", String::from_utf8_lossy(&audit.stderr)).into());
    }
    let count = async |name: &str| -> Result<u64, Failure> {
        Ok(metric(&world.http, services[0], name).await? + metric(&world.http, services[1], name).await?)
    };
    Ok(Counts {
        committed: usize::try_from(committed)?,
        reports: usize::try_from(reports)?,
        unpublished: count("mandate_log_unpublished_rows_total").await?,
        republished: count("mandate_log_republished_rows_total").await?,
        contradictions: count("mandate_log_contradictions_total").await?,
        audit: said,
    })
}

fn section(arguments: &Arguments, run: &Run, counts: &Counts, answers: &Answers, landings: &Landings) -> Section {
    let disturbed = |at: Timestamp| run.outages.iter().any(|outage| outage.disturbs(at));
    let lags = |of: &dyn Fn(Timestamp) -> bool| -> Spread {
        let some = landings.events.iter().filter(|(recorded, _)| of(*recorded));
        some.map(|(recorded, landed)| landed.micros() - recorded.micros()).collect::<Vec<_>>().into()
    };
    let calls = answers.calls();
    let latencies = |of: &dyn Fn(Timestamp) -> bool| -> Spread {
        calls.iter().filter(|(at, _)| of(*at)).map(|(_, took)| *took).collect::<Vec<_>>().into()
    };
    let (full_speed, paced) = (|at| at < run.paced_from, |at| at >= run.paced_from && !disturbed(at));
    let times: [(&str, &dyn Fn(Timestamp) -> bool); 4] = [
        ("at full speed, undisturbed", &full_speed),
        ("at a rate, undisturbed", &paced),
        ("around outages", &disturbed),
        ("overall", &|_| true),
    ];
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut spreads: Vec<Value> = Vec::new();
    for (name, of) in times {
        let (lag, latency) = (lags(of), latencies(of));
        rows.push([format!("lag, {name}")].into_iter().chain(lag.cells()).collect());
        rows.push([format!("HTTP, {name}")].into_iter().chain(latency.cells()).collect());
        spreads.push(json!({"time": name, "lag": lag.json(), "http": latency.json()}));
    }
    let statuses: Vec<_> =
        answers.statuses().into_iter().map(|(status, count)| format!("{count} × {status}")).collect();
    let outages = run
        .outages
        .iter()
        .map(|outage| format!("{}: {}, {} calls answered meanwhile", outage.what, outage.seconds(), outage.answered));
    let outages: Vec<_> = outages.collect();
    let title = format!(
        "Acceptance: {} events of {} tasks, {} clients\n\n\
         {:.0} events/s at full speed (the first half), {:.0} events/s at a rate of {} (the second half).\n\
         Answers: {}.\n\
         Outages: {}.\n\
         All {} tasks closed in {:.1} s; {:.1} s later every log was archived.\n\
         {} events and {} reports committed, all in the store exactly once; {} rows unpublished, {} sent again by the \
         sweep, {} landed twice, {} contradictions; {} rows an insert on average.\n\
         Audit: {}.\n\n\
         Lag: from the commit to the store's acknowledgement, of each event. In ms.",
        arguments.tasks * arguments.events,
        arguments.tasks,
        arguments.clients,
        run.full_speed,
        run.paced,
        arguments.rate,
        statuses.join(", "),
        outages.join("; "),
        arguments.tasks,
        run.closing.as_secs_f64(),
        run.archiving.as_secs_f64(),
        counts.committed,
        counts.reports,
        counts.unpublished,
        counts.republished,
        landings.duplicates,
        counts.contradictions,
        landings.batch,
        counts.audit,
    );
    let json = json!({
        "tasks": arguments.tasks, "events": arguments.events, "clients": arguments.clients,
        "full_speed_per_second": run.full_speed, "paced_per_second": run.paced, "statuses": answers.statuses(),
        "outages": outages, "closing_seconds": run.closing.as_secs_f64(),
        "archiving_seconds": run.archiving.as_secs_f64(), "committed": counts.committed, "reports": counts.reports,
        "unpublished": counts.unpublished, "republished": counts.republished, "duplicates": landings.duplicates,
        "contradictions": counts.contradictions, "rows_per_insert": landings.batch, "audit": counts.audit,
        "times": spreads,
    });
    let head = vec!["", "count", "p50", "p99", "max"];
    Section { name: "acceptance", title, head, rows, json }
}
