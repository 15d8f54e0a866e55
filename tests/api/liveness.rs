//! What time and numbers do to sessions: losses, time limits, and how many tasks an agent works at once.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::support::{Client, World, eventually};

/// Silence of two seconds loses a session.
async fn impatient() -> World {
    World::with(|settings| {
        settings.sessions.heartbeat_interval_seconds = 1;
        settings.sessions.timeout_seconds = 2;
    })
    .await
}

/// Steps until `count` tasks have lost a session.
async fn lose(world: &World, count: u64) {
    let lost = AtomicU64::new(0);
    let what = format!("{count} losses");
    eventually(&what, || async {
        lost.fetch_add(world.step().await.lost, Ordering::SeqCst);
        lost.load(Ordering::SeqCst) >= count
    })
    .await;
    assert_eq!(lost.load(Ordering::SeqCst), count);
}

async fn sessions(world: &World, task: &str) -> Vec<Value> {
    let reply = world.person("ada").get(&format!("/agent-tasks/{task}/sessions")).await;
    reply.expect(200).as_array().unwrap().clone()
}

async fn limit(world: &World, column: &'static str, value: Option<i32>) {
    let statement = format!("UPDATE agent_directory.agents SET {column} = $1");
    sqlx::query(sqlx::AssertSqlSafe(statement)).bind(value).execute(&world.db).await.unwrap();
}

/// Moves the last sign of life of a session into the past, as no route can.
async fn silence(world: &World, session: &str) {
    sqlx::query(
        "UPDATE agent_runtime.sessions SET heartbeat_at = now() - interval '1 hour', check_at = now() WHERE id = $1",
    )
    .bind(uuid::Uuid::parse_str(session).unwrap())
    .execute(&world.db)
    .await
    .unwrap();
}

#[tokio::test]
async fn a_silent_session_is_lost_and_its_task_waits_for_the_next_harness() {
    let world = impatient().await;
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    let before = world.last_seq(&task).await;
    lose(&world, 1).await;
    assert_eq!(
        world.since(&task, before).await,
        [
            (
                "session.closed".to_owned(),
                json!({"session_id": session, "harness_instance": null, "reason": "heartbeat_lost"})
            ),
            ("state.changed".to_owned(), json!({"from": "running", "to": "queued", "reason": "session_closed"}))
        ]
    );
    let log = world.log(&task).await;
    let worker = &log[log.len() - 2];
    assert_eq!((&worker["actor_kind"], &worker["channel"]), (&json!("system"), &Value::Null));
    let still = world.still(&task).await;
    assert!(world.step().await.is_idle());
    let beat = agent.on(&task, &format!("sessions/{session}/heartbeat"), Value::Null).await;
    assert_eq!(beat.refused(409, "session_closed")["close_reason"], "heartbeat_lost");
    agent.say(&task, &session, "late").await.refused(409, "session_closed");
    agent.on(&task, "sessions", json!({"session_key": "s1"})).await.refused(409, "session_closed");
    world.unmoved(&still).await;
    let next = agent.on(&task, "sessions", json!({"session_key": "s2"})).await;
    assert_eq!(
        (&next.expect(201)["session"]["generation"], &next.body["task"]["status"]),
        (&json!(2), &json!("running"))
    );
}

#[tokio::test]
async fn the_last_session_of_a_cancelled_task_ends_it_even_when_lost() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, first) = world.working(&agent).await;
    let second = agent.open_session(&task, "s2").await;
    let third = agent.open_session(&task, "s3").await;
    world.person("ada").post_nothing(&format!("/agent-tasks/{task}/cancel")).await.expect(200);
    silence(&world, &first).await;
    assert_eq!(world.step().await.lost, 1);
    let before = world.last_seq(&task).await;
    silence(&world, &second).await;
    silence(&world, &third).await;
    assert_eq!(world.step().await.lost, 1);
    let told = world.since(&task, before).await;
    let names: Vec<_> = told.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["session.closed", "session.closed", "state.changed", "outcome.set"]);
    assert_eq!(told[3].1, json!({"outcome": "cancelled_by_human", "reason": "harness_lost", "result": null}));
}

