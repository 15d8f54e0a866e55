//! Sending again what the log store lacks.

use std::collections::HashSet;
use std::sync::PoisonError;
use std::time::Duration;

use tokio::time::Instant;

use super::{Answering, PATIENCE_DOUBLINGS_MAX, Sweep, SweepError, Swept};
use crate::domain::ids::{OrganizationId, TaskId};
use crate::domain::time::Timestamp;
use crate::log::{Batch, Coverage, EventRow, Published, UsageRow};
use crate::store::{LogPart, SweptTask, VERIFY_FAILURES_MAX};

/// The version of a row that is sent again as it was: it lands beside its twin.
const AGAIN: u64 = 1;
/// How many seqs are read and sent at once.
const CHUNK: i64 = 500;
/// How long a round waits in all for a stream that takes nothing.
const IN_VAIN_MAX: Duration = Duration::from_secs(5);

impl Sweep {
    /// Looks closer at tasks that the store does not have whole: what is missing is sent again, what no log can have is
    /// counted. Answers the tasks of which rows were sent and taken.
    pub(super) async fn mend(
        &self,
        other: &[(SweptTask, Coverage)],
        swept: &mut Swept,
    ) -> Result<Vec<(OrganizationId, TaskId)>, SweepError> {
        // Read after the store was: what is in the store was committed before, so no row of it can be ahead of this.
        let keys: Vec<_> = other.iter().map(|(task, _)| task.key()).collect();
        let now = self.store.swept_tasks(&keys).await?;
        let mut mended = Vec::new();
        for task in now {
            if self.is_enough(swept) {
                break;
            }
            let Some((_, coverage)) = other.iter().find(|(seen, _)| seen.key() == task.key()) else { continue };
            let foreign = coverage.has_foreign(task.last_seq, task.reports);
            if foreign {
                swept.mismatched += 1;
                let detail = format!(
                    "it has {} seqs up to {}, {} event ids and {} reports, where the log has {} events and {} reports",
                    coverage.seqs, coverage.max_seq, coverage.event_ids, coverage.reports, task.last_seq, task.reports
                );
                self.contradicted(&task, &detail).await?;
            }
            let (sent, lacking) = self.send_missing(&task, swept).await?;
            if sent > 0 {
                mended.push(task.key());
            } else if foreign && !lacking && task.verify_failures >= VERIFY_FAILURES_MAX {
                // Nothing is missing, and what is too much nobody here can take away.
                self.store.leave(&task).await?;
            }
        }
        Ok(mended)
    }

    /// Whether a round sends nothing more: each batch would wait as long again.
    fn is_enough(&self, swept: &Swept) -> bool {
        self.stop.is_cancelled() || swept.in_vain >= IN_VAIN_MAX
    }

    /// How old an entry of `task` must be to count as lost, or `None` while none is, or what was sent last, or waited
    /// for a log store that was away, may still arrive. Asks nobody, so that a store that is behind is not asked about
    /// every task in every round.
    pub(super) fn lost_before(&self, task: &SweptTask) -> Option<Timestamp> {
        let now = self.clock.now();
        let doublings = task.republications.clamp(0, PATIENCE_DOUBLINGS_MAX);
        let patience = self.settings.patience * 2_u32.pow(doublings.unsigned_abs());
        let waited = task.republished_at.is_none_or(|at| at <= now.minus(patience));
        let lost_before = now.minus(self.settings.patience);
        let answering = *self.answering.lock().unwrap_or_else(PoisonError::into_inner);
        let caught_up = match answering {
            Answering::Since(at) => self.stream.lands() || at <= lost_before,
            Answering::Always | Answering::No => true,
        };
        // Where the log is known to be whole up to an entry, nothing older than the next one can be lost.
        let old = task.unverified_since.is_none_or(|since| since <= lost_before);
        (waited && caught_up && old).then_some(lost_before)
    }

