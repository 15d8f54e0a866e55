//! Expiry: by the database's clock, written by a worker exactly once. Silence is never consent and never hangs a task.

use std::sync::atomic::{AtomicBool, Ordering};

use mandate::domain::time::Timestamp;
use serde_json::{Value, json};

use crate::support::{Client, Reply, World, eventually};

const DIGEST: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// That many milliseconds from now, by the clock of an unskewed server.
fn ahead(world: &World, milliseconds: i64) -> Timestamp {
    Timestamp::from_micros(world.now().micros() + milliseconds * 1_000).unwrap()
}

async fn ask(agent: &Client, task: &str, kind: &str, expires_at: Timestamp) -> String {
    let digests = if kind == "approval" { json!([DIGEST]) } else { Value::Null };
    let body = json!({"kind": kind, "title": "?", "artifact_digests": digests, "expires_at": expires_at.to_string()});
    let reply = agent.on(task, "requests", body).await;
    reply.expect(201)["request"]["id"].as_str().unwrap().to_owned()
}

async fn approve(person: &Client, task: &str, id: &str) -> Reply {
    let body = json!({"status": "approved", "artifact_digests": [DIGEST]});
    person.on(task, &format!("requests/{id}/resolve"), body).await
}

async fn shown(world: &World, task: &str, id: &str) -> String {
    let reply = world.person("ada").get(&format!("/agent-tasks/{task}/requests")).await;
    let rows = reply.expect(200).as_array().unwrap();
    rows.iter().find(|row| row["id"] == id).unwrap()["status"].as_str().unwrap().to_owned()
}

/// Waits until a read shows the request as expired.
async fn overdue(world: &World, task: &str, id: &str) {
    eventually("the request expires", || async { shown(world, task, id).await == "expired" }).await;
}

fn names(told: &[(String, Value)]) -> Vec<&str> {
    told.iter().map(|(name, _)| name.as_str()).collect()
}

/// Whatever the server's clock says, and although no worker has written it yet.
#[tokio::test]
async fn what_has_expired_by_the_databases_clock_cannot_be_resolved() {
    let world = World::new().await;
    let beside = World::beside(&world).await;
    for hours in [-1, 0, 1] {
        world.skew_clock(0);
        let (agent, task) = (world.agent().await, world.task().await);
        agent.open_session(&task, "s1").await;
        let id = ask(&agent, &task, "approval", ahead(&world, 2_000)).await;
        let free = ask(&agent, &task, "feedback", ahead(&world, 86_400_000)).await;
        overdue(&world, &task, &id).await;
        world.skew_clock(hours * 3_600);
        let (agent, ada) = (world.agent().await, world.person("ada"));
        let still = world.still(&task).await;
        let expires_at = approve(&ada, &task, &id).await.refused(409, "request_expired")["expires_at"].clone();
        let resolve = format!("requests/{id}/resolve");
        for body in [
            json!({"status": "rejected"}),
            json!({"status": "approved", "artifact_digests": []}),
            json!({"status": "answered"}),
            json!({}),
        ] {
            let refusal = ada.on(&task, &resolve, body).await;
            assert_eq!(refusal.refused(409, "request_expired")["expires_at"], expires_at);
        }
        agent.on(&task, &format!("requests/{id}/withdraw"), json!({})).await.refused(409, "request_expired");
        let newer = json!({"kind": "feedback", "title": "?", "supersedes": id});
        agent.on(&task, "requests", newer).await.refused(409, "request_expired");
        world.unmoved(&still).await;
        let open: i64 = sqlx::query_scalar("SELECT count(*) FROM agent_runtime.requests WHERE status = 'open'")
            .fetch_one(&world.db)
            .await
            .unwrap();
        assert_eq!(open, 2, "a read or a refusal wrote the expiry");
        // The worker writes it, whatever its server's clock says; of two at once only one.
        beside.skew_clock(-hours * 3_600);
        let before = world.last_seq(&task).await;
        let (one, two) = tokio::join!(world.step(), beside.step());
        assert_eq!((one.expired + two.expired, one.failed + two.failed), (1, 0));
        let told = world.since(&task, before).await;
        assert_eq!(
            names(&told),
            ["request.expired", "session.closed", "state.changed", "outcome.set", "request.resolved"]
        );
        assert_eq!(told[0].1, json!({"request_id": id, "kind": "approval", "expires_at": expires_at}));
        assert_eq!(told[2].1, json!({"from": "blocked", "to": "closed", "reason": "outcome_set"}));
        assert_eq!(told[3].1, json!({"outcome": "request_expired", "reason": "approval_expired", "result": null}));
        assert_eq!((&told[4].1["request_id"], &told[4].1["status"]), (&json!(free), &json!("void")));
        let still = world.still(&task).await;
        assert!(world.step().await.is_idle() && beside.step().await.is_idle());
        approve(&ada, &task, &id).await.refused(409, "request_expired");
        agent.on(&task, &format!("requests/{id}/withdraw"), json!({})).await.refused(409, "request_expired");
        world.unmoved(&still).await;
    }
}

