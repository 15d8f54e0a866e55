//! What goes away, and when.

use std::time::Duration;

use mandate::domain::time::Timestamp;
use mandate::service::Clock;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::Failure;
use super::world::{Part, Way, World};

/// How long something stays away.
const AWAY: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(8)];

/// In the first half everything goes, in each way. In the second half the first process stays, so that its memory can
/// be judged.
const FIRST_HALF: [(Part, Way); 10] = [
    (Part::First, Way::Killed),
    (Part::Kafka, Way::Asked),
    (Part::Postgres, Way::Killed),
    (Part::Second, Way::Asked),
    (Part::ClickHouse, Way::Asked),
    (Part::Second, Way::Killed),
    (Part::Postgres, Way::Asked),
    (Part::Kafka, Way::Killed),
    (Part::ClickHouse, Way::Killed),
    (Part::First, Way::Asked),
];
const SECOND_HALF: [(Part, Way); 9] = [
    (Part::Second, Way::Killed),
    (Part::Postgres, Way::Killed),
    (Part::Kafka, Way::Killed),
    (Part::ClickHouse, Way::Asked),
    (Part::Second, Way::Asked),
    (Part::Kafka, Way::Asked),
    (Part::Postgres, Way::Asked),
    (Part::ClickHouse, Way::Killed),
    (Part::Second, Way::Killed),
];

/// Something was away.
pub struct Outage {
    part: Part,
    way: Way,
    begin: Timestamp,
    end: Timestamp,
}

impl Outage {
    pub fn json(&self) -> Value {
        let millis = (self.end.micros() - self.begin.micros()) / 1_000;
        let way = if self.way == Way::Asked { "asked" } else { "killed" };
        json!({"part": self.part.name(), "way": way, "at": self.begin.to_string(), "away_millis": millis})
    }
}

/// One thing after the other goes away and comes back, evenly over `length`; nothing goes in its last part.
pub async fn all(world: &mut World, length: Duration) -> Result<Vec<Outage>, Failure> {
    let (begin, clock) = (Instant::now(), Clock::system());
    let plan: Vec<_> = FIRST_HALF.into_iter().chain(SECOND_HALF).collect();
    let apart = length / u32::try_from(plan.len() + 1)?;
    let mut outages = Vec::new();
    for (nth, (part, way)) in plan.into_iter().enumerate() {
        sleep_until(begin + apart * u32::try_from(nth + 1)?).await;
        eprintln!("soak: {} is {}", part.name(), if way == Way::Asked { "asked to end" } else { "killed" });
        let begin = clock.now();
        world.outage(part, way, AWAY[nth % AWAY.len()].min(apart / 4)).await?;
        outages.push(Outage { part, way, begin, end: clock.now() });
    }
    sleep_until(begin + length).await;
    Ok(outages)
}