#[tokio::test]
async fn any_accepted_write_that_names_a_session_is_a_sign_of_life() {
    let world = World::new().await;
    let agent = world.agent().await;
    let id = "01890a5d-ac96-774b-bcce-b302099a8057";
    let child = json!({"agent_slug": "reviewer", "title": "c", "description": "d", "idempotency_key": "c"});
    let signs: [(&str, Value); 6] = [
        ("heartbeat", Value::Null),
        ("events", json!({"events": [{"event_id": id, "type": "turn", "payload": {"body": "here"}}]})),
        ("usage", json!({"idempotency_key": "u", "model_id": "sonnet", "tokens_in": 1})),
        ("requests", json!({"kind": "feedback", "title": "?", "request_key": "r"})),
        ("withdraw", json!({})),
        ("children", child),
    ];
    for (path, body) in signs {
        let (task, session) = world.working(&agent).await;
        let request = agent.ask(&task, &[]).await;
        let mut body = body;
        let route = match path {
            "heartbeat" => format!("sessions/{session}/heartbeat"),
            "withdraw" => format!("requests/{request}/withdraw"),
            other => other.to_owned(),
        };
        if body.is_object() {
            body["session_id"] = json!(session);
        }
        // A repeat, which writes nothing, is one too.
        for time in ["first", "again"] {
            silence(&world, &session).await;
            let reply = agent.on(&task, &route, body.clone()).await;
            assert!(reply.status < 300, "{path}: {reply:?}");
            assert!(world.step().await.is_idle(), "{path} {time}");
            assert_eq!(sessions(&world, &task).await[0]["closed_at"], Value::Null, "{path} {time}");
        }
        // What is refused is none, and neither is a write that names no session.
        silence(&world, &session).await;
        let refused = json!({"session_id": session, "events": [{"type": "turn", "payload": {}}]});
        agent.on(&task, "events", refused).await.refused(422, "invalid_body");
        agent.on(&task, "events", json!({"events": [{"type": "turn", "payload": {"body": "x"}}]})).await.expect(201);
        assert_eq!(world.step().await.lost, 1, "{path}");
        world.sound(&task).await;
    }
}

#[tokio::test]
async fn one_session_is_lost_while_another_lives() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, first) = world.working(&agent).await;
    let second = agent.open_session(&task, "s2").await;
    silence(&world, &first).await;
    assert_eq!(world.step().await.lost, 1);
    let rows = sessions(&world, &task).await;
    assert_eq!((&rows[0]["close_reason"], &rows[1]["close_reason"]), (&json!("heartbeat_lost"), &Value::Null));
    agent.say(&task, &second, "still here").await.expect(201);
    let log = world.sound(&task).await;
    assert!(log.iter().filter(|event| event["type"] == "state.changed").count() == 1);
}

/// Silence is judged by one clock, the database's, whatever the server's says.
#[tokio::test]
async fn a_skewed_server_neither_kills_a_session_nor_keeps_a_dead_one() {
    let world = World::new().await;
    for hours in [-1, 1] {
        world.skew_clock(hours * 3_600);
        let (agent, task) = (world.agent().await, world.task().await);
        let session = agent.open_session(&task, "s1").await;
        assert!(world.step().await.is_idle(), "{hours}");
        let counted: bool = sqlx::query_scalar(
            "SELECT heartbeat_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp()
                AND check_at BETWEEN clock_timestamp() AND clock_timestamp() + interval '5 minutes'
             FROM agent_runtime.sessions WHERE closed_at IS NULL",
        )
        .fetch_one(&world.db)
        .await
        .unwrap();
        assert!(counted, "{hours}");
        silence(&world, &session).await;
        assert_eq!(world.step().await.lost, 1, "{hours}");
    }
}

/// A pause kills nothing but a silent session.
#[tokio::test]
async fn a_pause_loses_a_silent_session_and_changes_nothing_else() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    world.person("ada").post_nothing(&format!("/agent-tasks/{task}/pause")).await.expect(200);
    assert!(world.step().await.is_idle());
    let before = world.last_seq(&task).await;
    silence(&world, &session).await;
    assert_eq!(world.step().await.lost, 1);
    let told = world.since(&task, before).await;
    assert_eq!(told.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["session.closed"]);
    let read = world.person("ada").get(&format!("/agent-tasks/{task}")).await;
    assert_eq!((&read.expect(200)["status"], &read.body["control"]), (&json!("paused"), &json!("pause")));
}

/// Either the heartbeat is answered and the session lives, or the session is lost and the heartbeat is refused.
#[tokio::test]
async fn a_heartbeat_and_the_loss_of_its_session_cannot_both_win() {
    let world = World::new().await;
    let beside = World::beside(&world).await;
    let agent = world.agent().await;
    let (mut lived, mut lost) = (0, 0);
    for round in 0..120_u32 {
        let (task, session) = world.working(&agent).await;
        silence(&world, &session).await;
        let beat = async {
            // A head start of up to five reads for one side or the other.
            for _ in 5..round % 11 {
                agent.get(&format!("/agent-tasks/{task}")).await;
            }
            agent.on(&task, &format!("sessions/{session}/heartbeat"), Value::Null).await
        };
        let ends = async {
            for _ in round % 11..5 {
                agent.get(&format!("/agent-tasks/{task}")).await;
            }
            let (one, two) = tokio::join!(world.step(), beside.step());
            assert_eq!((one.failed, two.failed), (0, 0));
            one.lost + two.lost
        };
        let (beat, losses) = tokio::join!(beat, ends);
        let row = &sessions(&world, &task).await[0];
        if beat.status == 200 {
            assert_eq!((losses, &row["closed_at"]), (0, &Value::Null), "lost after its heartbeat was answered");
            agent.say(&task, &session, "alive").await.expect(201);
            lived += 1;
        } else {
            beat.refused(409, "session_closed");
            assert_eq!((losses, &row["close_reason"]), (1, &json!("heartbeat_lost")));
            lost += 1;
        }
        world.sound(&task).await;
        agent.finish(&task).await.expect(200);
    }
    assert!(lived > 0 && lost > 0, "the race was never open: {lived} lived, {lost} were lost");
}