#[tokio::test]
async fn what_has_not_expired_by_the_databases_clock_can_be_resolved() {
    let world = World::new().await;
    for hours in [-1, 1] {
        world.skew_clock(0);
        let (agent, task) = (world.agent().await, world.task().await);
        let id = ask(&agent, &task, "approval", ahead(&world, 600_000)).await;
        world.skew_clock(hours * 3_600);
        assert_eq!(world.step().await.expired, 0);
        assert_eq!(shown(&world, &task, &id).await, "open");
        approve(&world.person("ada"), &task, &id).await.expect(201);
    }
}

#[tokio::test]
async fn a_read_shows_the_expiry_and_writes_nothing() {
    let world = World::new().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let task = world.task().await;
    let body = json!({"kind": "feedback", "title": "?", "request_key": "k",
        "expires_at": ahead(&world, 3_000).to_string()});
    let asked = agent.on(&task, "requests", body.clone()).await;
    let id = asked.expect(201)["request"]["id"].as_str().unwrap().to_owned();
    let still = world.still(&task).await;
    let inbox = async |status: &str| {
        let reply = ada.get(&format!("/requests?status={status}")).await;
        reply.expect(200).as_array().unwrap().iter().map(|row| row["status"].clone()).collect::<Vec<_>>()
    };
    assert_eq!((inbox("open").await.len(), inbox("expired").await.len()), (1, 0));
    overdue(&world, &task, &id).await;
    assert_eq!((inbox("open").await.len(), inbox("expired").await), (0, vec![json!("expired")]));
    let waiting = ada.get("/agent-tasks/waiting").await;
    assert_eq!((&waiting.expect(200)["count"], &waiting.body["requests"]), (&json!(0), &json!(0)));
    // Its key shows it as it is now, too.
    let again = agent.on(&task, "requests", body).await;
    assert_eq!((&again.expect(200)["request"]["status"], again.is_replayed()), (&json!("expired"), true));
    world.unmoved(&still).await;
    assert_eq!(world.step().await.expired, 1);
    assert_eq!(inbox("expired").await, [json!("expired")]);
    let rows = ada.get(&format!("/agent-tasks/{task}/requests")).await;
    let row = &rows.expect(200)[0];
    assert_eq!((&row["resolved_by"], &row["resolution"]), (&Value::Null, &Value::Null));
    assert_eq!(row["resolved_at"], ada.get(&format!("/agent-tasks/{task}")).await.body["closed_at"]);
}

