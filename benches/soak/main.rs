//! An hour of everything, while everything restarts: two processes of Mandate over servers of the soak's own, many
//! harnesses, people and readers, each of whom notes what was acknowledged. In the end every log must be archived,
//! proven and say exactly that, and memory must be flat.
//!
//! `cargo bench --bench soak -- [--minutes 60] [--rate 60] [--json FILE]`

mod client;
mod dice;
mod harness;
mod memory;
mod notes;
mod outages;
mod people;
mod proof;
mod readers;
#[path = "../shared/report.rs"]
#[allow(dead_code, reason = "the soak needs its order statistics alone")]
mod report;
#[path = "../../tests/support/servers.rs"]
#[allow(clippy::unwrap_used, reason = "what it starts is a condition of everything here")]
mod servers;
mod tally;
mod world;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use client::{Call, Caller, Identity, Site};
use dice::Dice;
use harness::{Harness, MODEL};
use notes::{Notes, text};
use people::Person;
use readers::{Followed, Streamed};
use world::World;

/// What goes wrong ends the run.
type Failure = Box<dyn Error + Send + Sync>;

/// Where the programs of the servers are.
const PROGRAMS: [&str; 3] =
    ["MANDATE_TEST_KAFKA_LIBS", "MANDATE_TEST_CLICKHOUSE_SERVER", "MANDATE_TEST_CLICKHOUSE_LIB"];
/// Agents, each with an account; harnesses share them.
const AGENTS: [&str; 3] = ["builder", "mender", "reader"];
const APPROVERS: usize = 2;
const STREAMS: usize = 3;

/// Lets everything run while everything restarts.
#[derive(Debug, Clone, Parser)]
struct Arguments {
    /// How long clients work, in minutes; proving it takes some more.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=240))]
    minutes: u64,
    /// Calls a second of all clients together.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=500))]
    rate: u32,
    /// Harnesses.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u8).range(1..))]
    harnesses: u8,
    /// The program to run, instead of the one that cargo has built.
    #[arg(long, default_value = env!("CARGO_BIN_EXE_mandate"))]
    program: PathBuf,
    /// Writes what was measured to this file, too.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Says that cargo benches and does not merely try all targets.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("soak: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    if !arguments.bench {
        println!("not run: this is no `cargo bench`");
        return Ok(());
    }
    let missing: Vec<_> = PROGRAMS.into_iter().filter(|name| std::env::var_os(name).is_none()).collect();
    if !missing.is_empty() {
        let how = "`cargo bench --bench log_path` says how to get the programs that they name";
        return Err(format!("{} not set; {how}", missing.join(", ")).into());
    }
    Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(async {
        let mut world = World::start(&arguments.program).await?;
        match soak(&mut world, arguments).await {
            Ok(()) => world.stop().await,
            Err(failure) => Err(format!("{failure}\nthe logs are in {}", world.keep().display()).into()),
        }
    })
}

async fn soak(world: &mut World, arguments: &Arguments) -> Result<(), Failure> {
    let site = Arc::new(Site::new(world.bases(), arguments.rate)?);
    let notes = Arc::new(Notes::default());
    let crowd = Crowd::gather(world, &site, &notes).await?;
    let watching = CancellationToken::new();
    let watch = tokio::spawn(world.roster.clone().watch(watching.clone()));
    let (begin, length) = (Instant::now(), Duration::from_secs(arguments.minutes * 60));
    let mut working = crowd.begin(usize::from(arguments.harnesses));
    let outages = tokio::select! {
        outages = outages::all(world, length) => outages?,
        // Nobody ends by himself.
        failure = working.fails() => return Err(failure),
    };
    let flatness = world.roster.flatness();
    watching.cancel();
    watch.await?;
    let (took, calls) = (begin.elapsed(), site.tally.total());
    eprintln!("soak: {calls} calls in {:.0} s; everything comes to rest", took.as_secs_f64());
    let (followed, streamed) = working.end().await?;
    let settled_in = proof::settle(world).await?;
    let notes = notes.all();
    eprintln!("soak: settled in {:.0} s; {} logs are proven", settled_in.as_secs_f64(), notes.len());
    let mut proven = proof::prove(world, &crowd.ada, &notes, &followed).await?;
    proven.settled_in = settled_in;
    proof::store_agrees(&site.http, &world.bases()).await?;
    let (errors, first) = world.complaints()?;
    let rate = report::rate(calls, took);
    let memory: Vec<_> = flatness.iter().map(memory::Flatness::json).collect();
    println!(
        "{calls} calls in {:.0} s ({rate:.0} a second), {} outages.\n{}\nOutcomes: {:?}.\nThe feed brought {} events, streams \
         {} of {} logs.\n{errors} errors in the logs of Mandate.",
        took.as_secs_f64(),
        outages.len(),
        proven.audit,
        proven.outcomes,
        followed.events.len(),
        streamed.iter().map(|stream| stream.events).sum::<usize>(),
        streamed.iter().map(|stream| stream.logs).sum::<usize>(),
    );
    for line in &memory {
        println!("{line}");
    }
    if let Some(file) = &arguments.json {
        let outages: Vec<_> = outages.iter().map(outages::Outage::json).collect();
        let streams: Vec<_> =
            streamed.iter().map(|stream| json!([stream.logs, stream.events, stream.resumed])).collect();
        let all = json!({"minutes": arguments.minutes, "rate": rate, "harnesses": arguments.harnesses,
            "calls": site.tally.json(), "outages": outages, "proven": proven.json(), "streams": streams,
            "errors": errors, "first_errors": first, "memory": memory, "samples": world.roster.json()});
        std::fs::write(file, all.to_string())?;
    }
    if first.iter().any(|line| line.contains("panicked")) {
        return Err(format!("Mandate panicked: {first:?}").into());
    }
    let grown = |life: &&memory::Flatness| life.name.starts_with("mandate") && life.is_judged() && !life.is_flat();
    match flatness.iter().find(grown) {
        Some(life) => Err(format!("memory grows: {}", life.json()).into()),
        None => Ok(()),
    }
}

