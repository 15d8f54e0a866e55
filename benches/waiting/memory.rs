//! What a process holds while many reads wait.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, future::try_join_all};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::client::{Connection, Following, log_of};
use super::process::resident;
use super::report::{Section, number};
use super::service::{Service, metric};
use super::world::World;
use super::{Arguments, Failure};

/// How many connections are opened at once.
const AT_ONCE: usize = 64;
/// How long after one read the next one comes.
const APART: Duration = Duration::from_millis(2);
/// How long it may take until all wait.
const ALL: Duration = Duration::from_secs(50);
/// How often it is asked whether they do.
const AGAIN: Duration = Duration::from_millis(20);

/// Waits until exactly so many reads wait.
pub async fn waiting(world: &World, service: &Service, count: usize) -> Result<(), Failure> {
    let deadline = Instant::now() + ALL;
    loop {
        let waiting = metric(&world.http, service, "mandate_waiting_reads").await?;
        if waiting == u64::try_from(count)? {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("{waiting} reads wait and not {count}").into());
        }
        sleep(AGAIN).await;
    }
}

/// Measures it, for each way to wait in a fresh process, which has answered nothing yet but that it is ready.
pub async fn measure(world: &World, arguments: &Arguments) -> Result<Section, Failure> {
    let targets = world.callers.targets(arguments.tasks).await?;
    let token = world.callers.agent.token();
    let (mut rows, mut machine) = (Vec::new(), serde_json::Map::<String, Value>::new());
    for way in ["long-polls", "streams"] {
        let mut service = world.another(way, &[]).await?;
        let (before, _) = resident(service.pid()?)?;
        let on = |reader: usize| &targets[reader % targets.len()];
        let ((with, most), count);
        if way == "streams" {
            let open = async |reader: usize| {
                let target = on(reader);
                Connection::open(&service, token).await?.follow(target, target.last_seq).await
            };
            let open = futures::stream::iter(0..arguments.waiters).map(open).buffer_unordered(AT_ONCE);
            let streams: Vec<Following> = open.try_collect().await?;
            waiting(world, &service, arguments.waiters).await?;
            (with, most) = resident(service.pid()?)?;
            count = streams.len();
        } else {
            let polls = (0..arguments.waiters).map(async |reader| {
                // A first look takes a connection to the database, so not all may come at the same moment.
                sleep(APART * u32::try_from(reader)?).await;
                let target = on(reader);
                let path = format!("{}?after_seq={}&wait=55", log_of(target), target.last_seq);
                Connection::open(&service, token).await?.get(&path).await
            });
            let look = async {
                waiting(world, &service, arguments.waiters).await?;
                resident(service.pid()?)
            };
            // What is looked for comes first; the readers are dropped then.
            let polls = try_join_all(polls);
            (with, most) = tokio::select! {
                looked = look => looked?,
                ended = polls => return Err(ended.err().unwrap_or_else(|| "the reads ended too soon".into())),
            };
            count = arguments.waiters;
        }
        let each = (with - before) * 1e3 / number(count);
        machine.insert(
            way.to_owned(),
            json!({"waiters": count, "tasks": targets.len(), "before_mb": before,
            "with_mb": with, "most_mb": most, "each_kb": each}),
        );
        let cells = [format!("{before:.1}"), format!("{with:.1}"), format!("{most:.1}"), format!("{each:.1}")];
        rows.push([vec![way.to_owned(), count.to_string()], cells.to_vec()].concat());
        service.kill().await?;
    }
    Ok(Section {
        name: "memory",
        title: format!(
            "Resident memory of a process while reads wait on {} tasks (promised: below 200 MB with 5,000)",
            targets.len()
        ),
        head: vec!["", "waiting", "MB before", "MB with them", "MB at most", "kB each"],
        rows,
        json: Value::Object(machine),
    })
}