/// Whoever closes the task before a worker has seen it, and whatever the server's clock says: what was read as expired
/// stays expired.
#[tokio::test]
async fn what_has_expired_is_not_made_void_by_a_close() {
    let world = World::new().await;
    let closers: [(&str, i64); 4] = [("cancel", 1), ("outcome", -1), ("spend", 1), ("stop", -1)];
    for (closer, hours) in closers {
        world.skew_clock(0);
        let agent = world.agent().await;
        let body = json!({"agent_slug": "reviewer", "title": closer, "description": "", "budget": "0.01"});
        let task = world.person("ada").post("/agent-tasks/", &body).await.expect(201)["short_id"].clone();
        let task = task.as_str().unwrap();
        let over = ask(&agent, task, "approval", ahead(&world, 1_500)).await;
        let open = ask(&agent, task, "feedback", ahead(&world, 86_400_000)).await;
        // What the process keeps of the task is older than the end of the request's time.
        agent.append(task, json!([{"type": "turn", "payload": {"body": "Waiting."}}])).await.expect(201);
        overdue(&world, task, &over).await;
        world.skew_clock(hours * 3_600);
        let (agent, ada, oscar) = (world.agent().await, world.person("ada"), world.person("oscar"));
        let before = world.last_seq(task).await;
        match closer {
            "cancel" => ada.on(task, "cancel", json!({})).await.expect(200).clone(),
            "outcome" => agent.finish(task).await.expect(200).clone(),
            "spend" => agent.spend(task, "all", 1_000_000_000, 0).await.expect(201).clone(),
            _ => oscar.post_nothing("/agents/reviewer/stop").await.expect(200).clone(),
        };
        let told = world.since(task, before).await;
        let settled: Vec<_> = told.iter().filter(|(name, _)| name.starts_with("request.")).collect();
        assert_eq!(settled.len(), 2, "{closer}: {told:?}");
        let expired = settled.iter().find(|(name, _)| name == "request.expired").unwrap();
        assert_eq!((&expired.1["request_id"], &expired.1["kind"]), (&json!(over), &json!("approval")), "{closer}");
        let void = settled.iter().find(|(name, _)| name == "request.resolved").unwrap();
        assert_eq!((&void.1["request_id"], &void.1["status"]), (&json!(open), &json!("void")), "{closer}");
        assert_eq!(
            (shown(&world, task, &over).await, shown(&world, task, &open).await),
            ("expired".into(), "void".into())
        );
        assert!(world.step().await.is_idle());
    }
    world.skew_clock(0);
    world.prove().await;
}

/// Two servers with their own workers, and nobody who calls.
#[tokio::test]
async fn a_request_that_nobody_answers_ends_its_task_within_seconds() {
    let world = World::with(|settings| {
        settings.workers.expiry_interval_ms = 20;
        settings.requests.ttl_seconds = 1;
    })
    .await;
    let _beside = World::beside(&world).await;
    let agent = world.agent().await;
    let mut asked = Vec::new();
    for kind in ["feedback", "approval"] {
        let (task, session) = world.working(&agent).await;
        let body = json!({"kind": kind, "title": "?", "artifact_digests": [DIGEST]});
        agent.on(&task, "requests", body).await.expect(201);
        asked.push((task, session, kind));
    }
    for (task, session, kind) in &asked {
        let beat = format!("sessions/{session}/heartbeat");
        eventually("the harness meets the end", || async { agent.on(task, &beat, Value::Null).await.status == 409 })
            .await;
        let refusal = agent.on(task, &beat, Value::Null).await;
        assert_eq!(refusal.refused(409, "task_closed")["outcome"], "request_expired");
        assert_eq!(refusal.body["outcome_reason"], format!("{kind}_expired"));
        let log = world.sound(task).await;
        let expired: Vec<_> = log.iter().filter(|event| event["type"] == "request.expired").collect();
        assert_eq!(expired.len(), 1);
        assert_eq!((&expired[0]["actor_kind"], &expired[0]["channel"]), (&json!("system"), &Value::Null));
    }
}

#[tokio::test]
async fn several_that_are_due_at_once_expire_together_and_the_first_names_the_reason() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let (later, sooner) = (ahead(&world, 4_000), ahead(&world, 3_500));
    let second = ask(&agent, &task, "approval", later).await;
    let first = ask(&agent, &task, "feedback", sooner).await;
    let open = ask(&agent, &task, "approval", ahead(&world, 600_000)).await;
    overdue(&world, &task, &second).await;
    let before = world.last_seq(&task).await;
    assert_eq!(world.step().await.expired, 1);
    let told = world.since(&task, before).await;
    assert_eq!(
        names(&told),
        ["request.expired", "request.expired", "state.changed", "outcome.set", "request.resolved"]
    );
    assert_eq!((&told[0].1["request_id"], &told[1].1["request_id"]), (&json!(first), &json!(second)));
    assert_eq!(told[3].1["reason"], "feedback_expired");
    assert_eq!(told[4].1["request_id"], json!(open));
}

