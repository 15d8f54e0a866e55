//! From the commit to the publisher: what was committed waits in memory, within bounds, until it is handed over and
//! acknowledged. Nothing waits for it. What finds no room, or is lost with the process, the sweep finds missing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, timeout_at};

use super::metrics::LogCounters;
use super::trace;
use crate::domain::change::Change;
use crate::domain::event::Event;
use crate::domain::ids::AccountId;
use crate::domain::task::Pinned;
use crate::domain::usage::LedgerRow;
use crate::log::{Batch, EventRow, Pace, UsageRow};

/// The version of a row that is sent for the first time.
const FIRST: u64 = 1;
/// What an event weighs beside its payload, in bytes, in the account of the queue.
const EVENT_OVERHEAD: usize = 512;

/// What may wait.
#[derive(Debug, Clone, Copy)]
pub struct OutboxLimits {
    /// Rows.
    pub rows: usize,
    /// Bytes.
    pub bytes: usize,
}

/// The rows of one commit.
struct Handed {
    task: Arc<Pinned>,
    events: Vec<Event>,
    report: Option<(AccountId, LedgerRow)>,
    trace: Option<Arc<str>>,
    rows: usize,
    bytes: usize,
}

/// What waits, counted.
#[derive(Debug, Default)]
struct Waiting {
    rows: AtomicUsize,
    bytes: AtomicUsize,
}

/// The end at which commits are handed in.
pub struct Outbox {
    sender: UnboundedSender<Handed>,
    waiting: Arc<Waiting>,
    limits: OutboxLimits,
    counters: LogCounters,
}

/// The end from which batches are taken.
pub struct Inbox {
    tap: Mutex<Tap>,
    waiting: Arc<Waiting>,
}

struct Tap {
    receiver: UnboundedReceiver<Handed>,
    /// What was taken and not yet answered: a call that is dropped half-way loses nothing.
    gathered: Gathered,
}

/// A batch, and what it takes of the limits until it is [settled](Inbox::settle).
#[derive(Debug, Default)]
pub struct Gathered {
    /// The rows.
    pub batch: Batch,
    share: Share,
}

/// What is taken of the limits.
#[derive(Debug, Default, Clone, Copy)]
pub struct Share {
    rows: usize,
    bytes: usize,
}

impl Gathered {
    /// The rows, and what has to be settled once they are handed over.
    pub fn into_parts(self) -> (Batch, Share) {
        (self.batch, self.share)
    }

    fn add(&mut self, handed: Handed) {
        self.share.rows += handed.rows;
        self.share.bytes += handed.bytes;
        let Handed { task, events, report, trace, .. } = handed;
        self.batch.events.extend(events.iter().map(|event| EventRow::new(&task, event, FIRST, trace.clone())));
        self.batch.usage.extend(report.map(|(account, row)| UsageRow::new(&task, account, &row, FIRST, trace)));
    }
}

/// A queue within `limits`.
pub fn outbox(limits: OutboxLimits, counters: LogCounters) -> (Outbox, Inbox) {
    // Bounded by the account of rows and bytes, which one number of entries could not express.
    let (sender, receiver) = unbounded_channel();
    let waiting = Arc::new(Waiting::default());
    let tap = Mutex::new(Tap { receiver, gathered: Gathered::default() });
    let inbox = Inbox { tap, waiting: Arc::clone(&waiting) };
    (Outbox { sender, waiting, limits, counters }, inbox)
}

impl Outbox {
    /// Hands in what `change` committed; `account` is who reported, if it adds to the ledger. Never waits.
    pub fn hand_in(&self, change: &Change, account: Option<AccountId>) {
        let report = change.ledger().cloned().zip(account).map(|(row, account)| (account, row));
        let rows = change.events().len() + usize::from(report.is_some());
        let weigh = |event: &Event| {
            event.payload.len() + event.redacted.iter().map(String::len).sum::<usize>() + EVENT_OVERHEAD
        };
        let bytes = change.events().iter().map(weigh).sum::<usize>();
        let full = self.waiting.rows.fetch_add(rows, Ordering::AcqRel) + rows > self.limits.rows;
        let heavy = self.waiting.bytes.fetch_add(bytes, Ordering::AcqRel) + bytes > self.limits.bytes;
        if full || heavy {
            self.waiting.take(rows, bytes);
            self.counters.unpublished.inc_by(rows as u64);
            return;
        }
        let task = change.next().task().shared();
        let handed = Handed { task, events: change.events().to_vec(), report, trace: trace::current(), rows, bytes };
        if self.sender.send(handed).is_err() {
            // The publisher has ended, so the process is about to.
            self.waiting.take(rows, bytes);
            self.counters.unpublished.inc_by(rows as u64);
        }
    }

    /// How many rows wait.
    pub fn waiting(&self) -> usize {
        self.waiting.rows.load(Ordering::Acquire)
    }
}

impl Waiting {
    fn take(&self, rows: usize, bytes: usize) {
        self.rows.fetch_sub(rows, Ordering::AcqRel);
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
    }
}

impl Inbox {
    /// The next batch: waits for the first row, then for more until the batch is full or the pace's linger is over.
    /// `None` once nobody hands in any more and all is taken. May be dropped half-way.
    pub async fn gather(&self, pace: Pace) -> Option<Gathered> {
        let mut tap = self.tap.lock().await;
        let Tap { receiver, gathered } = &mut *tap;
        if gathered.batch.is_empty() {
            gathered.add(receiver.recv().await?);
        }
        let until = Instant::now() + pace.linger;
        while gathered.batch.len() < pace.rows {
            match timeout_at(until, receiver.recv()).await {
                Ok(Some(handed)) => gathered.add(handed),
                Ok(None) | Err(_) => break,
            }
        }
        Some(std::mem::take(gathered))
    }

    /// What waits now, at most one batch; `None` when nothing does.
    pub async fn take(&self, pace: Pace) -> Option<Gathered> {
        let mut tap = self.tap.lock().await;
        let Tap { receiver, gathered } = &mut *tap;
        while gathered.batch.len() < pace.rows {
            match receiver.try_recv() {
                Ok(handed) => gathered.add(handed),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        Some(std::mem::take(gathered)).filter(|gathered| !gathered.batch.is_empty())
    }

    /// Gives a share of the limits back: its rows are in memory no longer.
    pub fn settle(&self, share: Share) {
        self.waiting.take(share.rows, share.bytes);
    }
}

/// How long a publisher that was stopped may go on with what waits.
pub const DRAIN_MAX: Duration = Duration::from_secs(5);
