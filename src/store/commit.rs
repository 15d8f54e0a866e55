//! The one way in: a change and its events are written together, or not at all.

use std::sync::Arc;

use serde_json::{Value, json};
use sqlx::postgres::PgArguments;
use sqlx::query::QueryScalar;
use sqlx::{PgConnection, Postgres};
use time::OffsetDateTime;
use uuid::Uuid;

use super::Store;
use super::error::CommitError;
use super::statements;
use crate::domain::artifact::{self, ArtifactRef};
use crate::domain::change::{BodyHash, Change};
use crate::domain::event::{Channel, Event};
use crate::domain::ids::{AccountId, OrganizationId, RequestId, SessionId, TaskId};
use crate::domain::payload::JsonText;
use crate::domain::request::Request;
use crate::domain::task::{Facts, Task};
use crate::domain::time::Timestamp;
use crate::domain::usage::LedgerRow;

pub(super) type Statement<'q> = QueryScalar<'q, Postgres, i64, PgArguments>;

impl Store {
    /// Writes `change`, whose account is named for the ledger's key. The version that it was decided on is compared
    /// in the statement that writes, so a conflict means that somebody was first: read again, decide again.
    pub async fn commit(&self, change: &Arc<Change>, account: Option<AccountId>) -> Result<(), CommitError> {
        let guards = change.guards();
        // What refers to artifacts writes more than one statement.
        let refs = artifact::refs(change.events());
        if refs.is_empty() && guards.concurrency.is_none() && guards.silent.is_none() && change.project().is_none() {
            let written = if is_append(change) || (is_report(change) && account.is_some()) {
                self.write_grouped(change, account).await?
            } else {
                self.write_alone(change, account).await?
            };
            return if written { Ok(()) } else { Box::pin(self.explain(change)).await };
        }
        // Rarer, and what it holds while it waits would be room in every append.
        Box::pin(self.commit_guarded(change, account, &refs)).await
    }

    async fn commit_guarded(
        &self,
        change: &Change,
        account: Option<AccountId>,
        refs: &[ArtifactRef],
    ) -> Result<(), CommitError> {
        let mut lease = self.transaction().await?;
        self.hold_guards(&mut lease, change).await?;
        // A lease that is dropped rolls back.
        if !self.write_with(&mut lease, change, account, refs).await? {
            drop(lease);
            return self.explain(change).await;
        }
        if let Some(edit) = change.project() {
            self.edit_project(&mut lease, change.next().task(), edit).await?;
        }
        lease.done().await?;
        Ok(())
    }

    /// Holds what must be so when the change is written, to the end of the transaction.
    pub(super) async fn hold_guards(&self, db: &mut PgConnection, change: &Change) -> Result<(), CommitError> {
        let guards = change.guards();
        if let Some(limit) = guards.concurrency {
            self.hold_concurrency(db, change.next().task(), limit).await?;
        }
        if let Some((sessions, since)) = &guards.silent {
            self.look_again(db, change, sessions, *since).await?;
        }
        Ok(())
    }

    /// Writes the change if its task is as it was, in the caller's transaction; answers whether it was.
    pub(super) async fn write(
        &self,
        db: &mut PgConnection,
        change: &Change,
        account: Option<AccountId>,
    ) -> Result<bool, CommitError> {
        self.write_with(db, change, account, &artifact::refs(change.events())).await
    }

    /// The same, with the artifacts that its events refer to.
    async fn write_with(
        &self,
        db: &mut PgConnection,
        change: &Change,
        account: Option<AccountId>,
        refs: &[ArtifactRef],
    ) -> Result<bool, CommitError> {
        let written = self.write_plain(db, change, account).await?;
        if written && !refs.is_empty() {
            let pinned = change.next().task().pinned();
            self.refer(db, (pinned.organization_id, pinned.id), refs, &change.guards().stored).await?;
        }
        Ok(written)
    }

    /// The one statement that writes the change itself.
    pub(super) async fn write_plain(
        &self,
        db: &mut PgConnection,
        change: &Change,
        account: Option<AccountId>,
    ) -> Result<bool, sqlx::Error> {
        let query = match (change.ledger(), account) {
            _ if is_append(change) => append(change),
            (Some(row), Some(account)) if is_report(change) => report(change, row, account),
            _ => general(change, account, self.session_timeout),
        };
        Ok(query.persistent(self.named()).fetch_one(db).await? == 1)
    }

