//! That everything is where it belongs in the end.

use std::collections::HashSet;

use mandate::domain::ids::{OrganizationId, TaskId};
use uuid::Uuid;

use crate::place::{Place, at_length};
use crate::support::World;
use crate::writers::Written;

/// Ends the tasks, and waits until every log is archived; then proves that nothing is missing.
pub async fn end_and_prove(world: &World, place: &Place, tasks: &[String], written: &[Written]) {
    let agent = world.agent().await;
    for task in tasks {
        let reply = agent.finish(task).await;
        assert!(reply.status < 300, "{reply:?}");
    }
    archived(world).await;
    prove(world, place, written).await;
}

/// Waits until no log is left in Postgres.
pub async fn archived(world: &World) {
    let left = "SELECT count(*) FROM agent_runtime.tasks WHERE log_archived_at IS NULL";
    let events = "SELECT count(*) FROM agent_runtime.events";
    at_length("every log is archived", async || {
        let left: i64 = sqlx::query_scalar(left).fetch_one(&world.db).await.unwrap();
        let events: i64 = sqlx::query_scalar(events).fetch_one(&world.db).await.unwrap();
        left + events == 0
    })
    .await;
}

/// Proves that the log store has every log whole, that every acknowledged write is in it, and that the audit, which
/// reads archived logs from there, finds nothing.
pub async fn prove(world: &World, place: &Place, written: &[Written]) {
    let tasks = "SELECT organization_id, id, last_seq, verified_seq,
            (SELECT count(*) FROM agent_runtime.budget_ledger l
             WHERE l.organization_id = t.organization_id AND l.task_id = t.id)
        FROM agent_runtime.tasks t";
    let tasks: Vec<(Uuid, Uuid, i64, i64, i64)> = sqlx::query_as(tasks).fetch_all(&world.db).await.unwrap();
    assert!(!tasks.is_empty());
    for (organization, task, last_seq, verified_seq, reports) in tasks {
        let found = world.log.store.coverage(&[(OrganizationId(organization), TaskId(task))]).await.unwrap();
        assert!(found[0].is_whole(last_seq, reports), "{last_seq} events, {reports} reports: {found:?}");
        assert_eq!(verified_seq, last_seq);
    }
    let column =
        async |statement: &str| -> Vec<String> { place.in_store(statement).await.lines().map(str::to_owned).collect() };
    let stored: HashSet<_> =
        column("SELECT DISTINCT toString(event_id) FROM agent_task_events").await.into_iter().collect();
    let reports = column("SELECT task_id, idempotency_key FROM agent_usage FINAL").await;
    let unique: HashSet<_> = reports.iter().collect();
    assert_eq!(unique.len(), reports.len(), "a report counts twice");
    let keys: HashSet<_> = reports.iter().map(|report| report.split_once('\t').unwrap().1).collect();
    for writer in written {
        let lost: Vec<_> = writer.events.iter().filter(|id| !stored.contains(&id.to_string())).collect();
        assert!(lost.is_empty(), "acknowledged events are lost: {lost:?}");
        let lost: Vec<_> = writer.reports.iter().filter(|key| !keys.contains(key.as_str())).collect();
        assert!(lost.is_empty(), "acknowledged reports are lost: {lost:?}");
    }
    world.prove().await;
}
