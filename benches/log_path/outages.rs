//! Servers that restart while clients write.

use std::sync::Arc;
use std::time::Duration;

use mandate::domain::time::Timestamp;
use mandate::service::Clock;
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::Failure;
use super::servers::Server;
use super::world::World;
use super::writers::Answers;

/// For so long before and after an outage nothing counts as undisturbed.
const BEFORE: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(10);

/// A server that was away.
pub struct Outage {
    pub what: &'static str,
    pub begin: Timestamp,
    pub end: Timestamp,
    /// Calls that succeeded meanwhile.
    pub answered: usize,
}

impl Outage {
    /// Whether `at` is too near to be undisturbed.
    pub fn disturbs(&self, at: Timestamp) -> bool {
        self.begin.minus(BEFORE) <= at && at <= self.end.plus(AFTER)
    }

    /// How long it was.
    pub fn seconds(&self) -> String {
        let millis = (self.end.micros() - self.begin.micros()) / 1_000;
        format!("{}.{} s", millis / 1_000, millis % 1_000 / 100)
    }
}

/// The broker stops and starts, ClickHouse does, and the broker is killed and starts: at 10, 40 and 70 in a hundred of
/// the calls from `from` to `to`.
pub async fn three(world: &mut World, answers: &Arc<Answers>, from: usize, to: usize) -> Result<Vec<Outage>, Failure> {
    let at = |percent: usize| from + (to - from) * percent / 100;
    until(answers, at(10)).await;
    let first = outage("the broker stops", &mut world.kafka, Server::stop, answers)?;
    until(answers, at(40)).await;
    let second = outage("ClickHouse stops", &mut world.clickhouse, Server::stop, answers)?;
    until(answers, at(70)).await;
    let third = outage("the broker is killed", &mut world.kafka, Server::kill, answers)?;
    Ok(vec![first, second, third])
}

async fn until(answers: &Answers, count: usize) {
    while answers.successes() < count {
        sleep(Duration::from_millis(10)).await;
    }
}

fn outage(what: &'static str, server: &mut Server, end: fn(&mut Server), answers: &Answers) -> Result<Outage, Failure> {
    let clock = Clock::system();
    let (begin, before) = (clock.now(), answers.successes());
    block_in_place(|| {
        end(server);
        server.start_again();
    });
    let answered = answers.successes() - before;
    if answered == 0 {
        return Err(format!("{what}, but nobody wrote meanwhile: lower --rate").into());
    }
    Ok(Outage { what, begin, end: clock.now(), answered })
}