    /// Sends the task's rows that the store lacks and that are old enough to be lost. Answers how many were taken, and
    /// whether any is lacking at all.
    async fn send_missing(&self, task: &SweptTask, swept: &mut Swept) -> Result<(u64, bool), SweepError> {
        let Some(lost_before) = self.lost_before(task) else { return Ok((0, true)) };
        let (organization, id) = task.key();
        let stored: HashSet<i64> = self.log.seqs(organization, id).await?.into_iter().collect();
        let missing: Vec<i64> = (1..=task.last_seq).filter(|seq| !stored.contains(seq)).collect();
        let reports: HashSet<_> = self.log.report_ids(organization, id).await?.into_iter().collect();
        let lacking = !missing.is_empty() || (reports.len() as u64) < task.reports.unsigned_abs();
        if !lacking {
            return Ok((0, false));
        }
        let (mut sent, mut answered, mut ledger_done) = (0, false, false);
        // At least one look, for the ledger, when no event is missing.
        let ranges = ranges(&missing);
        let looks = if ranges.is_empty() { vec![(0, 0)] } else { ranges };
        for (first, last) in looks {
            let Some(part) = self.store.log_of(task.key(), first, last).await? else { break };
            let mut batch = Batch::default();
            let pinned = part.task.pinned();
            let lost = |at: Timestamp| at <= lost_before;
            let events = part.events.iter().filter(|event| lost(event.recorded_at) && !stored.contains(&event.seq));
            batch.events.extend(events.map(|event| EventRow::new(pinned, event, AGAIN, None)));
            if !ledger_done {
                let rows = part.reports.iter().filter(|(_, row)| lost(row.recorded_at) && !reports.contains(&row.id));
                batch.usage.extend(rows.map(|(account, row)| UsageRow::new(pinned, *account, row, AGAIN, None)));
                ledger_done = true;
            }
            let published = self.send(batch, swept).await;
            sent += published.delivered;
            answered |= published.delivered + published.refused > 0;
            if self.is_enough(swept) {
                break;
            }
        }
        // What a stream that is away did not take was not sent: the next round tries again, without more patience.
        if answered {
            self.store.mark_republished(task, self.clock.now()).await?;
        }
        Ok((sent, lacking))
    }

    /// Sends rows. A stream that takes nothing costs the time that it is waited for.
    async fn send(&self, batch: Batch, swept: &mut Swept) -> Published {
        if batch.is_empty() {
            return Published::default();
        }
        let begun = Instant::now();
        let stopped = Published { failed: u64::try_from(batch.len()).unwrap_or(u64::MAX), ..Published::default() };
        let published = tokio::select! {
            biased;
            () = self.stop.cancelled() => stopped,
            published = self.stream.publish(batch) => published,
        };
        let Published { delivered, failed, refused, .. } = published;
        if delivered + refused == 0 {
            swept.in_vain += begun.elapsed();
        }
        swept.republished += delivered;
        swept.unpublished += failed;
        self.counters.republished.inc_by(delivered);
        self.counters.refused.inc_by(refused);
        if let Some(fault) = &published.fault {
            tracing::warn!(failed, refused, fault, "not everything was sent again");
        }
        published
    }

    /// Sends the whole log and ledger of a task with a version above every one that the store has of it. Answers
    /// whether all of it was taken, or refused by the store itself.
    pub(super) async fn write_anew(
        &self,
        task: &SweptTask,
        highest_version: u64,
        swept: &mut Swept,
    ) -> Result<bool, SweepError> {
        let version = highest_version.saturating_add(1);
        let mut first = 1;
        while first <= task.last_seq {
            let last = (first + CHUNK - 1).min(task.last_seq);
            let Some(LogPart { task: row, events, reports }) = self.store.log_of(task.key(), first, last).await? else {
                return Ok(true);
            };
            let pinned = row.pinned();
            let mut batch = Batch::default();
            batch.events.extend(events.iter().map(|event| EventRow::new(pinned, event, version, None)));
            if first == 1 {
                batch
                    .usage
                    .extend(reports.iter().map(|(account, row)| UsageRow::new(pinned, *account, row, version, None)));
            }
            let published = self.send(batch, swept).await;
            if published.failed > published.refused || self.is_enough(swept) {
                return Ok(false);
            }
            first = last + 1;
        }
        self.store.mark_republished(task, self.clock.now()).await?;
        Ok(true)
    }
}

/// `seqs`, ascending, as ranges that are read at once: a range may span others when that reads little more.
fn ranges(seqs: &[i64]) -> Vec<(i64, i64)> {
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    for seq in seqs {
        match ranges.last_mut() {
            Some((first, last)) if *seq - *first < CHUNK => *last = *seq,
            _ => ranges.push((*seq, *seq)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_every_seq_and_are_bounded() {
        let seqs: Vec<i64> = (1..=1_200).filter(|seq| seq % 7 != 0).chain([5_000, 9_000_000]).collect();
        let ranges = ranges(&seqs);
        assert!(seqs.iter().all(|seq| ranges.iter().any(|(first, last)| (first..=last).contains(&seq))));
        assert!(ranges.iter().all(|(first, last)| last - first < CHUNK));
        assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0));
        assert_eq!(ranges.len(), 5);
        assert!(super::ranges(&[]).is_empty());
    }
}
