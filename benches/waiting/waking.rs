//! From a commit until one reader has the event.

use std::time::Duration;

use futures::future::try_join_all;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio::try_join;

use super::client::{Connection, Following, Written, log_of};
use super::report::{Section, Spread};
use super::seed::{ORG, Target};
use super::service::Service;
use super::world::World;
use super::{Arguments, Failure};

/// How often the reader asks that polls.
const POLL: Duration = Duration::from_secs(1);
/// How long a reader waits before there is a commit, at least: it has looked and found nothing by then.
const STILL: Duration = Duration::from_millis(25);
/// By how much the pauses before commits differ: they must not keep step with anything that the servers do.
const JITTER: Duration = Duration::from_millis(20);
/// A stride through pauses that meets each of them.
const STRIDE: usize = 61;
/// The tick of the processes: the default.
const TICK: Duration = Duration::from_millis(500);
/// Readers at once of what another process writes, each with its own task.
const LANES: usize = 10;

/// One wake after the other.
#[derive(Default)]
struct Wakes {
    since_recorded: Vec<i64>,
    after_answered: Vec<i64>,
}

impl Wakes {
    fn note(&mut self, written: Written, got: i64) {
        self.since_recorded.push(got - written.recorded);
        self.after_answered.push(got - written.answered);
    }

    fn join(mut self, other: Self) -> Self {
        self.since_recorded.extend(other.since_recorded);
        self.after_answered.extend(other.after_answered);
        self
    }
}

/// A section with a row for each way to wait.
fn section(name: &'static str, title: String, rows: Vec<(String, Wakes)>) -> Section {
    let (mut cells, mut machine) = (Vec::new(), serde_json::Map::<String, Value>::new());
    for (way, wakes) in rows {
        let (since, after) = (Spread::from(wakes.since_recorded), Spread::from(wakes.after_answered));
        machine.insert(way.clone(), json!({"since_recorded": since.json(), "after_answered": after.json()}));
        let [count, ..] = since.cells();
        cells.push([vec![way, count], since.fine_cells().to_vec(), after.fine_cells().to_vec()].concat());
    }
    Section {
        name,
        title,
        head: vec!["", "wakes", "since recorded p50", "p99", "max", "after answered p50", "p99", "max"],
        rows: cells,
        json: Value::Object(machine),
    }
}

/// A pause that another one follows that is unlike it.
fn pause(least: Duration, within: Duration, number: usize) -> Duration {
    let within = usize::try_from(within.as_millis()).unwrap_or(1).max(1);
    least + Duration::from_millis(u64::try_from(number * STRIDE % within).unwrap_or_default())
}

/// A way to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Poll,
    LongPoll,
    Stream,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Poll => "a poll every second",
            Self::LongPoll => "long-poll",
            Self::Stream => "stream",
        }
    }
}

/// Who waits.
enum Reader {
    Poll(Connection),
    LongPoll(Connection),
    Stream(Following),
}

impl Reader {
    async fn next(&mut self, target: &Target, after: i64) -> Result<i64, Failure> {
        match self {
            Self::LongPoll(connection) => connection.long_poll(target, after).await,
            Self::Stream(following) => following.next().await,
            Self::Poll(connection) => {
                let mut poll = interval(POLL);
                poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    poll.tick().await;
                    let reply = connection.get(&format!("{}?after_seq={after}", log_of(target))).await?;
                    if reply.body.as_array().is_some_and(|events| !events.is_empty()) {
                        return Ok(reply.at);
                    }
                }
            }
        }
    }
}

/// The connections of a reader and a writer, about a task of their own.
struct Lane {
    target: Target,
    reader: Reader,
    writer: Connection,
    last_seq: i64,
}

impl Lane {
    /// A reader of one process and a writer of another, or of the same.
    async fn open(world: &World, way: Way, read: &Service, write: &Service) -> Result<Self, Failure> {
        let target = world.callers.targets(1).await?.pop().ok_or("no task")?;
        let (token, last_seq) = (world.callers.agent.token(), target.last_seq);
        let reader = Connection::open(read, token).await?;
        let reader = match way {
            Way::Poll => Reader::Poll(reader),
            Way::LongPoll => Reader::LongPoll(reader),
            Way::Stream => Reader::Stream(reader.follow(&target, last_seq).await?),
        };
        let writer = Connection::open(write, token).await?;
        Ok(Self { target, reader, writer, last_seq })
    }

