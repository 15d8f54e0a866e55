//! Usage reports.

use super::caller::Located;
use super::{Answered, Call, Done, Failed, Order, Service, ServiceError};
use crate::domain::command::{Command, Correction, NewReport};
use crate::domain::ids::{AccountId, ReportId, SessionId};
use crate::domain::money::TokenCounts;
use crate::domain::refusal::Checked;
use crate::domain::task::Task;
use crate::domain::usage::LedgerRow;
use crate::store::Want;

/// A report as a route reads it.
#[derive(Debug, Clone)]
pub struct ReportBody {
    /// The model as the harness names it.
    pub model_id: String,
    /// The counts; absent when all four are.
    pub counts: Option<TokenCounts>,
    /// The row to correct.
    pub corrects: Option<ReportId>,
}

impl Service {
    /// Prices a report and adds it to the ledger; a key that was used answers the first row, whatever the body.
    pub async fn report(
        &self,
        call: &Call,
        located: &Located,
        account: AccountId,
        key: Option<String>,
        session: Checked<Option<SessionId>>,
        body: Checked<ReportBody>,
    ) -> Result<Answered<(LedgerRow, Task)>, ServiceError> {
        let organization = call.caller.organization;
        let report = match (&key, body) {
            (_, Err(refusal)) => Err(refusal),
            (None, Ok(_)) => Err(crate::domain::refusal::Refusal::invalid("/idempotency_key", "is required")),
            (Some(key), Ok(body)) => {
                let now = self.clock.now();
                let model = self.directory.model(organization, body.model_id.clone(), now).await?;
                Ok(Box::new(NewReport {
                    idempotency_key: key.clone(),
                    account_id: account,
                    model_id: body.model_id,
                    model,
                    counts: body.counts,
                    // The chain is read when the command is decided.
                    corrects: body.corrects.map(|original| Correction { original, chain: Vec::new() }),
                }))
            }
        };
        let named = session.clone().ok().flatten();
        let order = Order {
            want: Want { session: named, ..Want::default() },
            hot: true,
            account: Some(account),
            ..Order::of(call, located.id)
        };
        let failed = match self.carry_out(order, &Command::Report { session, report }).await {
            Ok(Done::Changed(change)) => {
                let row = change.ledger().cloned();
                let row = row.ok_or_else(|| ServiceError::Internal("a report without its row".to_owned()))?;
                return Ok(Answered::first((row, change.next().task().clone())));
            }
            Ok(Done::Unchanged(_)) => {
                return Err(ServiceError::Internal("a report that changed nothing".to_owned()));
            }
            Err(failed @ (Failed::DuplicateKey | Failed::Error(ServiceError::Refused(_)))) => failed,
            Err(failed) => return Err(failed.into()),
        };
        // A key that was used is answered before any state.
        let Some(key) = key else { return Err(failed.into()) };
        match self.store.reported_before(organization, account, located.id, &key).await? {
            None => Err(failed.into()),
            Some(first) => {
                self.lives(located, named).await?;
                let task = self.snapshot(located).await?.task().clone();
                Ok(Answered::repeat((first.row, task), first.body_hash, call.body_hash))
            }
        }
    }
}
