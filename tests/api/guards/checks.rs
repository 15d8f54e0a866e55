//! The CHECKs, against the rules of the domain.

use mandate::domain::outcome::{Ending, Outcome, OutcomeReason};
use mandate::domain::status::{Control, Status, status};
use sqlx::{Connection as _, PgConnection};

use super::rows::Rows;

/// Sets of facts of the open task; `Ok` when the table takes them.
struct Facts<'a> {
    outcome: Option<&'a str>,
    reason: Option<&'a str>,
    status: &'a str,
    control: &'a str,
    open_requests: i32,
    open_sessions: i32,
}

impl Facts<'_> {
    async fn fit(&self, db: &mut PgConnection) -> Result<(), String> {
        let mut savepoint = db.begin().await.unwrap();
        let done = sqlx::query(
            "UPDATE agent_runtime.tasks SET outcome = $1, outcome_reason = $2, status = $3, control = $4,
                open_requests = $5, open_sessions = $6, closed_at = CASE WHEN $1 IS NOT NULL THEN now() END,
                last_seq = last_seq + 1
             WHERE short_number = 1",
        )
        .bind(self.outcome)
        .bind(self.reason)
        .bind(self.status)
        .bind(self.control)
        .bind(self.open_requests)
        .bind(self.open_sessions)
        .execute(&mut *savepoint)
        .await;
        savepoint.rollback().await.unwrap();
        match done {
            Ok(done) => {
                assert_eq!(done.rows_affected(), 1);
                Ok(())
            }
            Err(sqlx::Error::Database(fault)) => {
                assert_eq!(fault.code().as_deref(), Some("23514"), "{fault}");
                Err(fault.constraint().unwrap().to_owned())
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn the_table_takes_exactly_the_pairs_of_outcome_and_reason_that_the_domain_takes() {
    let rows = Rows::new().await;
    let mut db = rows.db.acquire().await.unwrap();
    let mut db = db.begin().await.unwrap();
    let outcomes: Vec<Option<Outcome>> = Outcome::ALL.iter().copied().map(Some).chain([None]).collect();
    let reasons: Vec<Option<OutcomeReason>> = OutcomeReason::ALL.iter().copied().map(Some).chain([None]).collect();
    let mut taken = 0;
    for outcome in &outcomes {
        for reason in &reasons {
            let fits = match outcome {
                Some(outcome) => Ending::new(*outcome, *reason).is_some(),
                None => reason.is_none(),
            };
            let facts = Facts {
                outcome: outcome.map(Outcome::as_str),
                reason: reason.map(OutcomeReason::as_str),
                status: if outcome.is_some() { "closed" } else { "queued" },
                control: "run",
                open_requests: 0,
                open_sessions: 0,
            };
            let expected = if fits { Ok(()) } else { Err("outcome_and_reason_agree".to_owned()) };
            assert_eq!(facts.fit(&mut db).await, expected, "{outcome:?} {reason:?}");
            taken += usize::from(fits);
        }
    }
    assert_eq!(taken, OutcomeReason::ALL.len() + 2, "each reason with its outcome, done_acted, and none at all");
}

#[tokio::test]
async fn the_table_takes_exactly_the_status_that_the_domain_derives() {
    let rows = Rows::new().await;
    let mut db = rows.db.acquire().await.unwrap();
    let mut db = db.begin().await.unwrap();
    for outcome in [None, Some(Outcome::DoneActed)] {
        for control in Control::ALL {
            for (open_requests, open_sessions) in [(0, 0), (0, 1), (1, 0), (2, 3)] {
                let derived = status(outcome, *control, open_requests, open_sessions);
                for status in Status::ALL {
                    let facts = Facts {
                        outcome: outcome.map(Outcome::as_str),
                        reason: None,
                        status: status.as_str(),
                        control: control.as_str(),
                        open_requests: i32::try_from(open_requests).unwrap(),
                        open_sessions: i32::try_from(open_sessions).unwrap(),
                    };
                    let something_open = outcome.is_some() && open_requests + open_sessions > 0;
                    let fits = facts.fit(&mut db).await;
                    if *status == derived && !something_open {
                        assert_eq!(fits, Ok(()), "{outcome:?} {control} {open_requests} {open_sessions} {status}");
                    } else if something_open {
                        let refused = fits.unwrap_err();
                        let known = ["a_closed_task_has_nothing_open", "status_follows_from_the_facts"];
                        assert!(known.contains(&refused.as_str()), "{refused}");
                    } else {
                        assert_eq!(fits, Err("status_follows_from_the_facts".to_owned()), "{derived}, not {status}");
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn a_task_contradicts_itself_nowhere() {
    let rows = Rows::new().await;
    let tasks = "agent_runtime.tasks";
    for (set, check) in [
        ("control = 'stop'", "tasks_control_check"),
        ("closed_at = now()", "closed_exactly_with_an_outcome"),
        ("outcome = 'done_acted', status = 'closed', control = 'run'", "closed_exactly_with_an_outcome"),
        ("outcome = 'done', outcome_reason = NULL, closed_at = now(), status = 'closed'", "outcome_and_reason_agree"),
        ("log_archived_at = now()", "only_closed_tasks_are_archived"),
        ("set_aside = -0.000000000001", "tasks_set_aside_check"),
        ("open_requests = -1", "tasks_open_requests_check"),
        ("open_sessions = -1", "tasks_open_sessions_check"),
        ("open_children = -1", "tasks_open_children_check"),
        ("last_generation = -1", "tasks_last_generation_check"),
        ("unmeasured_reports = -1", "tasks_unmeasured_reports_check"),
        ("unpriced_reports = -1", "tasks_unpriced_reports_check"),
        ("log_digest = '\\x00'", "tasks_log_digest_check"),
    ] {
        // Everything else of the row agrees, so that only this CHECK can refuse.
        let quiet = if set.starts_with("open_") { "control = 'pause', status = 'paused'" } else { "dirty = true" };
        let closing = if set.starts_with("outcome") { "open_sessions = 0, open_requests = 0" } else { "dirty = dirty" };
        let more = if quiet == "dirty = true" { closing } else { quiet };
        rows.breaks(&format!("UPDATE {tasks} SET {set}, last_seq = last_seq + 1, {more} WHERE id = :open"), check)
            .await;
    }
    for (overrides, check) in [
        (&[("short_number", "0")][..], "tasks_short_number_check"),
        (&[("origin_kind", "'email'")], "tasks_origin_kind_check"),
        (&[("origin_kind", "'task'")], "a_task_origin_has_a_parent"),
        (&[("parent_task_id", "id")], "a_task_origin_has_a_parent"),
        (&[("budget", "-1")], "tasks_budget_check"),
        (&[("depth", "-1")], "tasks_depth_check"),
        (&[("last_seq", "0")], "tasks_last_seq_check"),
        (&[("request_hash", "'\\x00'")], "tasks_request_hash_check"),
    ] {
        let fresh = [("id", "gen_random_uuid()"), ("short_number", "99"), ("idempotency_key", "NULL")];
        let fresh = fresh.into_iter().filter(|(name, _)| overrides.iter().all(|(column, _)| column != name));
        let all: Vec<_> = overrides.iter().copied().chain(fresh).collect();
        rows.breaks(&rows.copy(tasks, "id = :open", &all).await, check).await;
    }
}

#[tokio::test]
async fn sessions_requests_events_and_the_ledger_contradict_themselves_nowhere() {
    let rows = Rows::new().await;
    let (sessions, requests) = ("agent_runtime.sessions", "agent_runtime.requests");
    for (statement, check) in [
        (format!("UPDATE {sessions} SET closed_at = now() WHERE closed_at IS NULL"), "closed_exactly_with_a_reason"),
        (format!("UPDATE {sessions} SET generation = 0 WHERE closed_at IS NULL"), "sessions_generation_check"),
        (
            format!("UPDATE {requests} SET status = 'answered' WHERE status = 'open' AND kind = 'feedback'"),
            "settled_exactly_with_a_time",
        ),
        (format!("UPDATE {requests} SET resolved_at = now() WHERE status = 'open'"), "settled_exactly_with_a_time"),
        (format!("UPDATE {requests} SET kind = 'wish' WHERE status = 'open'"), "requests_kind_check"),
        (
            format!("UPDATE {requests} SET status = 'gone', resolved_at = now() WHERE kind = 'approval'"),
            "requests_status_check",
        ),
        (
            format!("UPDATE {requests} SET status = 'answered', resolved_at = now() WHERE kind = 'approval'"),
            "only_feedback_is_answered",
        ),
        (
            format!(
                "UPDATE {requests} SET status = 'approved', resolved_at = now() WHERE kind = 'feedback' AND status = 'open'"
            ),
            "only_approvals_are_judged",
        ),
        (
            format!("UPDATE {requests} SET artifact_digests = '{{}}' WHERE kind = 'approval'"),
            "an_approval_binds_digests",
        ),
    ] {
        rows.breaks(&statement, check).await;
    }
    for (table, overrides, check) in [
        ("events", &[("seq", "0")][..], "events_seq_check"),
        ("events", &[("schema_version", "0")], "events_schema_version_check"),
        ("events", &[("actor_kind", "'robot'")], "events_actor_kind_check"),
        ("events", &[("channel", "'fax'")], "events_channel_check"),
        ("events", &[("digest", "'\\x00'")], "events_digest_check"),
        ("budget_ledger", &[("measured", "false")], "an_unmeasured_report_has_no_cost"),
        ("budget_ledger", &[("unmeasured_delta", "2::smallint")], "budget_ledger_unmeasured_delta_check"),
        ("budget_ledger", &[("unpriced_delta", "-2::smallint")], "budget_ledger_unpriced_delta_check"),
        ("budget_ledger", &[("request_hash", "'\\x00'")], "budget_ledger_request_hash_check"),
    ] {
        rows.breaks(&rows.copy(&format!("agent_runtime.{table}"), "task_id = :open", overrides).await, check).await;
    }
    let itself = "INSERT INTO agent_runtime.task_dependencies VALUES (:org, :open, :open, 'human', 'ada', now())";
    rows.breaks(itself, "no_task_requires_itself").await;
}

#[tokio::test]
async fn keys_are_unique_within_their_organization() {
    let rows = Rows::new().await;
    let new = ("id", "gen_random_uuid()");
    for (table, of, overrides, constraint) in [
        ("tasks", "id = :closed", &[new, ("short_number", "99")][..], "tasks_creation_key"),
        ("tasks", "id = :open", &[new], "tasks_organization_id_short_number_key"),
        (
            "sessions",
            "task_id = :open",
            &[new, ("generation", "99")],
            "sessions_organization_id_task_id_session_key_key",
        ),
        (
            "sessions",
            "task_id = :open",
            &[new, ("session_key", "'x'")],
            "sessions_organization_id_task_id_generation_key",
        ),
        ("requests", "request_key = 'k'", &[new], "requests_open_key"),
        ("budget_ledger", "task_id = :open", &[new], "budget_ledger_key"),
        ("events", "task_id = :open", &[("event_id", "gen_random_uuid()")], "events_pkey"),
        ("events", "task_id = :open AND seq = 2", &[("seq", "1")], "events_pkey"),
    ] {
        let statement = rows.copy(&format!("agent_runtime.{table}"), of, overrides).await;
        let refused = rows.attempt(&[&statement]).await.unwrap_err();
        assert_eq!(refused.code, "23505", "{statement}: {refused:?}");
        assert!(refused.message.contains(&format!("\"{constraint}\"")), "{refused:?}");
    }
    let elsewhere = [("organization_id", "gen_random_uuid()")];
    assert_eq!(rows.attempt(&[&rows.copy("agent_runtime.tasks", "id = :open", &elsewhere).await]).await, Ok(1));
}

#[tokio::test]
async fn nothing_refers_to_a_task_of_another_organization() {
    let rows = Rows::new().await;
    for table in ["sessions", "requests"] {
        let statement = rows
            .copy(&format!("agent_runtime.{table}"), "task_id = :open", &[("organization_id", "gen_random_uuid()")])
            .await;
        // The foreign key is checked at the end of the statement.
        assert_eq!(rows.attempt(&[&statement]).await.unwrap_err().code, "23503", "{table}");
    }
    let child = [
        ("organization_id", "gen_random_uuid()"),
        ("origin_kind", "'task'"),
        ("parent_task_id", "id"),
        ("id", "gen_random_uuid()"),
    ];
    let statement = rows.copy("agent_runtime.tasks", "id = :open", &child).await;
    assert_eq!(rows.attempt(&[&statement]).await.unwrap_err().code, "23503");
}
