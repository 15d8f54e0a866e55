//! Rows, parsed into the domain. A row that this version cannot have written is an error that names table and row.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use rust_decimal::Decimal;
use sqlx::Row;
use sqlx::postgres::PgRow;
use time::OffsetDateTime;
use uuid::Uuid;

use super::error::StoreError;
use crate::domain::digest::Digest;
use crate::domain::event::{Actor, Event};
use crate::domain::ids::{OrganizationId, PersonId, ShortId, TaskId};
use crate::domain::money::{Money, Price, Prices, TokenCounts};
use crate::domain::outcome::{Ending, Outcome, OutcomeReason};
use crate::domain::payload::JsonText;
use crate::domain::request::{Request, RequestStatus, Resolution};
use crate::domain::session::Session;
use crate::domain::task::{Facts, Origin, Pinned, Standing, Task};
use crate::domain::time::Timestamp;
use crate::domain::usage::LedgerRow;

/// One row of a table, read column by column.
pub(super) struct Reader<'r> {
    pub table: &'static str,
    pub row: &'r PgRow,
}

impl<'r> Reader<'r> {
    pub fn fault(&self, fault: impl Display) -> StoreError {
        let id = self.row.try_get::<Uuid, _>("id").map(|id| id.to_string()).unwrap_or_default();
        StoreError::ImpossibleRow { table: self.table, row: id, fault: fault.to_string() }
    }

    pub fn get<T>(&self, column: &str) -> Result<T, StoreError>
    where
        T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        self.row.try_get(column).map_err(|fault| self.fault(fault))
    }

    pub fn id<T: From<Uuid>>(&self, column: &str) -> Result<T, StoreError> {
        self.get::<Uuid>(column).map(T::from)
    }

    pub fn id_opt<T: From<Uuid>>(&self, column: &str) -> Result<Option<T>, StoreError> {
        Ok(self.get::<Option<Uuid>>(column)?.map(T::from))
    }

    pub fn parse<T>(&self, column: &str) -> Result<T, StoreError>
    where
        T: FromStr,
        T::Err: Display,
    {
        self.get::<&str>(column)?.parse().map_err(|fault: T::Err| self.fault(format!("{column}: {fault}")))
    }

    pub fn parse_opt<T>(&self, column: &str) -> Result<Option<T>, StoreError>
    where
        T: FromStr,
        T::Err: Display,
    {
        let text = self.get::<Option<&str>>(column)?;
        text.map(str::parse).transpose().map_err(|fault: T::Err| self.fault(format!("{column}: {fault}")))
    }

    pub fn at(&self, column: &str) -> Result<Timestamp, StoreError> {
        Ok(self.get::<OffsetDateTime>(column)?.into())
    }

    pub fn at_opt(&self, column: &str) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.get::<Option<OffsetDateTime>>(column)?.map(Timestamp::from))
    }

    pub fn money(&self, column: &str) -> Result<Money, StoreError> {
        Money::new(self.get(column)?).map_err(|fault| self.fault(format!("{column} {fault}")))
    }

    pub fn money_opt(&self, column: &str) -> Result<Option<Money>, StoreError> {
        let amount = self.get::<Option<Decimal>>(column)?.map(Money::new);
        amount.transpose().map_err(|fault| self.fault(format!("{column} {fault}")))
    }

    pub fn price_opt(&self, column: &str) -> Result<Option<Price>, StoreError> {
        let price = self.get::<Option<Decimal>>(column)?.map(Price::new);
        price.transpose().map_err(|fault| self.fault(format!("{column} {fault}")))
    }

    pub fn count(&self, column: &str) -> Result<u32, StoreError> {
        u32::try_from(self.get::<i32>(column)?).map_err(|_| self.fault(format!("{column} is negative")))
    }

    pub fn count_opt(&self, column: &str) -> Result<Option<u32>, StoreError> {
        let count = self.get::<Option<i32>>(column)?.map(u32::try_from);
        count.transpose().map_err(|_| self.fault(format!("{column} is negative")))
    }

    pub fn digest(&self, column: &str) -> Result<Digest, StoreError> {
        let bytes = self.get::<&[u8]>(column)?;
        bytes.try_into().map(Digest).map_err(|_| self.fault(format!("{column} has not 32 bytes")))
    }

    pub fn person(&self, column: &str) -> Result<PersonId, StoreError> {
        PersonId::parse(self.get(column)?).map_err(|fault| self.fault(format!("{column}: {fault}")))
    }

    pub fn json_opt(&self, column: &str) -> Result<Option<JsonText>, StoreError> {
        Ok(self.get::<Option<&str>>(column)?.map(JsonText::new))
    }

    pub fn digests(&self, column: &str) -> Result<Vec<Digest>, StoreError> {
        let texts = self.get::<Option<Vec<String>>>(column)?.unwrap_or_default();
        let parse =
            |text: &String| Digest::parse(text).ok_or_else(|| self.fault(format!("{column}: {text} is no digest")));
        texts.iter().map(parse).collect()
    }

    pub fn prices(&self) -> Result<Prices, StoreError> {
        Ok(Prices {
            input_cost_per_million: self.price_opt("input_cost_per_million")?,
            output_cost_per_million: self.price_opt("output_cost_per_million")?,
            cache_read_cost_per_million: self.price_opt("cache_read_cost_per_million")?,
            cache_write_cost_per_million: self.price_opt("cache_write_cost_per_million")?,
        })
    }

    pub fn tokens(&self) -> Result<TokenCounts, StoreError> {
        Ok(TokenCounts {
            tokens_in: self.get("tokens_in")?,
            tokens_out: self.get("tokens_out")?,
            cache_read_tokens: self.get("cache_read_tokens")?,
            cache_write_tokens: self.get("cache_write_tokens")?,
        })
    }
}