    /// Commits once while the reader waits, after so long, `count` times.
    async fn wakes(&mut self, count: usize, pause: impl Fn(usize) -> Duration) -> Result<Wakes, Failure> {
        let mut wakes = Wakes::default();
        for number in 0..count {
            let write = async {
                sleep(pause(number)).await;
                self.writer.append(&self.target).await
            };
            let (got, written) = try_join!(self.reader.next(&self.target, self.last_seq), write)?;
            if written.seq != self.last_seq + 1 {
                return Err("somebody else wrote".into());
            }
            self.last_seq = written.seq;
            wakes.note(written, got);
        }
        Ok(wakes)
    }
}

/// One reader, in the process that commits; also in one that remembers nothing of the directory, so that all of what is
/// looked up again after a long silence is in the figures.
pub async fn same(world: &World, arguments: &Arguments) -> Result<Section, Failure> {
    let mut forgetful = world.another("forgetful", &[("AUTH__DIRECTORY_CACHE_SECONDS", "0")]).await?;
    let mut rows = Vec::new();
    let mut lane = Lane::open(world, Way::Poll, &world.service, &world.service).await?;
    let polls = lane.wakes(arguments.polls, |number| pause(STILL, POLL, number)).await?;
    rows.push((Way::Poll.name().to_owned(), polls));
    for (service, memory) in [(&world.service, ""), (&forgetful, ", nothing remembered")] {
        for way in [Way::LongPoll, Way::Stream] {
            let mut lane = Lane::open(world, way, service, service).await?;
            let wakes = lane.wakes(arguments.wakes, |number| pause(STILL, JITTER, number)).await?;
            rows.push((format!("{}{memory}", way.name()), wakes));
        }
    }
    forgetful.kill().await?;
    let title = "One reader in the process that commits, in ms (promised: p50 of long-poll and stream below 5)";
    Ok(section("same", title.to_owned(), rows))
}

/// Readers in another process than the one that commits.
pub async fn other(world: &World, arguments: &Arguments) -> Result<Section, Failure> {
    let tick = TICK.as_millis();
    let mut other = world.another("other", &[("WAITING__TICK_MS", &tick.to_string())]).await?;
    let each = arguments.wakes.div_ceil(LANES);
    let mut rows = Vec::new();
    for way in [Way::LongPoll, Way::Stream] {
        let lanes = (0..LANES).map(async |lane| {
            let mut open = Lane::open(world, way, &other, &world.service).await?;
            open.wakes(each, |number| pause(STILL, TICK, number + lane * each)).await
        });
        let wakes = try_join_all(lanes).await?.into_iter().fold(Wakes::default(), Wakes::join);
        rows.push((way.name().to_owned(), wakes));
    }
    other.kill().await?;
    let title = format!("Readers in another process, in ms (promised: within the tick, which is {tick} ms)");
    Ok(section("other", title, rows))
}

/// A reader of the organization's feed, in the process that commits.
pub async fn feed(world: &World, arguments: &Arguments) -> Result<Section, Failure> {
    let mut lane = Lane::open(world, Way::LongPoll, &world.service, &world.service).await?;
    let mut reader = Connection::open(&world.service, world.callers.person.token()).await?;
    let mut next = format!("/organizations/{ORG}/agent-events?after=now&wait=1");
    let mut wakes = Wakes::default();
    next = reader.get(&next).await?.next()?.replace("wait=1", "wait=20");
    for number in 0..arguments.wakes {
        let write = async {
            sleep(pause(STILL, JITTER, number)).await;
            lane.writer.append(&lane.target).await
        };
        let (reply, written) = try_join!(reader.get(&next), write)?;
        if reply.body.pointer("/0/seq").and_then(Value::as_i64) != Some(written.seq) {
            return Err(format!("the feed does not have the event next: {}", reply.body).into());
        }
        reply.next()?.clone_into(&mut next);
        wakes.note(written, reply.at);
    }
    let title = "A reader of the organization's feed, in the process that commits, in ms";
    Ok(section("feed", title.to_owned(), vec![("long-poll".to_owned(), wakes)]))
}
