//! Dependencies between tasks: one row read in two directions, an event on both logs, and what an archived side takes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::join;
use serde_json::{Value, json};

use crate::support::{Client, Reply, World};

fn requires(task: &str, other: &str) -> String {
    format!("/agent-tasks/{task}/requires/{other}")
}

async fn add(client: &Client, task: &str, other: &str) -> Reply {
    client.send(client.request(reqwest::Method::PUT, &requires(task, other))).await
}

async fn remove(client: &Client, task: &str, other: &str) -> Reply {
    client.delete(&requires(task, other)).await
}

async fn relations(world: &World, task: &str) -> Value {
    world.person("vera").get(&format!("/agent-tasks/{task}/relations")).await.expect(200).clone()
}

/// The short ids of one direction.
fn names(relations: &Value, direction: &str) -> Vec<String> {
    let related = relations[direction].as_array().unwrap();
    related.iter().map(|task| task["short_id"].as_str().unwrap().to_owned()).collect()
}

/// The events of dependencies in a task's log.
async fn told(world: &World, task: &str) -> Vec<Value> {
    let log = world.log(task).await;
    log.into_iter().filter(|event| event["type"].as_str().unwrap().starts_with("dependency.")).collect()
}

/// A closed task whose log is archived.
async fn archived(world: &World) -> String {
    let task = world.task().await;
    world.agent().await.finish(&task).await.expect(200);
    archive(world, &task).await;
    task
}

/// Sweeps until the task's log is archived: what was committed reaches the log store in its own time.
async fn archive(world: &World, task: &str) {
    let ada = world.person("ada");
    crate::support::eventually("the log is archived", || async {
        world.sweep().await;
        let read = ada.get(&format!("/agent-tasks/{task}")).await;
        !read.expect(200)["log_archived_at"].is_null()
    })
    .await;
}

#[tokio::test]
async fn one_dependency_is_read_from_both_sides_and_told_on_both_logs() {
    let world = World::new().await;
    let oscar = world.person_claiming("oscar", json!({"channel": "web"}));
    let (a, b) = (world.task().await, world.task_with(json!({"title": "The other"})).await);
    let before = [world.log(&a).await.len(), world.log(&b).await.len()];
    add(&oscar, &a.to_lowercase(), &b).await.expect(204);

    let (from_a, from_b) = (relations(&world, &a).await, relations(&world, &b).await);
    assert_eq!((names(&from_a, "requires"), names(&from_a, "required_by")), (vec![b.clone()], vec![]));
    assert_eq!((names(&from_b, "requires"), names(&from_b, "required_by")), (vec![], vec![a.clone()]));
    for relations in [&from_a, &from_b] {
        assert_eq!((&relations["parent"], &relations["children"]), (&Value::Null, &json!([])));
    }
    let ada = world.person("ada");
    let other = ada.get(&format!("/agent-tasks/{b}")).await.expect(200).clone();
    let entry = &from_a["requires"][0];
    for field in ["id", "short_id", "title", "status", "outcome", "outcome_reason", "agent_id", "agent_slug", "owner"] {
        assert_eq!(entry[field], other[field], "{field}");
    }
    assert_eq!((&entry["created_by_kind"], &entry["created_by"]), (&json!("human"), &json!("oscar")));
    assert_eq!(entry["created_at"], from_b["required_by"][0]["created_at"]);

    let (on_a, on_b) = (told(&world, &a).await, told(&world, &b).await);
    assert_eq!((on_a.len(), on_b.len()), (1, 1));
    let ids = [ada.get(&format!("/agent-tasks/{a}")).await, ada.get(&format!("/agent-tasks/{b}")).await];
    for (event, side) in [(&on_a[0], "dependent"), (&on_b[0], "prerequisite")] {
        assert_eq!(event["type"], "dependency.added");
        assert_eq!(
            (&event["actor_kind"], &event["actor_id"], &event["channel"]),
            (&json!("human"), &json!("oscar"), &json!("web"))
        );
        let expected = json!({
            "operation_id": on_a[0]["payload"]["operation_id"], "side": side,
            "dependent_task_id": ids[0].body["id"], "dependent_short_id": a,
            "prerequisite_task_id": ids[1].body["id"], "prerequisite_short_id": b,
            "created_by_kind": "human", "created_by": "oscar", "created_at": entry["created_at"],
        });
        assert_eq!(event["payload"], expected);
    }
    assert_eq!([world.log(&a).await.len(), world.log(&b).await.len()], before.map(|length| length + 1));
    // They are information only.
    for task in ids {
        assert_eq!(task.body["status"], "queued");
    }
    world.prove().await;
}