/// The columns of a task, in the form that [`task`] reads.
pub(super) const TASK_COLUMNS: &str = "organization_id, id, short_number, agent_id, agent_slug, agent_version, \
    prompt_version, service_account_id, project_id, project_slug, title, description, subject, labels::text AS labels, \
    params::text AS params, origin_kind, origin_principal, origin_delivery, origin_agent_id, parent_task_id, \
    parent_short_number, created_by_account, idempotency_key, budget, task_timeout_seconds, max_depth, max_children, \
    depth, created_at, owner, status, status_since, control, phase, furthest_milestone, outcome, outcome_reason, \
    result::text AS result, cost_total, set_aside, tokens_in, tokens_out, cache_read_tokens, cache_write_tokens, \
    unmeasured_reports, unpriced_reports, open_requests, open_sessions, open_children, last_generation, taken_over, \
    last_seq, log_digest, updated_at, closed_at, timeout_at, log_archived_at";

pub(super) fn task(row: &PgRow) -> Result<Task, StoreError> {
    let r = Reader { table: "agent_runtime.tasks", row };
    let labels = serde_json::from_str(r.get("labels")?).map_err(|fault| r.fault(fault))?;
    let pinned = Pinned {
        organization_id: r.id::<OrganizationId>("organization_id")?,
        id: r.id::<TaskId>("id")?,
        short_id: ShortId(r.get("short_number")?),
        agent_id: r.id("agent_id")?,
        agent_slug: r.get("agent_slug")?,
        agent_version: r.get("agent_version")?,
        prompt_version: r.get("prompt_version")?,
        service_account_id: r.id("service_account_id")?,
        project_id: r.id_opt("project_id")?,
        project_slug: r.get("project_slug")?,
        title: r.get("title")?,
        description: r.get("description")?,
        subject: r.get("subject")?,
        labels,
        params: r.json_opt("params")?,
        origin: origin(&r)?,
        created_by_account: r.id_opt("created_by_account")?,
        idempotency_key: r.get("idempotency_key")?,
        budget: r.money_opt("budget")?,
        task_timeout_seconds: r.count_opt("task_timeout_seconds")?,
        max_depth: r.count("max_depth")?,
        max_children: r.count("max_children")?,
        depth: r.count("depth")?,
        created_at: r.at("created_at")?,
    };
    let facts = Facts {
        owner: r.person("owner")?,
        status: r.parse("status")?,
        status_since: r.at("status_since")?,
        control: r.parse("control")?,
        phase: r.get("phase")?,
        furthest_milestone: r.get("furthest_milestone")?,
        ending: ending(&r)?,
        result: r.json_opt("result")?,
        cost_total: r.money("cost_total")?,
        set_aside: r.money("set_aside")?,
        tokens: r.tokens()?,
        unmeasured_reports: r.get("unmeasured_reports")?,
        unpriced_reports: r.get("unpriced_reports")?,
        open_requests: r.count("open_requests")?,
        open_sessions: r.count("open_sessions")?,
        open_children: r.count("open_children")?,
        last_generation: r.count("last_generation")?,
        taken_over: r.get("taken_over")?,
        last_seq: r.get("last_seq")?,
        log_digest: r.digest("log_digest")?,
        updated_at: r.at("updated_at")?,
        closed_at: r.at_opt("closed_at")?,
        timeout_at: r.at_opt("timeout_at")?,
    };
    Ok(Task::restore(Arc::new(pinned), facts, r.at_opt("log_archived_at")?)?)
}