/// Everybody.
struct Crowd {
    ada: Arc<Caller>,
    grace: Arc<Caller>,
    trigger: Arc<Caller>,
    accounts: Vec<Arc<Caller>>,
    project: String,
    notes: Arc<Notes>,
}

/// Everybody at work.
struct Working {
    clients: JoinSet<Result<(), Failure>>,
    streams: JoinSet<Result<Streamed, Failure>>,
    feed: JoinSet<Result<Followed, Failure>>,
    stop: CancellationToken,
    stop_people: CancellationToken,
    people: JoinSet<Result<(), Failure>>,
    stop_feed: CancellationToken,
}

impl Crowd {
    /// Sets up the directory as an administrator does.
    async fn gather(world: &World, site: &Arc<Site>, notes: &Arc<Notes>) -> Result<Self, Failure> {
        let person = |name| Caller::new(site, Identity::Person { mint: Arc::clone(&world.mint), name });
        let (ada, grace) = (person("ada"), person("grace"));
        let put = async |path: &str, body: Value| ada.must(&Call::put("set up", path, &body)).await;
        put("/members/grace", json!({"roles": ["operator", "approver"], "name": "Grace"})).await?;
        let project = text(&put("/projects/app", json!({"name": "App"})).await?, "/id")?.to_owned();
        let prices = json!({"provider": "anthropic", "model_id": "claude-sonnet", "input_cost_per_million": "1.25",
            "output_cost_per_million": "10", "cache_read_cost_per_million": "0.625"});
        put(&format!("/models/{MODEL}"), prices).await?;
        let account = |answer: &Value| -> Result<Arc<Caller>, Failure> {
            let (client_id, client_secret) = (text(answer, "/client_id")?, text(answer, "/client_secret")?);
            let (client_id, client_secret) = (client_id.to_owned(), client_secret.to_owned());
            Ok(Caller::new(site, Identity::Account { client_id, client_secret }))
        };
        let mut accounts = Vec::new();
        for agent in AGENTS {
            accounts.push(account(&put(&format!("/agents/{agent}"), json!({"name": agent})).await?)?);
        }
        let trigger = account(&put("/triggers/push", json!({"name": "Push"})).await?)?;
        Ok(Self { ada, grace, trigger, accounts, project, notes: Arc::clone(notes) })
    }

    fn person(&self, caller: &Arc<Caller>, number: usize, stop: &CancellationToken) -> Person {
        let (caller, notes) = (Arc::clone(caller), Arc::clone(&self.notes));
        let project = self.project.clone();
        Person { caller, notes, dice: Dice::new(1_000 + number), project, stop: stop.clone() }
    }

    fn begin(&self, harnesses: usize) -> Working {
        let [stop, stop_people, stop_feed] = [(); 3].map(|()| CancellationToken::new());
        let (mut clients, mut people) = (JoinSet::new(), JoinSet::new());
        let (mut streams, mut feed) = (JoinSet::new(), JoinSet::new());
        for number in 0..harnesses {
            let harness = Harness {
                account: Arc::clone(&self.accounts[number % AGENTS.len()]),
                person: Arc::clone(&self.ada),
                notes: Arc::clone(&self.notes),
                agent: AGENTS[number % AGENTS.len()].to_owned(),
                number,
                dice: Dice::new(number),
                stop: stop.clone(),
            };
            clients.spawn(harness.work());
        }
        clients.spawn(self.person(&self.ada, 0, &stop).operate());
        clients.spawn(self.person(&self.trigger, 1, &stop).fire(AGENTS[0].to_owned()));
        for number in 0..APPROVERS {
            people.spawn(self.person(&self.grace, 2 + number, &stop_people).approve());
        }
        for number in 0..STREAMS {
            let (caller, notes) = (Arc::clone(&self.grace), Arc::clone(&self.notes));
            streams.spawn(readers::stream(caller, notes, Dice::new(2_000 + number), stop.clone()));
        }
        feed.spawn(readers::follow(Arc::clone(&self.grace), stop_feed.clone()));
        Working { clients, streams, feed, stop, stop_people, people, stop_feed }
    }
}

impl Working {
    /// Waits until somebody fails.
    async fn fails(&mut self) -> Failure {
        let why = tokio::select! {
            Some(done) = self.clients.join_next() => done.map_err(Failure::from).and_then(|done| done).err(),
            Some(done) = self.people.join_next() => done.map_err(Failure::from).and_then(|done| done).err(),
            Some(done) = self.streams.join_next() => done.map_err(Failure::from).and_then(|done| done.map(drop)).err(),
            Some(done) = self.feed.join_next() => done.map_err(Failure::from).and_then(|done| done.map(drop)).err(),
        };
        why.unwrap_or_else(|| "somebody went home too soon".into())
    }

    /// Lets everybody end what they do: harnesses first, then those whom they wait for, then the feed.
    async fn end(mut self) -> Result<(Followed, Vec<Streamed>), Failure> {
        self.stop.cancel();
        while let Some(done) = self.clients.join_next().await {
            done??;
        }
        self.stop_people.cancel();
        while let Some(done) = self.people.join_next().await {
            done??;
        }
        let mut streamed = Vec::new();
        while let Some(done) = self.streams.join_next().await {
            streamed.push(done??);
        }
        self.stop_feed.cancel();
        let followed = self.feed.join_next().await.ok_or("nobody followed the feed")???;
        Ok((followed, streamed))
    }
}