    /// Tells a request that expired by the database's clock from a conflict. Where a closing task was to make it void, it
    /// is one: read again, it is found to be over.
    pub(super) async fn explain(&self, change: &Change) -> Result<(), CommitError> {
        let requests: Vec<Uuid> = change.guards().unexpired.iter().map(|id| id.0).collect();
        if requests.is_empty() || change.next().task().facts().ending.is_some() {
            return Err(CommitError::Conflict);
        }
        let task = change.next().task().pinned();
        let mut lease = self.lease().await?;
        let expired: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM agent_runtime.requests WHERE organization_id = $1 AND task_id = $2
                AND id = ANY ($3) AND status = 'open' AND expires_at <= clock_timestamp())",
        )
        .bind(task.organization_id.0)
        .bind(task.id.0)
        .bind(requests)
        .persistent(self.named())
        .fetch_one(&mut *lease)
        .await?;
        lease.done().await?;
        Err(if expired { CommitError::Expired } else { CommitError::Conflict })
    }

    /// Counts the agent's other working tasks under a lock per agent, which ends with the transaction.
    async fn hold_concurrency(&self, db: &mut PgConnection, task: &Task, limit: u32) -> Result<(), CommitError> {
        let pinned = task.pinned();
        sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1::text || $2::text, 0))")
            .bind(pinned.organization_id.0)
            .bind(pinned.agent_id.0)
            .persistent(self.named())
            .execute(&mut *db)
            .await?;
        let working: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM agent_runtime.tasks
             WHERE organization_id = $1 AND agent_id = $2 AND open_sessions > 0 AND id <> $3",
        )
        .bind(pinned.organization_id.0)
        .bind(pinned.agent_id.0)
        .bind(pinned.id.0)
        .persistent(self.named())
        .fetch_one(db)
        .await?;
        if working >= i64::from(limit) { Err(CommitError::Concurrency) } else { Ok(()) }
    }

    /// The last look before sessions are lost: task first, then sessions, as every path locks them.
    async fn look_again(
        &self,
        db: &mut PgConnection,
        change: &Change,
        sessions: &[SessionId],
        since: Timestamp,
    ) -> Result<(), CommitError> {
        let pinned = change.next().task().pinned();
        let (organization, task) = (pinned.organization_id.0, pinned.id.0);
        let current: Option<i64> = sqlx::query_scalar(
            "SELECT last_seq FROM agent_runtime.tasks WHERE organization_id = $1 AND id = $2 FOR NO KEY UPDATE",
        )
        .bind(organization)
        .bind(task)
        .persistent(self.named())
        .fetch_optional(&mut *db)
        .await?;
        if current != Some(change.expected_seq()) {
            return Err(CommitError::Conflict);
        }
        let ids: Vec<Uuid> = sessions.iter().map(|id| id.0).collect();
        let silent: Vec<Uuid> = sqlx::query_scalar(
            "SELECT id FROM agent_runtime.sessions
             WHERE organization_id = $1 AND task_id = $2 AND id = ANY ($3) AND closed_at IS NULL
                AND heartbeat_at <= $4 FOR UPDATE",
        )
        .bind(organization)
        .bind(task)
        .bind(&ids)
        .bind(OffsetDateTime::from(since))
        .persistent(self.named())
        .fetch_all(db)
        .await?;
        if silent.len() == ids.len() { Ok(()) } else { Err(CommitError::Alive) }
    }
}

/// Whether it changes nothing but the log and what the task counts.
fn is_plain(change: &Change) -> bool {
    let only_log = change.touched_sessions().is_empty() && change.touched_requests().is_empty();
    only_log && change.guards().unexpired.is_empty()
}

/// Whether it adds nothing but what a harness appends.
fn is_append(change: &Change) -> bool {
    is_plain(change) && change.ledger().is_none() && change.events().iter().all(is_harness_event)
}

/// Whether it adds nothing but a report.
fn is_report(change: &Change) -> bool {
    is_plain(change) && change.ledger().is_some() && change.events().len() == 1
}

fn is_harness_event(event: &Event) -> bool {
    let known = event.event_type.parse::<crate::domain::event::EventType>();
    known.is_ok_and(crate::domain::event::EventType::is_written_by_harness)
}

/// The pointers of what an event had redacted, as JSON; nothing for none.
pub(super) fn redacted(event: &Event) -> Option<String> {
    (!event.redacted.is_empty()).then(|| json!(event.redacted).to_string())
}