fn ending(r: &Reader<'_>) -> Result<Option<Ending>, StoreError> {
    let reason = r.parse_opt::<OutcomeReason>("outcome_reason")?;
    let ending = r.parse_opt::<Outcome>("outcome")?.map(|outcome| Ending::new(outcome, reason));
    let fault = || r.fault("its reason does not belong to its outcome");
    ending.map(|ending| ending.ok_or_else(fault)).transpose()
}

/// The columns of a standing, in the form that [`standing`] reads.
pub(super) const STANDING_COLUMNS: &str = "t.id, t.short_number, t.status, t.control, t.phase, t.outcome, \
    t.outcome_reason, t.last_seq, t.budget, t.cost_total, t.set_aside, t.unmeasured_reports, t.unpriced_reports, \
    t.open_requests";

pub(super) fn standing(row: &PgRow) -> Result<Standing, StoreError> {
    let r = Reader { table: "agent_runtime.tasks", row };
    Ok(Standing {
        short_id: ShortId(r.get("short_number")?),
        status: r.parse("status")?,
        control: r.parse("control")?,
        phase: r.get("phase")?,
        ending: ending(&r)?,
        last_seq: r.get("last_seq")?,
        budget: r.money_opt("budget")?,
        cost_total: r.money("cost_total")?,
        set_aside: r.money("set_aside")?,
        budget_certain: r.get::<i64>("unmeasured_reports")? == 0 && r.get::<i64>("unpriced_reports")? == 0,
        open_requests: r.count("open_requests")?,
    })
}

fn origin(r: &Reader<'_>) -> Result<Origin, StoreError> {
    let principal: String = r.get("origin_principal")?;
    let missing = |column: &str| r.fault(format!("its origin lacks {column}"));
    Ok(match r.get::<&str>("origin_kind")? {
        "human" => Origin::Human { user: PersonId::parse(&principal).map_err(|fault| r.fault(fault))? },
        "schedule" => Origin::Schedule { scheduled_task: principal },
        "webhook" => Origin::Webhook {
            webhook: principal,
            delivery: r.get::<Option<String>>("origin_delivery")?.ok_or_else(|| missing("origin_delivery"))?,
        },
        "task" => Origin::Task {
            parent_task_id: r.id_opt("parent_task_id")?.ok_or_else(|| missing("parent_task_id"))?,
            parent_short_id: ShortId(
                r.get::<Option<i64>>("parent_short_number")?.ok_or_else(|| missing("parent_short_number"))?,
            )
            .to_string(),
            agent_id: r.id_opt("origin_agent_id")?.ok_or_else(|| missing("origin_agent_id"))?,
        },
        other => return Err(r.fault(format!("unknown origin {other}"))),
    })
}

/// The columns of a session, in the form that [`session`] reads.
pub(super) const SESSION_COLUMNS: &str =
    "id, session_key, harness_instance, generation, opened_at, heartbeat_at, closed_at, close_reason";

pub(super) fn session(row: &PgRow) -> Result<Session, StoreError> {
    let r = Reader { table: "agent_runtime.sessions", row };
    let closed = match (r.at_opt("closed_at")?, r.get::<Option<String>>("close_reason")?) {
        (Some(at), Some(reason)) => Some((at, reason)),
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => return Err(r.fault("closed without a reason, or the other way round")),
    };
    Ok(Session {
        id: r.id("id")?,
        session_key: r.get("session_key")?,
        harness_instance: r.get("harness_instance")?,
        generation: r.count("generation")?,
        opened_at: r.at("opened_at")?,
        heartbeat_at: r.at("heartbeat_at")?,
        closed,
    })
}

