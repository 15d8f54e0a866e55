//! What becomes of it as the tables grow: the same thousand tasks are worked in databases of a thousand, a hundred
//! thousand and a million tasks, all of one PostgreSQL, each with a Mandate of its own, in rounds that take turns.

use std::time::Duration;

use mandate::dev::postgres::{ManagedPostgres, PostgresOptions};
use nix::sys::statvfs::statvfs;
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::figures::Figures;
use super::load::{self, Subject};
use super::report::Section;
use super::sizes::{Ask, CLIENTS, Size, Traces};
use super::{Arguments, Failure, fill, service};

/// The tasks that are worked, which are all that the small database has.
const WORKED: u32 = 1_000;
/// The tasks of the databases of a quick run, the small one first.
const QUICK: [u32; 3] = [64, 1_000, 5_000];
/// Bytes of disk for each event of a copied task, with everything that belongs to it, and for PostgreSQL's own log.
const BYTES: (u64, u64) = (1_000, 6 << 30);
/// What PostgreSQL is told. Checkpoints begin when the benchmark says so, unless very much is written.
const SETTINGS: [(&str, &str); 3] = [("shared_buffers", "1GB"), ("max_wal_size", "4GB"), ("checkpoint_timeout", "1h")];

pub async fn measure(arguments: &Arguments) -> Result<(Vec<Section>, u32), Failure> {
    let (folder, sizes) = (service::folder()?, [WORKED, arguments.tasks / 10, arguments.tasks]);
    let sizes = if arguments.quick { QUICK } else { sizes };
    require_room(folder.path(), &sizes)?;
    let mut options = PostgresOptions::new(folder.path().join("data"));
    options.fallback = folder.path().join("fallback");
    options.settings = SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let postgres = ManagedPostgres::start(options).await?;
    let mut all = Vec::new();
    for tasks in sizes {
        eprintln!("growth: filling a database with {tasks} tasks");
        all.push(Size::make(&postgres, folder.path(), tasks, sizes[0]).await?);
    }
    PgConnection::connect(&postgres.url("postgres")).await?.execute("CHECKPOINT").await?;
    let (mut rows, mut machine) = (Vec::new(), Vec::new());
    let mut traces = [Traces::default(); 3];
    for ask in Ask::ALL {
        let figures = rounds(&all, &postgres, ask, arguments, &mut traces).await?;
        rows.push(cells(ask, &figures));
        eprintln!("{}", cells(ask, &figures).join(" | "));
        machine.push(json!({"operation": ask.title(), "by_tasks": all.iter().zip(&figures).map(|(size, one)| {
            json!({"tasks": size.tasks, "slower_than_small": figures[0].ratio_to(one), "figures": one.json()})
        }).collect::<Vec<_>>()}));
    }
    let growth = Section {
        name: "growth",
        title: format!(
            "Growth\n\nThe same {} tasks worked by {CLIENTS} clients in databases of {}, {} and {} tasks with {} \
             events each, {} rounds of {} s in turns: calls a second, how many times slower than in the small one (promised: \
             at most 1.25), p50 / p99, CPU per call of the server + of PostgreSQL.",
            sizes[0],
            sizes[0],
            sizes[1],
            sizes[2],
            fill::EVENTS,
            arguments.rounds,
            arguments.seconds
        ),
        head: vec![
            "",
            "/s small",
            "/s middle",
            "/s large",
            "middle slower",
            "large slower",
            "small ms",
            "middle ms",
            "large ms",
            "small µs",
            "middle µs",
            "large µs",
        ],
        rows,
        json: Value::Array(machine),
    };
    let traces = told(&all, &traces);
    for size in &mut all {
        size.service.kill().await?;
    }
    let version = postgres.programs().major;
    postgres.stop().await?;
    Ok((vec![growth, traces], version))
}

/// Rounds in turns, beginning with another one each time, after one each that does not count.
async fn rounds(
    all: &[Size],
    postgres: &ManagedPostgres,
    ask: Ask,
    arguments: &Arguments,
    traces: &mut [Traces; 3],
) -> Result<[Figures; 3], Failure> {
    let (length, pid) = (Duration::from_secs(arguments.seconds), postgres.pid().unsigned_abs());
    let mut rounds = [const { Vec::new() }; 3];
    for number in 0..=arguments.rounds {
        for turn in 0..all.len() {
            let which = (number + turn) % all.len();
            let size = &all[which];
            let before = size.traces().await?;
            let subject = Subject { address: size.service.address(), pid: size.service.pid()? };
            let round = load::round(subject, pid, size.scripts(ask), length).await?;
            if number == 0 {
                continue;
            }
            if ask == Ask::Append {
                let after = size.traces().await?;
                let sum = &mut traces[which];
                sum.wal += after.wal - before.wal;
                sum.events += round.total;
                sum.updates += after.updates - before.updates;
                sum.hot += after.hot - before.hot;
            }
            rounds[which].push(round);
        }
    }
    Ok(rounds.map(Figures::from))
}

fn cells(ask: Ask, figures: &[Figures; 3]) -> Vec<String> {
    let each = |cell: fn(&Figures) -> String| figures.iter().map(cell).collect::<Vec<_>>();
    let slower = |other: &Figures| format!("{:.2}", figures[0].ratio_to(other));
    [
        vec![ask.title().to_owned()],
        each(|one| format!("{:.0}", one.throughput)),
        vec![slower(&figures[1]), slower(&figures[2])],
        each(Figures::latency),
        each(Figures::cpu),
    ]
    .concat()
}

fn told(all: &[Size], traces: &[Traces; 3]) -> Section {
    #[allow(clippy::cast_precision_loss, reason = "no count here comes near 2^52")]
    let share = |part: i64, whole: i64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 };
    let one = |(size, sum): (&Size, &Traces)| {
        let wal = sum.wal / sum.events.max(1);
        (size.tasks, wal, share(sum.hot, sum.updates), sum.events)
    };
    let figures: Vec<_> = all.iter().zip(traces).map(one).collect();
    Section {
        name: "traces",
        title: "What an append of 1 event leaves behind".to_owned(),
        head: vec!["tasks", "bytes of WAL per event", "HOT share of updates of tasks, %", "events"],
        rows: figures
            .iter()
            .map(|(tasks, wal, hot, events)| {
                vec![tasks.to_string(), wal.to_string(), format!("{hot:.1}"), events.to_string()]
            })
            .collect(),
        json: figures
            .iter()
            .map(|(tasks, wal, hot, events)| {
                json!({"tasks": tasks, "wal_bytes_per_event": wal, "hot_percent": hot, "events": events})
            })
            .collect(),
    }
}

/// Refuses to begin where the disk is too small.
fn require_room(folder: &std::path::Path, sizes: &[u32; 3]) -> Result<(), Failure> {
    let disk = statvfs(folder)?;
    let there = disk.blocks_available() * disk.fragment_size();
    let events = u64::from(sizes.iter().sum::<u32>()) * u64::try_from(fill::EVENTS)?;
    let needed = events * BYTES.0 + BYTES.1;
    if there < needed {
        let (folder, there, needed) = (folder.display(), there >> 20, needed >> 20);
        return Err(format!("{folder} has room for {there} MB and the databases need {needed}: set TMPDIR").into());
    }
    Ok(())
}