/// Binds `$1` to `$17`, which every statement shares.
pub(super) fn begin<'q>(
    sql: &'static str,
    organization: OrganizationId,
    task: TaskId,
    expected_seq: i64,
    events: &'q [Event],
    alive: Option<SessionId>,
) -> Statement<'q> {
    let recorded_at = events.first().map_or(Timestamp::EPOCH, |event| event.recorded_at);
    let each = |f: fn(&Event) -> &str| events.iter().map(f).collect::<Vec<_>>();
    sqlx::query_scalar(sql)
        .bind(organization.0)
        .bind(task.0)
        .bind(expected_seq)
        .bind(OffsetDateTime::from(recorded_at))
        .bind(events.iter().map(|event| event.seq).collect::<Vec<_>>())
        .bind(events.iter().map(|event| event.event_id.0).collect::<Vec<_>>())
        .bind(each(|event| &event.event_type))
        .bind(events.iter().map(|event| event.schema_version).collect::<Vec<_>>())
        .bind(each(|event| event.actor.kind.as_str()))
        .bind(each(|event| &event.actor.id))
        .bind(events.iter().map(|event| event.actor.channel.map(Channel::as_str)).collect::<Vec<_>>())
        .bind(events.iter().map(|event| event.session_id.map(|id| id.0)).collect::<Vec<_>>())
        .bind(events.iter().map(|event| OffsetDateTime::from(event.at)).collect::<Vec<_>>())
        .bind(each(|event| &event.payload))
        .bind(events.iter().map(redacted).collect::<Vec<_>>())
        .bind(events.iter().map(|event| event.digest.0.as_slice()).collect::<Vec<_>>())
        .bind(alive.map(|id| id.0))
}

fn of<'q>(sql: &'static str, change: &'q Change) -> Statement<'q> {
    let pinned = change.next().task().pinned();
    begin(sql, pinned.organization_id, pinned.id, change.expected_seq(), change.events(), change.alive())
}

fn append(change: &Change) -> Statement<'_> {
    let facts = change.next().task().facts();
    of(&statements::APPEND, change)
        .bind(facts.last_seq)
        .bind(facts.log_digest.0.to_vec())
        .bind(facts.phase.clone())
        .bind(facts.furthest_milestone.clone())
}

fn report<'q>(change: &'q Change, row: &LedgerRow, account: AccountId) -> Statement<'q> {
    let facts = change.next().task().facts();
    let price = |price: Option<crate::domain::money::Price>| price.map(crate::domain::money::Price::decimal);
    of(&statements::REPORT, change)
        .bind(facts.last_seq)
        .bind(facts.log_digest.0.to_vec())
        .bind(facts.cost_total.decimal())
        .bind(facts.tokens.tokens_in)
        .bind(facts.tokens.tokens_out)
        .bind(facts.tokens.cache_read_tokens)
        .bind(facts.tokens.cache_write_tokens)
        .bind(facts.unmeasured_reports)
        .bind(facts.unpriced_reports)
        .bind(true)
        .bind(row.id.0)
        .bind(account.0)
        .bind(row.idempotency_key.clone())
        .bind(change.body_hash().to_vec())
        .bind(row.session_id.map(|id| id.0))
        .bind(row.model_id.clone())
        .bind(row.model_ref.map(|id| id.0))
        .bind(row.tokens.tokens_in)
        .bind(row.tokens.tokens_out)
        .bind(row.tokens.cache_read_tokens)
        .bind(row.tokens.cache_write_tokens)
        .bind(price(row.prices.input_cost_per_million))
        .bind(price(row.prices.output_cost_per_million))
        .bind(price(row.prices.cache_read_cost_per_million))
        .bind(price(row.prices.cache_write_cost_per_million))
        .bind(row.cost.map(crate::domain::money::Money::decimal))
        .bind(row.measured)
        .bind(row.corrects.map(|id| id.0))
        .bind(row.unmeasured_delta)
        .bind(row.unpriced_delta)
        .bind(row.seq)
}

fn general(change: &Change, account: Option<AccountId>, session_timeout: std::time::Duration) -> Statement<'_> {
    let next = change.next();
    let (mut opened, mut closed) = (Vec::new(), Vec::new());
    for session in next.sessions().iter().filter(|session| change.touched_sessions().contains(&session.id)) {
        match &session.closed {
            Some((_, reason)) => closed.push(json!({"id": session.id, "reason": reason})),
            None => opened.push(json!({
                "id": session.id,
                "session_key": session.session_key,
                "harness_instance": session.harness_instance,
                "generation": session.generation,
                "request_hash": bytea(&change.body_hash()),
                "timeout_us": i64::try_from(session_timeout.as_micros()).unwrap_or(i64::MAX),
            })),
        }
    }
    let (mut asked, mut settled) = (Vec::new(), Vec::new());
    for request in next.requests().iter().filter(|request| change.touched_requests().contains(&request.id)) {
        if request.is_open() {
            asked.push(asked_row(request, change.body_hash()));
        } else {
            settled.push(settled_row(request));
        }
    }
    let ledger: Vec<_> = change
        .ledger()
        .zip(account)
        .map(|(row, account)| ledger_row(row, account, change.body_hash()))
        .into_iter()
        .collect();
    of(&statements::CHANGE, change)
        .bind(facts_row(next.task().facts()).to_string())
        .bind(text(opened))
        .bind(text(closed))
        .bind(text(asked))
        .bind(text(settled))
        .bind(text(ledger))
        .bind(change.guards().unexpired.iter().map(|id: &RequestId| id.0).collect::<Vec<Uuid>>())
}