#[tokio::test]
async fn what_is_so_already_writes_nothing() {
    let world = World::new().await;
    let oscar = world.person("oscar");
    let (a, b) = (world.task().await, world.task().await);
    let untouched = world.footprint().await;
    remove(&oscar, &a, &b).await.expect(204);
    assert_eq!(world.footprint().await, untouched);
    add(&oscar, &a, &b).await.expect(204);
    let added = world.footprint().await;
    add(&oscar, &a, &b).await.expect(204);
    // The same row from the other side, as another dependency, is not there.
    remove(&oscar, &b, &a).await.expect(204);
    assert_eq!(world.footprint().await, added);
    remove(&oscar, &a, &b).await.expect(204);
    let removed = world.footprint().await;
    remove(&world.person("ada"), &a, &b).await.expect(204);
    assert_eq!(world.footprint().await, removed);
    assert_eq!(world.types(&a).await, ["task.created", "dependency.added", "dependency.removed"]);
    world.prove().await;
}

#[tokio::test]
async fn a_removal_keeps_the_whole_row() {
    let world = World::new().await;
    let (a, b) = (world.task().await, world.task().await);
    add(&world.person("oscar"), &a, &b).await.expect(204);
    world.skew_clock(60);
    remove(&world.person("ada"), &a, &b).await.expect(204);
    for task in [&a, &b] {
        let told = told(&world, task).await;
        let [added, removed] = told.as_slice() else { panic!("{told:?}") };
        assert_eq!((&removed["type"], &removed["actor_id"]), (&json!("dependency.removed"), &json!("ada")));
        assert_eq!(removed["payload"]["created_by"], "oscar");
        let without = |event: &Value| {
            let mut row = event["payload"].clone();
            (row.as_object_mut().unwrap().remove("operation_id"), row)
        };
        let ((first, before), (second, after)) = (without(added), without(removed));
        assert_eq!(before, after);
        assert_ne!(first, second, "each change is an operation of its own");
    }
    assert_eq!(relations(&world, &a).await["requires"], json!([]));
}

#[tokio::test]
async fn no_task_requires_itself_but_cycles_are_fine() {
    let world = World::new().await;
    let oscar = world.person("oscar");
    let (a, b, c) = (world.task().await, world.task().await, world.task().await);
    let before = world.footprint().await;
    add(&oscar, &a, &a).await.invalid_at(&["other"]);
    remove(&oscar, &a, &a).await.expect(204);
    assert_eq!(world.footprint().await, before);
    for (from, to) in [(&a, &b), (&b, &c), (&c, &a), (&b, &a)] {
        add(&oscar, from, to).await.expect(204);
    }
    let both = relations(&world, &a).await;
    assert_eq!((names(&both, "requires"), names(&both, "required_by")), (vec![b.clone()], vec![c, b]));
    world.prove().await;
}

