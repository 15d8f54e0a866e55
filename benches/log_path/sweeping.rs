//! The sweep: closed tasks whose logs are in the store already are verified and archived; and rounds that find nothing
//! to do.

use std::sync::Arc;
use std::time::Duration;

use mandate::app::Mandate;
use mandate::service::Clock;
use mandate::service::sweep::{Sweep, Swept};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::figures::median;
use super::report::{Section, rate};
use super::seed::{Callers, Target};
use super::service::Service;
use super::world::{Installation, Way, World, append, ending, metric};
use super::writers::{Answers, send};
use super::{Arguments, Failure};

/// Events of one call.
const AT_ONCE: usize = 100;
/// Clients that write what is swept.
const CLIENTS: usize = 8;
/// How often a round with nothing to do is measured.
const IDLE_ROUNDS: usize = 20;
const PATIENCE: Duration = Duration::from_mins(1);

struct Place {
    name: &'static str,
    service: Service,
    callers: Callers,
    mandate: Mandate,
    sweep: Arc<Sweep>,
    /// How many were sent.
    reports: u64,
    archived: Vec<f64>,
    busy: Vec<f64>,
    idle: Vec<f64>,
}

pub async fn measure(world: &World, arguments: &Arguments) -> Result<Section, Failure> {
    eprintln!("sweep: {} rounds of {} tasks for each of 2 stores", arguments.rounds, arguments.tasks);
    let mut places = Vec::new();
    for (name, way) in [("clickhouse", Way::DirectToClickHouse), ("postgres", Way::DirectToPostgres)] {
        let installation = world.installation(&format!("sweeping_{name}"), way, None).await?;
        places.push(Place::new(world, name, &installation.with(&[("ARCHIVE__GRACE_SECONDS", "0")])).await?);
    }
    for round in 0..arguments.rounds {
        for turn in 0..places.len() {
            let place = (round + turn) % places.len();
            places[place].round(world, arguments).await?;
        }
    }
    let (mut rows, mut json) = (Vec::new(), Vec::new());
    for mut place in places {
        place.service.kill().await?;
        place.mandate.close().await;
        let millis = |seconds: &[f64]| format!("{:.1}", median(seconds.to_vec()) * 1e3);
        rows.push(vec![
            place.name.to_owned(),
            format!("{:.0}", median(place.archived.clone())),
            millis(&place.busy),
            millis(&place.idle),
        ]);
        json.push(json!({"store": place.name, "archived_per_second": place.archived,
            "compared_seconds": place.busy, "idle_seconds": place.idle}));
    }
    Ok(Section {
        name: "sweep",
        title: format!("Sweep: {} tasks of {} events", arguments.tasks, arguments.events),
        head: vec!["store", "verified and archived/s", "ms to compare all, open", "ms of a round with nothing to do"],
        rows,
        json: json.into(),
    })
}

impl Place {
    async fn new(world: &World, name: &'static str, installation: &Installation) -> Result<Self, Failure> {
        let service = installation.serve("api,publisher").await?;
        let callers = world.callers(installation, &service).await?;
        let mandate = Mandate::build(installation.settings()?, Clock::system()).await?;
        let sweep = mandate.sweep();
        let (archived, busy, idle) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { name, service, callers, mandate, sweep, reports: 0, archived, busy, idle })
    }

    async fn round(&mut self, world: &World, arguments: &Arguments) -> Result<(), Failure> {
        let targets = self.callers.targets(arguments.tasks).await?;
        let (parts, rest) = (arguments.events / AT_ONCE, arguments.events % AT_ONCE);
        let sizes = std::iter::repeat_n(AT_ONCE, parts).chain((rest > 0).then_some(rest));
        for size in sizes {
            let write = |target: &Target| append(&self.service, &self.callers, target, size);
            self.send(targets.iter().map(write).collect()).await?;
        }
        self.landed(world).await?;
        // What is open and moved a moment ago stays on the list: compared, and nothing more.
        let (compared, took) = self.sweep().await?;
        self.busy.push(took);
        let [reports, outcomes] = self.endings(&targets);
        self.send(reports).await?;
        self.send(outcomes).await?;
        self.reports += arguments.tasks as u64;
        self.landed(world).await?;
        let (swept, took) = self.sweep().await?;
        let tasks = arguments.tasks as u64;
        if (compared.whole, swept.archived, swept.republished + swept.mismatched) != (tasks, tasks, 0) {
            return Err(format!("{tasks} tasks, but {compared:?} and {swept:?}").into());
        }
        self.archived.push(rate(arguments.tasks, Duration::from_secs_f64(took)));
        for _ in 0..IDLE_ROUNDS {
            let (swept, took) = self.sweep().await?;
            if swept != Swept::default() {
                return Err(format!("there was something to do: {swept:?}").into());
            }
            self.idle.push(took);
        }
        Ok(())
    }

    fn endings(&self, targets: &[Target]) -> [Vec<Vec<u8>>; 2] {
        let calls = targets.iter().map(|target| ending(&self.service, &self.callers, target));
        let (reports, outcomes) = calls.map(|[report, outcome]| (report, outcome)).unzip();
        [reports, outcomes]
    }

    async fn send(&self, requests: Vec<Vec<u8>>) -> Result<(), Failure> {
        let (answers, total) = (Arc::new(Answers::default()), requests.len());
        send(self.service.address(), requests, total, CLIENTS, None, &answers).await?;
        answers.check()
    }

    /// Waits until everything that was committed is in the store: the events, and a row beside that of each report.
    async fn landed(&self, world: &World) -> Result<(), Failure> {
        let count = async |name| metric(&world.http, &self.service, name).await;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let committed = count("mandate_events_total").await? + self.reports;
            if count("mandate_log_stored_rows_total").await? == committed {
                return Ok(());
            }
            let lost = count("mandate_log_unpublished_rows_total").await?;
            if lost > 0 || Instant::now() > deadline {
                return Err(format!("not everything was published: {lost} rows of {committed} were given up").into());
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn sweep(&self) -> Result<(Swept, f64), Failure> {
        let begin = Instant::now();
        let swept = self.sweep.round().await?;
        Ok((swept, begin.elapsed().as_secs_f64()))
    }
}