fn text(rows: Vec<Value>) -> String {
    Value::Array(rows).to_string()
}

/// Postgres reads `\x…` as bytes.
pub(super) fn bytea(bytes: &[u8]) -> String {
    format!("\\x{}", hex::encode(bytes))
}

/// JSON inside JSON, verbatim: it becomes the text of a `json` column.
pub(super) fn raw(text: Option<&JsonText>) -> Value {
    // A string: the statement casts it, so that not a digit of it passes through another JSON writer.
    text.map_or(Value::Null, |text| Value::String(text.as_str().to_owned()))
}

pub(super) fn facts_row(facts: &Facts) -> Value {
    json!({
        "owner": facts.owner,
        "status": facts.status,
        "status_since": facts.status_since,
        "control": facts.control,
        "phase": facts.phase,
        "furthest_milestone": facts.furthest_milestone,
        "outcome": facts.ending.map(crate::domain::outcome::Ending::outcome),
        "outcome_reason": facts.ending.and_then(crate::domain::outcome::Ending::reason),
        "result": raw(facts.result.as_ref()),
        "cost_total": facts.cost_total,
        "set_aside": facts.set_aside,
        "tokens_in": facts.tokens.tokens_in,
        "tokens_out": facts.tokens.tokens_out,
        "cache_read_tokens": facts.tokens.cache_read_tokens,
        "cache_write_tokens": facts.tokens.cache_write_tokens,
        "unmeasured_reports": facts.unmeasured_reports,
        "unpriced_reports": facts.unpriced_reports,
        "open_requests": facts.open_requests,
        "open_sessions": facts.open_sessions,
        "open_children": facts.open_children,
        "last_generation": facts.last_generation,
        "taken_over": facts.taken_over,
        "last_seq": facts.last_seq,
        "log_digest": bytea(&facts.log_digest.0),
        "closed_at": facts.closed_at,
        "timeout_at": facts.timeout_at,
    })
}

fn asked_row(request: &Request, body_hash: BodyHash) -> Value {
    json!({
        "id": request.id,
        "session_id": request.session_id,
        "kind": request.kind,
        "title": request.title,
        "why": request.why,
        "options": request.options,
        "artifacts": request.artifacts,
        "artifact_digests": request.artifact_digests,
        "expires_at": request.expires_at,
        "request_key": request.request_key,
        "request_hash": bytea(&body_hash),
    })
}

fn settled_row(request: &Request) -> Value {
    let resolution = request.resolution.as_ref();
    json!({
        "id": request.id,
        "status": request.status,
        "resolved_by": request.resolved_by,
        "answer": resolution.and_then(|resolution| resolution.answer.as_deref()),
        "choice": resolution.and_then(|resolution| resolution.choice.as_deref()),
        "constraints": raw(resolution.and_then(|resolution| resolution.constraints.as_ref())),
        "superseded_by": request.superseded_by,
        "resolution_digests": resolution.map(|resolution| &resolution.artifact_digests),
        "resolution_channel": resolution.and_then(|resolution| resolution.channel),
    })
}

fn ledger_row(row: &LedgerRow, account: AccountId, body_hash: BodyHash) -> Value {
    json!({
        "id": row.id,
        "account_id": account,
        "idempotency_key": row.idempotency_key,
        "request_hash": bytea(&body_hash),
        "session_id": row.session_id,
        "model_id": row.model_id,
        "model_ref": row.model_ref,
        "tokens_in": row.tokens.tokens_in,
        "tokens_out": row.tokens.tokens_out,
        "cache_read_tokens": row.tokens.cache_read_tokens,
        "cache_write_tokens": row.tokens.cache_write_tokens,
        "input_cost_per_million": row.prices.input_cost_per_million,
        "output_cost_per_million": row.prices.output_cost_per_million,
        "cache_read_cost_per_million": row.prices.cache_read_cost_per_million,
        "cache_write_cost_per_million": row.prices.cache_write_cost_per_million,
        "cost": row.cost,
        "measured": row.measured,
        "corrects": row.corrects,
        "unmeasured_delta": row.unmeasured_delta,
        "unpriced_delta": row.unpriced_delta,
        "seq": row.seq,
    })
}