#[tokio::test]
async fn the_time_limit_runs_from_the_first_session_through_blocked_time() {
    let world = World::new().await;
    limit(&world, "task_timeout_seconds", Some(600)).await;
    let (timed, waiting) = (world.task().await, world.task().await);
    // What a task pinned does not move.
    limit(&world, "task_timeout_seconds", None).await;
    let free = world.task().await;
    let agent = world.agent().await;
    let session = agent.open_session(&timed, "s1").await;
    agent.open_session(&free, "s1").await;
    let request = agent.ask(&timed, &[]).await;
    let close = json!({"reason": "waiting"});
    agent.on(&timed, &format!("sessions/{session}/close"), close).await.expect(200);
    world.skew_clock(590);
    let agent = world.agent().await;
    // A later session does not wind it up again.
    let second = agent.open_session(&timed, "s2").await;
    assert_eq!(world.step().await.timed_out, 0);
    world.skew_clock(610);
    let before = world.last_seq(&timed).await;
    let beside = World::beside(&world).await;
    beside.skew_clock(610);
    let (one, two) = tokio::join!(world.step(), beside.step());
    assert_eq!(one.timed_out + two.timed_out, 1);
    assert_eq!((one.failed, two.failed), (0, 0));
    let told = world.since(&timed, before).await;
    let names: Vec<_> = told.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["session.closed", "state.changed", "outcome.set", "request.resolved"]);
    assert_eq!(told[0].1, json!({"session_id": second, "harness_instance": null, "reason": "task_closed"}));
    assert_eq!(told[1].1, json!({"from": "blocked", "to": "closed", "reason": "outcome_set"}));
    assert_eq!(told[2].1, json!({"outcome": "exceeded_ceiling", "reason": "task_timeout", "result": null}));
    assert_eq!((&told[3].1["request_id"], &told[3].1["status"]), (&json!(request), &json!("void")));
    // A task that no session has begun, and one without a limit, go on.
    world.skew_clock(86_400);
    assert_eq!(world.step().await.timed_out, 0);
    for task in [&waiting, &free] {
        let read = world.person("ada").get(&format!("/agent-tasks/{task}")).await;
        assert_ne!(read.expect(200)["status"], "closed");
    }
}

async fn open(agent: &Client, task: &str) -> u16 {
    let reply = agent.on(task, "sessions", json!({"session_key": "k"})).await;
    if reply.status != 201 {
        assert_eq!(reply.refused(409, "concurrency_limit")["limit"], 5);
    }
    reply.status
}

#[tokio::test]
async fn an_agent_works_exactly_as_many_tasks_as_it_may_under_a_race_of_two_servers() {
    let world = World::new().await;
    let beside = World::beside(&world).await;
    let (agent, other) = (world.agent().await, beside.agent().await);
    limit(&world, "max_concurrent_tasks", Some(5)).await;
    for _ in 0..3 {
        let tasks = futures::future::join_all((0..20).map(|_| world.task())).await;
        let calls = tasks.iter().enumerate().map(|(n, task)| open(if n % 2 == 0 { &agent } else { &other }, task));
        let statuses = futures::future::join_all(calls).await;
        assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 5, "{statuses:?}");
        for (task, status) in tasks.iter().zip(statuses) {
            let expected = if status == 201 { 3 } else { 1 };
            assert_eq!(world.sound(task).await.len(), expected, "{task}");
            agent.finish(task).await.expect(200);
        }
    }
}

#[tokio::test]
async fn the_limit_counts_other_tasks_with_an_open_session_and_nothing_else() {
    let world = World::new().await;
    limit(&world, "max_concurrent_tasks", Some(1)).await;
    let agent = world.agent().await;
    let (first, session) = world.working(&agent).await;
    let second = world.task().await;
    let still = world.still(&second).await;
    let body = json!({"session_key": "k"});
    assert_eq!(agent.on(&second, "sessions", body.clone()).await.refused(409, "concurrency_limit")["limit"], 1);
    world.unmoved(&still).await;
    // The task's own sessions do not count against it, nor does the key of an open one.
    agent.open_session(&first, "another").await;
    agent.on(&first, "sessions", json!({"session_key": "s1"})).await.expect(200);
    let takeover = agent.on(&first, "sessions", json!({"session_key": "taken", "takeover": true})).await;
    let third = takeover.expect(201)["session"]["id"].as_str().unwrap().to_owned();
    assert_ne!(third, session);
    agent.on(&second, "sessions", body.clone()).await.refused(409, "concurrency_limit");
    // The limit is that of now, not of the task's creation.
    limit(&world, "max_concurrent_tasks", Some(2)).await;
    agent.on(&second, "sessions", body.clone()).await.expect(201);
    let last = world.task().await;
    agent.on(&last, "sessions", body.clone()).await.refused(409, "concurrency_limit");
    agent.on(&first, &format!("sessions/{third}/close"), json!({"reason": "over"})).await.expect(200);
    agent.on(&last, "sessions", body).await.expect(201);
}