#[tokio::test]
async fn many_servers_side_by_side_expire_each_request_once() {
    let world = World::new().await;
    let others = [World::beside(&world).await, World::beside(&world).await];
    let agent = world.agent().await;
    let mut tasks = Vec::new();
    for _ in 0..30 {
        let task = world.task().await;
        let id = ask(&agent, &task, "feedback", ahead(&world, 2_000)).await;
        tasks.push((task, id));
    }
    overdue(&world, &tasks[29].0, &tasks[29].1).await;
    let (one, two, three) = tokio::join!(world.step(), others[0].step(), others[1].step());
    assert_eq!(one.expired + two.expired + three.expired, 30);
    assert_eq!(one.failed + two.failed + three.failed, 0);
    for (task, _) in &tasks {
        let told = world.since(task, 3).await;
        assert_eq!(names(&told), ["request.expired", "state.changed", "outcome.set"], "{task}");
    }
}

#[tokio::test]
async fn the_time_of_a_request_runs_on_under_pause_and_cancel() {
    let world = World::new().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let mut tasks = Vec::new();
    for verb in ["pause", "cancel"] {
        let (task, _) = world.working(&agent).await;
        let id = ask(&agent, &task, "approval", ahead(&world, 2_000)).await;
        ada.on(&task, verb, json!({})).await.expect(200);
        tasks.push((task, id));
    }
    for (task, id) in &tasks {
        overdue(&world, task, id).await;
        approve(&ada, task, id).await.refused(409, "request_expired");
    }
    assert_eq!(world.step().await.expired, 2);
    for (task, _) in &tasks {
        let read = ada.get(&format!("/agent-tasks/{task}")).await;
        assert_eq!(
            (&read.expect(200)["outcome"], &read.body["outcome_reason"]),
            (&json!("request_expired"), &json!("approval_expired"))
        );
        world.sound(task).await;
    }
}

/// An approval around the moment of the expiry, beside two workers: approved or expired, never both.
#[tokio::test]
async fn an_approval_at_the_last_moment_counts_or_does_not() {
    let world = World::new().await;
    let beside = World::beside(&world).await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let over = AtomicBool::new(false);
    let steps = async {
        while !over.load(Ordering::SeqCst) {
            let (one, two) = tokio::join!(world.step(), beside.step());
            assert_eq!((one.failed, two.failed), (0, 0));
        }
    };
    let approvals = async {
        let (world, agent, ada) = (&world, &agent, &ada);
        let cases = (0..20_i64).map(|n| async move {
            let task = world.task().await;
            let at = ahead(world, 4_000);
            let id = ask(agent, &task, "approval", at).await;
            // The first at once, the last when it is over, the others around the moment itself.
            if n == 19 {
                overdue(world, &task, &id).await;
            } else if n > 0 {
                let start = Timestamp::from_micros(at.micros() + (n - 14) * 20_000).unwrap();
                eventually("its moment comes", || async { world.now() >= start }).await;
            }
            let reply = approve(ada, &task, &id).await;
            (task, reply)
        });
        let cases = futures::future::join_all(cases).await;
        over.store(true, Ordering::SeqCst);
        cases
    };
    let ((), cases) = tokio::join!(steps, approvals);
    world.step().await;
    let (mut approved, mut expired) = (0, 0);
    for (task, reply) in cases {
        let told = world.since(&task, 3).await;
        if reply.status == 201 {
            assert_eq!(names(&told), ["request.resolved", "state.changed"]);
            approved += 1;
        } else {
            reply.refused(409, "request_expired");
            assert_eq!(names(&told), ["request.expired", "state.changed", "outcome.set"]);
            expired += 1;
        }
    }
    assert!(approved > 0 && expired > 0, "the race was never open: {approved}, {expired}");
}
