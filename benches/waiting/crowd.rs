//! One commit that wakes many readers of one task.

use std::time::Duration;

use futures::future::{try_join, try_join_all};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::client::Connection;
use super::memory::waiting;
use super::report::{Section, Spread};
use super::world::World;
use super::{Arguments, Failure};

/// How long it stays still when all wait, so that all have looked.
const STILL: Duration = Duration::from_millis(500);

/// Measures it. Each round has fresh readers, with connections of their own.
pub async fn measure(world: &World, arguments: &Arguments) -> Result<Section, Failure> {
    let token = world.callers.agent.token();
    let (mut rows, mut machine) = (Vec::new(), serde_json::Map::<String, Value>::new());
    for way in ["long-polls", "streams"] {
        let (mut each, mut last) = (Vec::new(), Vec::new());
        let target = world.callers.targets(1).await?.pop().ok_or("no task")?;
        let mut head = target.last_seq;
        for _ in 0..arguments.rounds {
            waiting(world, &world.service, 0).await?;
            let target = &target;
            let readers = (0..arguments.crowd).map(async |_| {
                let mut connection = Connection::open(&world.service, token).await?;
                if way == "streams" {
                    connection.follow(target, head).await?.next().await
                } else {
                    connection.long_poll(target, head).await
                }
            });
            let write = async {
                waiting(world, &world.service, arguments.crowd).await?;
                sleep(STILL).await;
                Connection::open(&world.service, token).await?.append(target).await
            };
            let (got, written) = try_join(try_join_all(readers), write).await?;
            head = written.seq;
            let took: Vec<i64> = got.iter().map(|got| got - written.recorded).collect();
            last.extend(took.iter().max());
            each.extend(took);
        }
        let (each, last) = (Spread::from(each), Spread::from(last));
        machine.insert(way.to_owned(), json!({"each": each.json(), "last": last.json()}));
        let cells = [vec![way.to_owned(), arguments.rounds.to_string()], each.fine_cells()[..2].to_vec()].concat();
        rows.push([cells, vec![last.fine_cells()[0].clone(), last.fine_cells()[2].clone()]].concat());
    }
    Ok(Section {
        name: "crowd",
        title: format!("One commit wakes {} readers of one task, in ms since recorded", arguments.crowd),
        head: vec!["", "commits", "each p50", "each p99", "the last, median", "the last, max"],
        rows,
        json: Value::Object(machine),
    })
}
