//! Resident memory of every process over its life.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, interval};
use tokio_util::sync::CancellationToken;

use super::Failure;

/// How often it is looked at.
const APART: Duration = Duration::from_secs(5);
/// A life shorter than this is still warming up.
pub const JUDGED: Duration = Duration::from_mins(10);
/// How much more the last quarter of a life may need than the middle one: in hundredths.
const GROWTH: u64 = 110;

/// One process from its start to its end.
struct Life {
    name: &'static str,
    pid: u32,
    began: Instant,
    ended: bool,
    /// Its age, and its memory in kB.
    samples: Vec<(Duration, u64)>,
}

/// Who runs, and who ran.
#[derive(Clone, Default)]
pub struct Roster(Arc<Mutex<Vec<Life>>>);

/// What a life shows.
pub struct Flatness {
    pub name: &'static str,
    pub age: Duration,
    /// Medians of the middle quarter and of the last, in kB.
    pub middle: u64,
    pub last: u64,
}

impl Flatness {
    /// Whether it lived long enough to be judged.
    pub fn is_judged(&self) -> bool {
        self.age >= JUDGED
    }

    pub fn is_flat(&self) -> bool {
        self.last * 100 <= self.middle * GROWTH
    }

    pub fn json(&self) -> Value {
        json!({"process": self.name, "age_seconds": self.age.as_secs(), "middle_quarter_kb": self.middle,
            "last_quarter_kb": self.last, "judged": self.is_judged(), "flat": self.is_flat()})
    }
}

impl Roster {
    fn lives(&self) -> MutexGuard<'_, Vec<Life>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn began(&self, name: &'static str, pid: u32) {
        self.lives().push(Life { name, pid, began: Instant::now(), ended: false, samples: Vec::new() });
    }

    pub fn ended(&self, name: &str) {
        self.lives().iter_mut().filter(|life| life.name == name).for_each(|life| life.ended = true);
    }

    fn look(&self) {
        for life in self.lives().iter_mut().filter(|life| !life.ended) {
            // One that has just ended has none.
            if let Ok(kilobytes) = resident(life.name, life.pid) {
                life.samples.push((life.began.elapsed(), kilobytes));
            }
        }
    }

    /// Looks until it is told to stop.
    pub async fn watch(self, stop: CancellationToken) {
        let mut ticks = interval(APART);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            self.look();
        }
    }

    /// The last life of each process that was looked at often enough to have quarters.
    pub fn flatness(&self) -> Vec<Flatness> {
        self.lives().iter().filter(|life| !life.ended && life.samples.len() >= 8).map(Life::flatness).collect()
    }

    /// All samples, for machines.
    pub fn json(&self) -> Value {
        let life = |life: &Life| {
            let samples: Vec<_> =
                life.samples.iter().map(|(age, kilobytes)| json!([age.as_secs(), kilobytes])).collect();
            json!({"process": life.name, "samples": samples})
        };
        self.lives().iter().map(life).collect()
    }
}

impl Life {
    fn flatness(&self) -> Flatness {
        let age = self.samples.last().map_or(Duration::ZERO, |(age, _)| *age);
        let median = |from: u32, to: u32| {
            let within = |at: &Duration| age * from <= *at * 8 && *at * 8 <= age * to;
            let mut some: Vec<_> =
                self.samples.iter().filter(|(at, _)| within(at)).map(|(_, kilobytes)| *kilobytes).collect();
            some.sort_unstable();
            some.get(some.len() / 2).copied().unwrap_or_default()
        };
        Flatness { name: self.name, age, middle: median(3, 5), last: median(6, 8) }
    }
}

/// Of PostgreSQL what its processes do not share.
fn resident(name: &str, pid: u32) -> Result<u64, Failure> {
    if name != "PostgreSQL" {
        return field(pid, "VmRSS:");
    }
    let mut sum = field(pid, "RssAnon:")?;
    for entry in std::fs::read_dir("/proc")? {
        let Some(child) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if field(child, "PPid:").is_ok_and(|parent| parent == u64::from(pid)) {
            sum += field(child, "RssAnon:").unwrap_or_default();
        }
    }
    Ok(sum)
}

fn field(pid: u32, name: &str) -> Result<u64, Failure> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
    Ok(value.ok_or_else(|| format!("a process without {name}"))?.parse()?)
}
