//! Comparing by count, and telling a log store that is away from one that cannot answer about one task.

use std::collections::HashMap;
use std::sync::PoisonError;

use uuid::Uuid;

use super::round::{Key, Round};
use super::{Answering, Sweep, SweepError};
use crate::domain::ids::{OrganizationId, TaskId};
use crate::log::Coverage;
use crate::store::SweptTask;

/// Tasks that are not whole in the store, each with what it has of them.
pub(super) type Other = HashMap<Key, (SweptTask, Coverage)>;

impl Sweep {
    /// Parts tasks into those that the store has whole and the others, each with what it has.
    pub(super) async fn compare(
        &self,
        mut tasks: Vec<SweptTask>,
        round: &mut Round,
    ) -> Result<(Vec<SweptTask>, Other), SweepError> {
        let keys: Vec<_> = tasks.iter().map(SweptTask::key).collect();
        let found = match self.log.coverage(&keys).await {
            Ok(found) => found,
            Err(error) => {
                self.check_log(error.into()).await?;
                self.each_coverage(&mut tasks, round).await?
            }
        };
        self.log_answers(true);
        let found: HashMap<Key, Coverage> =
            found.into_iter().map(|coverage| ((coverage.organization, coverage.task), coverage)).collect();
        let (mut whole, mut other) = (Vec::new(), HashMap::new());
        for task in tasks {
            let none = Coverage::none(task.organization, task.task);
            let coverage = found.get(&task.key()).copied().unwrap_or(none);
            if coverage.is_whole(task.last_seq, task.reports) {
                whole.push(task);
            } else {
                other.insert(task.key(), (task, coverage));
            }
        }
        Ok((whole, other))
    }

    /// Asks about each task alone, and takes those out of which the store cannot say what it has.
    async fn each_coverage(&self, tasks: &mut Vec<SweptTask>, round: &mut Round) -> Result<Vec<Coverage>, SweepError> {
        let mut found = Vec::with_capacity(tasks.len());
        for task in std::mem::take(tasks) {
            match self.log.coverage(&[task.key()]).await {
                Ok(coverage) => {
                    found.extend(coverage);
                    tasks.push(task);
                }
                Err(error) => {
                    let error = self.check_log(error.into()).await?;
                    round.fail(&task, error)?;
                }
            }
        }
        Ok(found)
    }

    /// Looks whether the log store is away, when a question to it has failed; only then that is the failure of the round.
    /// The answer about one task may be too large for the store, or take it too long, round after round; that must not
    /// keep other logs from being archived.
    pub(super) async fn check_log(&self, error: SweepError) -> Result<SweepError, SweepError> {
        if !matches!(error, SweepError::Log(_)) {
            return Ok(error);
        }
        // A task that nobody has: the smallest question about both tables.
        let nobody = (OrganizationId(Uuid::nil()), TaskId(Uuid::nil()));
        if self.log.coverage(&[nobody]).await.is_ok() {
            return Ok(error);
        }
        self.log_answers(false);
        Err(error)
    }

    fn log_answers(&self, answers: bool) {
        let mut answering = self.answering.lock().unwrap_or_else(PoisonError::into_inner);
        match (*answering, answers) {
            (_, false) => *answering = Answering::No,
            (Answering::No, true) => *answering = Answering::Since(self.clock.now()),
            (Answering::Always | Answering::Since(_), true) => {}
        }
    }
}
