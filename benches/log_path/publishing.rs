//! What publishing costs an append: the same calls to a process that only answers, to one that publishes to Kafka, and
//! to one that publishes into the same database, in alternating rounds.

use std::time::Duration;

use serde_json::json;

use super::figures::Figures;
use super::load::{Repeat, Subject, round};
use super::report::Section;
use super::world::{Way, World, append};
use super::{Arguments, Failure};

/// Clients, each on a task of its own.
const CLIENTS: usize = 16;

pub async fn measure(world: &World, arguments: &Arguments) -> Result<Section, Failure> {
    eprintln!("publishing: {} rounds of {} s for each of 3 servers", arguments.rounds, arguments.seconds);
    let ways = [
        ("api", Way::DirectToPostgres, "api"),
        ("api + publisher to Kafka", Way::KafkaAndClickHouse, "api,publisher"),
        ("api + publisher to PostgreSQL", Way::DirectToPostgres, "api,publisher"),
    ];
    let (mut services, mut subjects, mut callers) = (Vec::new(), Vec::new(), None);
    for (number, (_, way, roles)) in ways.into_iter().enumerate() {
        // One database: what it has grown to meets all three.
        let installation = world.installation(&format!("publishing_{number}"), way, Some("publishing")).await?;
        let service = installation.serve(roles).await?;
        let callers = match &callers {
            Some(callers) => callers,
            None => callers.insert(world.callers(&installation, &service).await?),
        };
        let targets = callers.targets(CLIENTS).await?;
        let requests: Vec<_> = targets.iter().map(|target| append(&service, callers, target, 1)).collect();
        subjects.push((Subject { address: service.address(), pid: service.pid()? }, requests));
        services.push(service);
    }
    let length = Duration::from_secs(arguments.seconds);
    let mut rounds = [const { Vec::new() }; 3];
    for number in 0..arguments.rounds {
        for turn in 0..ways.len() {
            let subject = (number + turn) % ways.len();
            let (server, requests) = &subjects[subject];
            let scripts = requests.iter().cloned().map(Repeat::one).collect();
            let one = round(*server, world.postgres_pid(), scripts, length);
            rounds[subject].push(one.await?);
        }
    }
    for service in &mut services {
        service.kill().await?;
    }
    let figures = rounds.map(Figures::from);
    let named = || ways.into_iter().map(|(name, ..)| name).zip(&figures);
    let line = |(name, one): (&str, &Figures)| {
        let ratio = format!("{:.2}", one.ratio_to(&figures[0]));
        vec![name.to_owned(), format!("{:.0}", one.throughput), ratio, one.latency(), one.cpu()]
    };
    let json = |(name, one): (&str, &Figures)| {
        let ratio = one.ratio_to(&figures[0]);
        json!({"server": name, "ratio": ratio, "figures": one.json()})
    };
    Ok(Section {
        name: "publishing",
        title: format!("Publishing: append of 1 event, {CLIENTS} clients"),
        head: vec!["", "appends/s", "ratio", "p50 / p99 ms", "µs CPU, server + PostgreSQL"],
        rows: named().map(line).collect(),
        json: named().map(json).collect(),
    })
}