/// The columns of a request, in the form that [`request`] reads.
pub(super) const REQUEST_COLUMNS: &str = "id, session_id, kind, status, title, why, options, artifacts::text AS artifacts, \
    artifact_digests, opened_at, expires_at, request_key, superseded_by, resolved_by, resolved_at, answer, choice, \
    constraints::text AS constraints, resolution_digests, resolution_channel";

pub(super) fn request(row: &PgRow) -> Result<Request, StoreError> {
    let r = Reader { table: "agent_runtime.requests", row };
    let status = r.parse::<RequestStatus>("status")?;
    let resolution = match status {
        RequestStatus::Answered | RequestStatus::Approved | RequestStatus::Rejected => Some(Resolution {
            answer: r.get("answer")?,
            choice: r.get("choice")?,
            constraints: r.json_opt("constraints")?,
            artifact_digests: r.digests("resolution_digests")?,
            channel: r.parse_opt("resolution_channel")?,
        }),
        RequestStatus::Open | RequestStatus::Expired | RequestStatus::Void => None,
    };
    Ok(Request {
        id: r.id("id")?,
        session_id: r.id_opt("session_id")?,
        kind: r.parse("kind")?,
        status,
        title: r.get("title")?,
        why: r.get("why")?,
        options: r.get("options")?,
        artifacts: serde_json::from_str(r.get("artifacts")?).map_err(|fault| r.fault(fault))?,
        artifact_digests: r.digests("artifact_digests")?,
        expires_at: r.at("expires_at")?,
        opened_at: r.at("opened_at")?,
        request_key: r.get("request_key")?,
        resolved_by: r.get("resolved_by")?,
        resolved_at: r.at_opt("resolved_at")?,
        resolution,
        superseded_by: r.id_opt("superseded_by")?,
    })
}

/// The columns of an event, in the form that [`event`] reads.
pub(super) const EVENT_COLUMNS: &str = "event_id, seq, type, schema_version, actor_kind, actor_id, channel, session_id, \
    at, recorded_at, payload::text AS payload, redacted, digest";

pub(super) fn event(row: &PgRow) -> Result<Event, StoreError> {
    let r = Reader { table: "agent_runtime.events", row };
    Ok(Event {
        event_id: r.id("event_id")?,
        seq: r.get("seq")?,
        event_type: r.get::<String>("type")?.into(),
        schema_version: r.get("schema_version")?,
        actor: Actor { kind: r.parse("actor_kind")?, id: r.get("actor_id")?, channel: r.parse_opt("channel")? },
        session_id: r.id_opt("session_id")?,
        at: r.at("at")?,
        recorded_at: r.at("recorded_at")?,
        payload: r.get("payload")?,
        redacted: r.get("redacted")?,
        digest: r.digest("digest")?,
    })
}

/// The columns of a ledger row, in the form that [`ledger`] reads.
pub(super) const LEDGER_COLUMNS: &str = "id, idempotency_key, session_id, model_id, model_ref, tokens_in, tokens_out, \
    cache_read_tokens, cache_write_tokens, input_cost_per_million, output_cost_per_million, \
    cache_read_cost_per_million, cache_write_cost_per_million, cost, measured, corrects, unmeasured_delta, \
    unpriced_delta, seq, recorded_at";

pub(super) fn ledger(row: &PgRow) -> Result<LedgerRow, StoreError> {
    let r = Reader { table: "agent_runtime.budget_ledger", row };
    Ok(LedgerRow {
        id: r.id("id")?,
        idempotency_key: r.get("idempotency_key")?,
        session_id: r.id_opt("session_id")?,
        model_id: r.get("model_id")?,
        model_ref: r.id_opt("model_ref")?,
        tokens: r.tokens()?,
        prices: r.prices()?,
        cost: r.money_opt("cost")?,
        measured: r.get("measured")?,
        corrects: r.id_opt("corrects")?,
        unmeasured_delta: r.get("unmeasured_delta")?,
        unpriced_delta: r.get("unpriced_delta")?,
        seq: r.get("seq")?,
        recorded_at: r.at("recorded_at")?,
    })
}