#[tokio::test]
async fn a_name_that_no_task_has_is_not_found_on_either_side() {
    let world = World::new().await;
    let (oscar, vera) = (world.person("oscar"), world.person("vera"));
    let task = world.task().await;
    let before = world.footprint().await;
    for client in [&oscar, &vera] {
        // What is not there ranks before what the caller may do.
        for name in ["T-99", "T-0", "x"] {
            add(client, &task, name).await.refused(404, "task_not_found");
            add(client, name, &task).await.refused(404, "task_not_found");
            remove(client, &task, name).await.refused(404, "task_not_found");
        }
    }
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn a_dependency_may_change_after_the_close() {
    let world = World::with(|settings| settings.archive.grace_seconds = 3_600).await;
    let (oscar, agent) = (world.person("oscar"), world.agent().await);
    let (a, b) = (world.task().await, world.task().await);
    agent.finish(&a).await.expect(200);
    agent.finish(&b).await.expect(200);
    add(&oscar, &a, &b).await.expect(204);
    remove(&oscar, &a, &b).await.expect(204);
    for task in [&a, &b] {
        let types = world.types(task).await;
        assert_eq!(types[types.len() - 2..], ["dependency.added", "dependency.removed"]);
    }
    world.prove().await;
}

#[tokio::test]
async fn an_archived_side_gets_no_event_and_two_archived_ones_are_refused() {
    let world = World::new().await;
    let oscar = world.person("oscar");
    let (sealed, other) = (archived(&world).await, archived(&world).await);
    let live = world.task().await;
    let before = [told(&world, &sealed).await, told(&world, &other).await];
    for (from, to, side) in [(&live, &sealed, "dependent"), (&other, &live, "prerequisite")] {
        add(&oscar, from, to).await.expect(204);
        let told = told(&world, &live).await;
        let last = &told.last().unwrap()["payload"];
        assert_eq!((&last["side"], &last["dependent_short_id"]), (&json!(side), &json!(from)));
        assert_eq!(last["prerequisite_short_id"], json!(to));
    }
    // Both directions of a row are shown, whichever side is archived.
    assert_eq!(names(&relations(&world, &sealed).await, "required_by"), [live.as_str()]);
    assert_eq!(names(&relations(&world, &other).await, "requires"), [live.as_str()]);
    remove(&oscar, &live, &sealed).await.expect(204);
    assert_eq!(told(&world, &live).await.last().unwrap()["type"], "dependency.removed");
    assert_eq!([told(&world, &sealed).await, told(&world, &other).await], before, "archived logs are sealed");

    let still = world.footprint().await;
    for (from, to) in [(&sealed, &other), (&other, &sealed), (&sealed, &sealed)] {
        add(&oscar, from, to).await.refused(409, "task_archived");
        remove(&oscar, from, to).await.refused(409, "task_archived");
    }
    assert_eq!(world.footprint().await, still);
    // Once both sides are archived, the row is there for good.
    world.agent().await.finish(&live).await.expect(200);
    archive(&world, &live).await;
    remove(&oscar, &other, &live).await.refused(409, "task_archived");
    assert_eq!(names(&relations(&world, &other).await, "requires"), [live.as_str()]);
    world.prove().await;
}

#[tokio::test]
async fn a_snapshot_that_is_kept_does_not_hide_a_dependency() {
    let world = World::new().await;
    let beside = World::beside(&world).await;
    let agent = world.agent().await;
    let (a, b) = (world.task().await, world.task().await);
    let session = agent.open_session(&a, "s").await;
    // The process keeps what its last commit left, then another process, and itself, change the task.
    agent.say(&a, &session, "one").await.expect(201);
    add(&beside.person("oscar"), &a, &b).await.expect(204);
    agent.say(&a, &session, "two").await.expect(201);
    add(&world.person("oscar"), &b, &a).await.expect(204);
    agent.say(&a, &session, "three").await.expect(201);
    remove(&world.person("oscar"), &a, &b).await.expect(204);
    let types = world.types(&a).await;
    let tail = ["turn", "dependency.added", "turn", "dependency.added", "turn", "dependency.removed"];
    assert_eq!(types[types.len() - 6..], tail);
    world.prove().await;
}

#[tokio::test]
async fn agents_and_triggers_change_no_relation() {
    let world = World::new().await;
    let (agent, trigger) = (world.agent().await, world.trigger().await);
    let (a, b) = (world.task().await, world.task().await);
    let before = world.footprint().await;
    for client in [&agent, &trigger, &world.person("vera"), &world.person("abe")] {
        add(client, &a, &b).await.refused(403, "permission_denied");
        remove(client, &a, &b).await.refused(403, "permission_denied");
    }
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn the_audit_finds_a_row_that_the_logs_do_not_tell() {
    let world = World::new().await;
    let oscar = world.person("oscar");
    let (a, b) = (world.task().await, world.task().await);
    add(&oscar, &a, &b).await.expect(204);
    let project = format!("/agent-tasks/{a}/projects/{}", world.seed.project_id);
    oscar.send(oscar.request(reqwest::Method::PUT, &project)).await.expect(204);
    world.prove().await;
    for (there, back, found) in [
        (
            "UPDATE agent_runtime.task_dependencies SET created_by = 'eve'",
            "UPDATE agent_runtime.task_dependencies SET created_by = 'oscar'",
            vec!["its dependencies differ from its log"; 2],
        ),
        (
            "UPDATE agent_runtime.task_projects SET project_slug = 'other'",
            "UPDATE agent_runtime.task_projects SET project_slug = 'app'",
            vec!["its associated projects differ from its log"],
        ),
    ] {
        sqlx::query(there).execute(&world.db).await.unwrap();
        let findings = world.audit().await;
        assert_eq!(findings.len(), found.len(), "{findings:?}");
        assert!(findings.iter().zip(found).all(|(finding, found)| finding.contains(found)), "{findings:?}");
        sqlx::query(back).execute(&world.db).await.unwrap();
    }
    world.prove().await;
}

/// How often each of the two tasks' dependency is added.
const LOOPS: u32 = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crossing_dependencies_with_closes_reassigns_and_the_sweep_never_deadlock() {
    let world = World::new().await;
    let beside = World::beside(&world).await;
    let (oscar, ada) = (world.person("oscar"), beside.person("ada"));
    let agent = world.agent().await;
    let over = AtomicBool::new(false);
    let mut pair = (world.task().await, world.task().await);
    let mut tasks = vec![pair.0.clone(), pair.1.clone()];
    let loops = async {
        for round in 0..LOOPS {
            let (a, b) = (&pair.0.clone(), &pair.1.clone());
            // From two processes, so that only the database's locks stand between.
            let (one, two) = join(add(&oscar, a, b), add(&ada, b, a)).await;
            one.expect(204);
            two.expect(204);
            let owner = json!({"owner": if round % 2 == 0 { "vera" } else { "oscar" }});
            let path = format!("/agent-tasks/{a}/reassign");
            let calls = (remove(&ada, a, b), remove(&oscar, b, a), ada.post(&path, &owner));
            let (one, two, three) = futures::join!(calls.0, calls.1, calls.2);
            one.expect(204);
            two.expect(204);
            three.expect(200);
            if round % 10 == 9 {
                // The sweep archives what is closed; a row between a closed and a live task changes still.
                let next = world.task().await;
                let (one, two) = join(agent.finish(a), add(&ada, b, a)).await;
                one.expect(200);
                two.expect(204);
                let (one, two) = join(remove(&oscar, b, a), add(&ada, &next, b)).await;
                one.expect(204);
                two.expect(204);
                remove(&ada, &next, b).await.expect(204);
                tasks.push(next.clone());
                pair = (b.clone(), next);
            }
        }
        over.store(true, Ordering::SeqCst);
    };
    let sweeps = async {
        while !over.load(Ordering::SeqCst) {
            let swept = world.sweep().await;
            assert_eq!((swept.failed, swept.mismatched), (0, 0));
            tokio::task::yield_now().await;
        }
    };
    join(Box::pin(loops), Box::pin(sweeps)).await;

    // Each operation stands on both logs, or on that of the side that was not archived.
    let mut operations: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for task in &tasks {
        for event in told(&world, task).await {
            let payload = &event["payload"];
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let own = if payload["side"] == "dependent" { "dependent_short_id" } else { "prerequisite_short_id" };
            assert_eq!(text(&payload[own]), *task);
            let seen = operations.entry(text(&payload["operation_id"])).or_default();
            seen.push((text(&event["type"]), text(&payload["side"])));
        }
    }
    let halves = operations.values().filter(|seen| seen.len() == 1).count();
    for seen in operations.values().filter(|seen| seen.len() != 1) {
        assert_eq!(seen.len(), 2);
        assert_eq!(seen[0].0, seen[1].0);
        assert_ne!(seen[0].1, seen[1].1);
    }
    // Only a change beside a close may have met an archived side.
    assert!(halves <= 2 * (LOOPS / 10) as usize, "{halves} operations stand on one log");
    assert_eq!(operations.len(), (4 * LOOPS + 4 * (LOOPS / 10)) as usize);
    let query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let deadlocks: i64 = sqlx::query_scalar(query).fetch_one(&world.db).await.unwrap();
    assert_eq!(deadlocks, 0);
    world.prove().await;
}
