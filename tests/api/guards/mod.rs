//! What the database itself refuses, whoever asks. Statements run in transactions that are rolled back.

mod checks;
mod rows;

use std::collections::BTreeSet;

use rows::Rows;

const ARCHIVE: &str = "UPDATE agent_runtime.tasks SET log_archived_at = now() WHERE id = :closed";
const AUDIT: &str = "INSERT INTO agent_directory.audit VALUES
    (:org, gen_random_uuid(), now(), 'human', 'ada', 'put', 'agent', 'a', NULL, NULL)";

/// One test for each guard: its trigger, the statement that it refuses (after others), and its words.
macro_rules! guards {
    ($($name:ident: $trigger:literal, [$($statement:expr),+], $words:literal;)+) => {
        $(
            #[tokio::test]
            async fn $name() {
                Rows::new().await.refuses(&[$($statement),+], $words).await;
            }
        )+

        /// The triggers that the tests above have seen refuse.
        const SEEN: &[&str] = &[$($trigger),+];
    };
}

guards! {
    a_pinned_value_is_immutable: "tasks_pins_immutable",
        ["UPDATE agent_runtime.tasks SET title = 'other', last_seq = last_seq + 1 WHERE id = :open"],
        "identity, origin and pinned values of a task are immutable";
    a_closed_task_never_reopens: "tasks_closed_is_final",
        ["UPDATE agent_runtime.tasks SET outcome = NULL, closed_at = NULL, status = 'queued', last_seq = last_seq + 1
          WHERE id = :closed"],
        "a closed task never reopens and its state never changes";
    a_task_does_not_change_without_an_event: "tasks_change_with_an_event",
        ["UPDATE agent_runtime.tasks SET phase = 'x' WHERE id = :open"],
        "a task changes only in a commit that writes an event";
    last_seq_never_falls: "tasks_change_with_an_event",
        ["UPDATE agent_runtime.tasks SET last_seq = last_seq - 1 WHERE id = :open"],
        "a task changes only in a commit that writes an event";
    an_archived_log_does_not_grow: "tasks_archived_is_sealed",
        [ARCHIVE, "UPDATE agent_runtime.tasks SET last_seq = last_seq + 1 WHERE id = :closed"],
        "the log of an archived task is sealed";
    archiving_is_not_taken_back: "tasks_archived_is_sealed",
        [ARCHIVE, "UPDATE agent_runtime.tasks SET log_archived_at = NULL WHERE id = :closed"],
        "the log of an archived task is sealed";
    a_task_is_not_deleted: "tasks_kept",
        ["DELETE FROM agent_runtime.tasks WHERE id = :closed"], "tasks are never deleted";
    tasks_are_not_truncated: "tasks_no_truncate",
        ["TRUNCATE agent_runtime.tasks CASCADE"], "tasks are never deleted";
    a_label_to_find_a_task_by_stays: "task_labels_pinned",
        ["INSERT INTO agent_runtime.task_labels VALUES (:org, 'a', 'b', now(), :open)",
         "DELETE FROM agent_runtime.task_labels"], "what a task is found by never changes";
    a_label_to_find_a_task_by_does_not_change: "task_labels_pinned",
        ["INSERT INTO agent_runtime.task_labels VALUES (:org, 'a', 'b', now(), :open)",
         "UPDATE agent_runtime.task_labels SET value = 'c'"], "what a task is found by never changes";
    labels_to_find_tasks_by_are_not_truncated: "task_labels_no_truncate",
        ["TRUNCATE agent_runtime.task_labels"], "what a task is found by never changes";
    a_text_to_find_a_task_by_stays: "task_texts_pinned",
        ["DELETE FROM agent_runtime.task_texts"], "what a task is found by never changes";
    a_text_to_find_a_task_by_does_not_change: "task_texts_pinned",
        ["UPDATE agent_runtime.task_texts SET text = 'c'"], "what a task is found by never changes";
    texts_to_find_tasks_by_are_not_truncated: "task_texts_no_truncate",
        ["TRUNCATE agent_runtime.task_texts"], "what a task is found by never changes";
    a_session_is_not_deleted: "sessions_kept",
        ["DELETE FROM agent_runtime.sessions WHERE closed_at IS NULL"], "sessions are never deleted";
    sessions_are_not_truncated: "sessions_no_truncate",
        ["TRUNCATE agent_runtime.sessions"], "sessions are never deleted";
    a_request_is_not_deleted: "requests_kept",
        ["DELETE FROM agent_runtime.requests WHERE status = 'open'"], "requests are never deleted";
    requests_are_not_truncated: "requests_no_truncate",
        ["TRUNCATE agent_runtime.requests"], "requests are never deleted";
    a_closed_session_does_not_open_again: "sessions_closed_is_final",
        ["UPDATE agent_runtime.sessions SET closed_at = NULL, close_reason = NULL WHERE closed_at IS NOT NULL"],
        "a closed session never changes";
    a_closed_session_takes_no_heartbeat: "sessions_closed_is_final",
        ["UPDATE agent_runtime.sessions SET heartbeat_at = now() WHERE closed_at IS NOT NULL"],
        "a closed session never changes";
    a_settled_request_is_not_settled_again: "requests_settled_is_final",
        ["UPDATE agent_runtime.requests SET answer = 'no' WHERE status <> 'open'"],
        "a settled request never changes";
    an_event_never_changes: "events_append_only",
        ["UPDATE agent_runtime.events SET payload = '{}' WHERE task_id = :open AND seq = 1"], "events never change";
    events_are_not_truncated: "events_no_truncate",
        ["TRUNCATE agent_runtime.events"], "events are deleted only with the archiving of their task";
    an_event_needs_a_commit_that_counts_it: "events_belong_to_a_commit",
        ["INSERT INTO agent_runtime.events SELECT organization_id, task_id, seq + 1, gen_random_uuid(), type,
            schema_version, actor_kind, actor_id, channel, session_id, at, recorded_at, payload, redacted, digest
          FROM agent_runtime.events WHERE task_id = :open ORDER BY seq DESC LIMIT 1"],
        "an event needs a task that counts it and whose log is not archived";
    an_event_needs_a_task: "events_belong_to_a_commit",
        ["INSERT INTO agent_runtime.events SELECT organization_id, gen_random_uuid(), seq, event_id, type,
            schema_version, actor_kind, actor_id, channel, session_id, at, recorded_at, payload, redacted, digest
          FROM agent_runtime.events WHERE task_id = :open AND seq = 1"],
        "an event needs a task that counts it and whose log is not archived";
    an_archived_log_takes_no_event: "events_belong_to_a_commit",
        [ARCHIVE, "DELETE FROM agent_runtime.events WHERE task_id = :closed AND seq > 1",
         "INSERT INTO agent_runtime.events SELECT organization_id, task_id, 2, gen_random_uuid(), type, schema_version,
            actor_kind, actor_id, channel, session_id, at, recorded_at, payload, redacted, digest
          FROM agent_runtime.events WHERE task_id = :closed AND seq = 1"],
        "an event needs a task that counts it and whose log is not archived";
    an_event_is_not_deleted_before_its_task_is_archived: "events_deleted_with_archiving",
        ["DELETE FROM agent_runtime.events WHERE task_id = :closed"],
        "events are deleted only with the archiving of their task";
    deleting_the_events_of_two_tasks_needs_both_archived: "events_deleted_with_archiving",
        [ARCHIVE, "DELETE FROM agent_runtime.events"], "events are deleted only with the archiving of their task";
    a_row_of_the_ledger_never_changes: "budget_ledger_append_only",
        ["UPDATE agent_runtime.budget_ledger SET cost = 0"], "ledger rows never change and are never deleted";
    a_row_of_the_ledger_is_not_deleted: "budget_ledger_append_only",
        ["DELETE FROM agent_runtime.budget_ledger"], "ledger rows never change and are never deleted";
    the_ledger_is_not_truncated: "budget_ledger_no_truncate",
        ["TRUNCATE agent_runtime.budget_ledger"], "ledger rows are never deleted";
    a_reference_to_an_artifact_never_changes: "artifact_refs_append_only",
        ["UPDATE agent_runtime.artifact_refs SET seq = seq + 1"],
        "references to artifacts never change and are never deleted";
    a_reference_to_an_artifact_is_not_deleted: "artifact_refs_append_only",
        ["DELETE FROM agent_runtime.artifact_refs"], "references to artifacts never change and are never deleted";
    references_to_artifacts_are_not_truncated: "artifact_refs_no_truncate",
        ["TRUNCATE agent_runtime.artifact_refs"], "references to artifacts are never deleted";
    an_audit_row_never_changes: "audit_append_only",
        [AUDIT, "UPDATE agent_directory.audit SET actor_id = 'eve'"],
        "audit rows never change and are never deleted";
    an_audit_row_is_not_deleted: "audit_append_only",
        [AUDIT, "DELETE FROM agent_directory.audit"], "audit rows never change and are never deleted";
    the_audit_trail_is_not_truncated: "audit_no_truncate",
        ["TRUNCATE agent_directory.audit"], "audit rows are never deleted";
    the_version_of_an_agent_does_not_fall: "agents_versions_rise",
        ["UPDATE agent_directory.agents SET version = version - 1"], "version and prompt_version only rise";
    the_prompt_version_of_an_agent_does_not_fall: "agents_versions_rise",
        ["UPDATE agent_directory.agents SET prompt_version = prompt_version - 1, version = version + 1"],
        "version and prompt_version only rise";
}

#[tokio::test]
async fn every_trigger_of_the_schema_was_seen_to_refuse() {
    let rows = Rows::new().await;
    let query = "SELECT tgname::text FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE NOT tgisinternal AND n.nspname IN ('agent_runtime', 'agent_directory')";
    let all: Vec<String> = sqlx::query_scalar(query).fetch_all(&rows.db).await.unwrap();
    let all: BTreeSet<_> = all.iter().map(String::as_str).collect();
    assert_eq!(all, SEEN.iter().copied().collect(), "give a new guard its test above");
}

/// Facts of a task: they change, but only together with an event.
const FACTS: &[&str] = &[
    "owner",
    "status",
    "status_since",
    "control",
    "phase",
    "furthest_milestone",
    "outcome",
    "outcome_reason",
    "result",
    "cost_total",
    "set_aside",
    "tokens_in",
    "tokens_out",
    "cache_read_tokens",
    "cache_write_tokens",
    "unmeasured_reports",
    "unpriced_reports",
    "open_requests",
    "open_sessions",
    "open_children",
    "last_generation",
    "taken_over",
    "log_digest",
    "updated_at",
    "closed_at",
    "timeout_at",
];
/// Facts that still move after the close: money that was spent, effects that were made, children.
const FACTS_AFTER_CLOSE: &[&str] = &[
    "cost_total",
    "set_aside",
    "tokens_in",
    "tokens_out",
    "cache_read_tokens",
    "cache_write_tokens",
    "unmeasured_reports",
    "unpriced_reports",
    "open_children",
    "log_digest",
    "updated_at",
];
/// The sweep's bookkeeping, and the version itself.
const FREE: &[&str] = &[
    "last_seq",
    "dirty",
    "verified_seq",
    "verified_at",
    "verify_failures",
    "republished_at",
    "republications",
    "log_archived_at",
];

#[tokio::test]
async fn every_column_of_a_task_that_is_no_fact_is_immutable() {
    let rows = Rows::new().await;
    let mut pinned = 0;
    for (column, other) in rows.columns("agent_runtime.tasks").await {
        if FACTS.contains(&column.as_str()) || FREE.contains(&column.as_str()) {
            continue;
        }
        let statement =
            format!("UPDATE agent_runtime.tasks SET {column} = {other}, last_seq = last_seq + 1 WHERE id = :open");
        rows.refuses(&[&statement], "identity, origin and pinned values of a task are immutable").await;
        pinned += 1;
    }
    assert_eq!(pinned, 30, "a new column is pinned, or named among the facts");
}

#[tokio::test]
async fn no_fact_changes_without_an_event() {
    let rows = Rows::new().await;
    for (column, other) in rows.columns("agent_runtime.tasks").await {
        let statement = format!("UPDATE agent_runtime.tasks SET {column} = {other} WHERE id = :open");
        if FACTS.contains(&column.as_str()) {
            rows.refuses(&[&statement], "a task changes only in a commit that writes an event").await;
        }
    }
}

#[tokio::test]
async fn the_sweep_keeps_its_books_without_an_event() {
    let rows = Rows::new().await;
    for set in [
        "dirty = false",
        "verified_seq = last_seq, verified_at = now()",
        "verify_failures = 1",
        "republished_at = now(), republications = 1",
        "log_archived_at = now()",
    ] {
        let statement = format!("UPDATE agent_runtime.tasks SET {set} WHERE id = :closed");
        assert_eq!(rows.attempt(&[&statement]).await, Ok(1), "{set}");
    }
}

#[tokio::test]
async fn no_fact_of_a_closed_task_changes_but_what_may_still_be_spent_or_done() {
    let rows = Rows::new().await;
    for (column, other) in rows.columns("agent_runtime.tasks").await {
        if !FACTS.contains(&column.as_str()) {
            continue;
        }
        let statement =
            format!("UPDATE agent_runtime.tasks SET {column} = {other}, last_seq = last_seq + 1 WHERE id = :closed");
        if FACTS_AFTER_CLOSE.contains(&column.as_str()) {
            assert_eq!(rows.attempt(&[&statement]).await, Ok(1), "{column}");
        } else {
            rows.refuses(&[&statement], "a closed task never reopens and its state never changes").await;
        }
    }
}

#[tokio::test]
async fn no_column_of_what_is_final_changes_not_even_to_itself() {
    let rows = Rows::new().await;
    for (table, which, words) in [
        ("events", "task_id = :open AND seq = 1", "events never change"),
        ("budget_ledger", "task_id = :open", "ledger rows never change and are never deleted"),
        ("sessions", "closed_at IS NOT NULL", "a closed session never changes"),
        ("requests", "status <> 'open'", "a settled request never changes"),
    ] {
        let table = format!("agent_runtime.{table}");
        for (column, other) in rows.columns(&table).await {
            rows.refuses(&[&format!("UPDATE {table} SET {column} = {other} WHERE {which}")], words).await;
            rows.refuses(&[&format!("UPDATE {table} SET {column} = {column} WHERE {which}")], words).await;
        }
    }
}

#[tokio::test]
async fn archiving_deletes_the_events_of_its_task() {
    let rows = Rows::new().await;
    let deleted = rows.attempt(&[ARCHIVE, "DELETE FROM agent_runtime.events WHERE task_id = :closed"]).await;
    let length: i64 = sqlx::query_scalar("SELECT last_seq FROM agent_runtime.tasks WHERE short_number = 2")
        .fetch_one(&rows.db)
        .await
        .unwrap();
    assert_eq!(deleted, Ok(u64::try_from(length).unwrap()));
}

#[tokio::test]
async fn a_commit_may_write_an_event_so_the_guards_refuse_no_more_than_they_say() {
    let rows = Rows::new().await;
    let written = rows
        .attempt(&[
            "UPDATE agent_runtime.tasks SET last_seq = last_seq + 1, phase = 'x' WHERE id = :open",
            "INSERT INTO agent_runtime.events SELECT organization_id, task_id, seq + 1, gen_random_uuid(), type,
                schema_version, actor_kind, actor_id, channel, session_id, at, recorded_at, payload, redacted, digest
             FROM agent_runtime.events WHERE task_id = :open ORDER BY seq DESC LIMIT 1",
        ])
        .await;
    assert_eq!(written, Ok(1));
    let risen = rows.attempt(&["UPDATE agent_directory.agents SET version = version + 1, prompt_version = 9"]).await;
    assert_eq!(risen, Ok(1));
}
