//! Sessions: keys, generations, takeover, heartbeats, closing.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Client, Seed, World};

const STATE: [&str; 13] = [
    "budget",
    "budget_certain",
    "budget_remaining",
    "control",
    "cost_total",
    "heartbeat_interval_seconds",
    "last_seq",
    "open_requests",
    "outcome",
    "outcome_reason",
    "phase",
    "short_id",
    "status",
];

fn members(value: &Value) -> Vec<&str> {
    let mut names: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

fn route(task: &str, session: &str, verb: &str) -> String {
    format!("/agent-tasks/{task}/sessions/{session}/{verb}")
}

async fn take_over(agent: &Client, task: &str, key: &str) -> String {
    let body = json!({"session_key": key, "takeover": true});
    let reply = agent.post(&format!("/agent-tasks/{task}/sessions"), &body).await;
    reply.expect(201)["session"]["id"].as_str().unwrap().to_owned()
}

async fn session(world: &World, task: &str, id: &str) -> Value {
    let reply = world.person("ada").get(&format!("/agent-tasks/{task}/sessions")).await;
    reply.expect(200).as_array().unwrap().iter().find(|session| session["id"] == id).unwrap().clone()
}

#[tokio::test]
async fn sessions_count_their_generations_and_the_status_follows_them() {
    let world = World::new().await;
    let (agent, task) = (world.agent().await, world.task().await);
    let path = format!("/agent-tasks/{task}/sessions");
    let first = agent.post(&path, &json!({"session_key": "a", "harness_instance": "h-7"})).await;
    let first = first.expect(201).clone();
    assert_eq!(members(&first), ["session", "task"]);
    assert_eq!(members(&first["task"]), STATE);
    assert_eq!(
        members(&first["session"]),
        [
            "close_reason",
            "closed_at",
            "generation",
            "harness_instance",
            "heartbeat_at",
            "id",
            "opened_at",
            "session_key"
        ]
    );
    let opened = &first["session"];
    assert_eq!((&opened["session_key"], &opened["harness_instance"]), (&json!("a"), &json!("h-7")));
    assert_eq!((&opened["generation"], &opened["closed_at"]), (&json!(1), &Value::Null));
    assert_eq!(first["task"]["status"], "running");
    let second = agent.post(&path, &json!({"session_key": "b"})).await;
    assert_eq!(second.expect(201)["session"]["generation"], 2);
    let (first, second) = (opened["id"].as_str().unwrap(), second.body["session"]["id"].as_str().unwrap());
    let closed = agent.post(&route(&task, first, "close"), &json!({"reason": "turn over"})).await;
    assert_eq!(closed.expect(200)["status"], "running");
    let closed = agent.post(&route(&task, second, "close"), &json!({"reason": "waiting_for_reply"})).await;
    assert_eq!(closed.expect(200)["status"], "queued");
    assert_eq!(members(&closed.body), STATE);
    let third = agent.post(&path, &json!({"session_key": "c"})).await;
    assert_eq!(third.expect(201)["session"]["generation"], 3);
    let log = world.sound(&task).await;
    let told: Vec<_> = log[1..].iter().map(|event| (event["type"].as_str().unwrap(), &event["payload"])).collect();
    let names: Vec<_> = told.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names,
        [
            "session.opened",
            "state.changed",
            "session.opened",
            "session.closed",
            "session.closed",
            "state.changed",
            "session.opened",
            "state.changed"
        ]
    );
    let expected = json!({"session_id": first, "session_key": "a", "harness_instance": "h-7", "generation": 1,
        "takeover": false});
    assert_eq!(told[0].1, &expected);
    assert_eq!(told[1].1, &json!({"from": "queued", "to": "running", "reason": "session_opened"}));
    assert_eq!(told[3].1, &json!({"session_id": first, "harness_instance": "h-7", "reason": "turn over"}));
    assert_eq!(told[5].1, &json!({"from": "running", "to": "queued", "reason": "session_closed"}));
    assert_eq!((&log[1]["actor_kind"], &log[1]["channel"]), (&json!("agent"), &json!("harness")));
    assert_eq!((&log[1]["session_id"], &log[4]["session_id"]), (&json!(first), &json!(first)));
}

#[tokio::test]
async fn a_session_key_repeats_while_open_and_is_spent_afterwards() {
    let world = World::new().await;
    let (agent, task) = (world.agent().await, world.task().await);
    let path = format!("/agent-tasks/{task}/sessions");
    let body = json!({"session_key": "k", "harness_instance": "h"});
    let first = agent.post(&path, &body).await;
    let id = first.expect(201)["session"]["id"].as_str().unwrap().to_owned();
    assert!(!first.is_replayed());
    let before = world.still(&task).await;
    let again = agent.post(&path, &body).await;
    assert_eq!(again.expect(200)["session"]["id"], id.as_str());
    assert!(again.is_replayed());
    assert_eq!(again.header("idempotency-body-match"), None);
    let other = agent.post(&path, &json!({"session_key": "k", "takeover": true})).await;
    assert_eq!(other.expect(200)["session"]["id"], id.as_str());
    assert_eq!(other.header("idempotency-body-match"), Some("false"));
    world.unmoved(&before).await;
    // The key is unique per task only.
    agent.open_session(&world.task().await, "k").await;
    agent.post(&route(&task, &id, "close"), &json!({"reason": "done"})).await.expect(200);
    let before = world.still(&task).await;
    let spent = agent.post(&path, &body).await;
    spent.refused(409, "session_closed");
    assert_eq!(
        (&spent.body["close_reason"], &spent.body["outcome"], &spent.body["last_seq"]),
        (&json!("done"), &Value::Null, &json!(5))
    );
    world.unmoved(&before).await;
    for bad in [json!({}), json!({"session_key": ""}), json!({"session_key": "x".repeat(201)})] {
        agent.post(&path, &bad).await.refused(422, "invalid_body");
    }
    world.unmoved(&before).await;
    agent.open_session(&task, &"x".repeat(200)).await;
}

#[tokio::test]
async fn twenty_opens_with_one_key_over_two_servers_make_one_session() {
    let world = World::new().await;
    let beside = World::beside(&world).await;
    let (agent, other, task) = (world.agent().await, beside.agent().await, world.task().await);
    let path = format!("/agent-tasks/{task}/sessions");
    let body = json!({"session_key": "one"});
    let calls = (0..20).map(|n| if n % 2 == 0 { agent.post(&path, &body) } else { other.post(&path, &body) });
    let replies = futures::future::join_all(calls).await;
    let first = replies[0].body["session"]["id"].clone();
    assert!(replies.iter().all(|reply| reply.body["session"]["id"] == first && reply.status < 300));
    assert_eq!(replies.iter().filter(|reply| reply.status == 201).count(), 1);
    assert_eq!(replies.iter().filter(|reply| reply.is_replayed()).count(), 19);
    assert_eq!(world.types(&task).await, ["task.created", "session.opened", "state.changed"]);
}

#[tokio::test]
async fn a_takeover_supersedes_the_others_whose_spending_and_effects_are_still_kept() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, first) = world.working(&agent).await;
    let second = agent.open_session(&task, "s2").await;
    let before = world.last_seq(&task).await;
    let third = take_over(&agent, &task, "s3").await;
    let told = world.since(&task, before).await;
    assert_eq!(
        told.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["session.closed", "session.closed", "session.opened"]
    );
    for ((_, payload), id) in told.iter().zip([&first, &second]) {
        assert_eq!(payload, &json!({"session_id": id, "harness_instance": null, "reason": "superseded"}));
    }
    assert_eq!((&told[2].1["generation"], &told[2].1["takeover"]), (&json!(3), &json!(true)));
    let ask = json!({"kind": "feedback", "title": "Which?", "session_id": third});
    let asked = agent.post(&format!("/agent-tasks/{task}/requests"), &ask).await;
    let request = asked.expect(201)["request"]["id"].as_str().unwrap().to_owned();

    let (still, living) = (world.still(&task).await, session(&world, &task, &third).await);
    let turn = json!({"type": "turn", "payload": {"body": "late"}});
    let effect = json!({"type": "tool.called", "payload": {"tool": "push", "mutating": true}});
    for (path, body) in [
        ("events", json!({"session_id": first, "events": [turn]})),
        ("events", json!({"session_id": first, "events": [effect, turn]})),
        ("requests", json!({"session_id": first, "kind": "feedback", "title": "?"})),
        (&format!("requests/{request}/withdraw"), json!({"session_id": first})),
        ("outcome", json!({"session_id": first, "outcome": "done_acted"})),
        (&format!("sessions/{first}/close"), json!({"reason": "over"})),
        (&format!("sessions/{first}/heartbeat"), Value::Null),
    ] {
        let refusal = agent.on(&task, path, body).await;
        refusal.refused(409, "session_superseded");
        assert_eq!(
            (&refusal.body["outcome"], &refusal.body["last_seq"]),
            (&Value::Null, &still_seq(&world, &task).await)
        );
    }
    let spent = agent.on(&task, "sessions", json!({"session_key": "s1"})).await;
    assert_eq!(spent.refused(409, "session_closed")["close_reason"], "superseded");
    world.unmoved(&still).await;
    let usage = json!({"session_id": first, "idempotency_key": "u", "model_id": "sonnet", "tokens_in": 8});
    assert_eq!(agent.on(&task, "usage", usage).await.expect(201)["cost"], "0.00001");
    let kept = agent.on(&task, "events", json!({"session_id": second, "events": [effect]})).await;
    assert_eq!(kept.expect(201)["written"][0]["session_id"], second.as_str());
    // The session that took over lives on, and so does the task.
    assert_eq!(session(&world, &task, &third).await, living);
    assert_eq!(agent.say(&task, &third, "mine").await.status, 201);
    world.sound(&task).await;
}

async fn still_seq(world: &World, task: &str) -> Value {
    world.last_seq(task).await.into()
}

#[tokio::test]
async fn a_session_is_named_once_one_was_taken_over_and_only_then() {
    let world = World::new().await;
    let (agent, task) = (world.agent().await, world.task().await);
    let first = take_over(&agent, &task, "s1").await;
    let turn = json!({"events": [{"type": "turn", "payload": {"body": "hello"}}]});
    let events = format!("/agent-tasks/{task}/events");
    // Nobody was there to be taken over.
    agent.post(&events, &turn).await.expect(201);
    let second = take_over(&agent, &task, "s2").await;
    let still = world.still(&task).await;
    for (path, body) in [
        ("events", turn.clone()),
        ("events", json!({"events": [{"type": "tool.called", "payload": {"tool": "t", "mutating": false}}]})),
        ("usage", json!({"idempotency_key": "u", "model_id": "sonnet", "tokens_in": 1})),
        ("requests", json!({"kind": "feedback", "title": "?"})),
        ("outcome", json!({"outcome": "done_acted"})),
    ] {
        let refusal = agent.on(&task, path, body).await;
        refusal.refused(422, "session_required");
        assert_eq!(refusal.body["errors"][0]["pointer"], "/session_id");
    }
    world.unmoved(&still).await;
    // It stays so when the session that took over is gone.
    agent.post(&route(&task, &second, "close"), &json!({"reason": "over"})).await.expect(200);
    agent.post(&events, &turn).await.refused(422, "session_required");
    let (_, third) = (first, agent.open_session(&task, "s3").await);
    agent.say(&task, &third, "named").await.expect(201);
    // Of this task, that is.
    let (_, foreign) = world.working(&agent).await;
    let refusal = agent.say(&task, &foreign, "strange").await;
    assert_eq!(refusal.refused(422, "invalid_body")["errors"][0]["pointer"], "/session_id");
}

/// The task's row and its sessions are read one after the other: what another process writes in between must not make a
/// refusal of two moments.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_call_that_meets_the_close_in_another_process_is_told_of_the_outcome() {
    let world = World::new().await;
    let beside = World::beside(&world).await;
    let (agent, elsewhere) = (world.agent().await, beside.agent().await);
    for _ in 0..60 {
        let (task, id) = world.working(&agent).await;
        let (said, finished) = tokio::join!(agent.say(&task, &id, "Am I in time?"), elsewhere.finish(&task));
        finished.expect(200);
        if said.status != 201 {
            assert_eq!(said.refused(409, "task_closed")["outcome"], "done_acted");
        }
    }
}

/// A harness that starts again repeats what it is not sure of, and lives.
#[tokio::test]
async fn a_repeat_that_names_a_session_is_a_sign_of_life_too() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let id = agent.open_session(&task, "s").await;
    let event = json!({"event_id": Uuid::now_v7(), "type": "turn", "payload": {"body": "Once."}});
    let calls = [
        ("sessions", json!({"session_key": "s"})),
        ("events", json!({"session_id": id, "events": [event]})),
        ("usage", json!({"session_id": id, "idempotency_key": "k", "model_id": "sonnet", "tokens_in": 1})),
        ("requests", json!({"session_id": id, "request_key": "k", "kind": "feedback", "title": "?"})),
    ];
    for (path, body) in &calls {
        let status = agent.on(&task, path, body.clone()).await.status;
        assert!([200, 201].contains(&status), "{path}: {status}");
    }
    let still = world.still(&task).await;
    for (path, body) in calls {
        let before = session(&world, &task, &id).await["heartbeat_at"].clone();
        agent.on(&task, path, body).await.expect(200);
        let after = session(&world, &task, &id).await["heartbeat_at"].clone();
        assert!(after.as_str() > before.as_str(), "{path}: {after} after {before}");
        world.unmoved(&still).await;
    }
    // Nothing reopens.
    agent.on(&task, &format!("sessions/{id}/close"), json!({"reason": "done"})).await.expect(200);
    let closed = session(&world, &task, &id).await;
    let repeat = json!({"session_id": id, "idempotency_key": "k", "model_id": "sonnet", "tokens_in": 1});
    agent.on(&task, "usage", repeat).await.expect(200);
    assert_eq!(session(&world, &task, &id).await, closed);
}

#[tokio::test]
async fn a_heartbeat_tells_the_state_and_moves_nothing_but_itself() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task_with(json!({"budget": "2"})).await;
    let id = agent.open_session(&task, "s").await;
    let still = world.still(&task).await;
    let opened = session(&world, &task, &id).await;
    let beat = agent.post_nothing(&route(&task, &id, "heartbeat")).await;
    let expected = json!({"short_id": task, "status": "running", "control": "run", "phase": null, "outcome": null,
        "outcome_reason": null, "last_seq": 3, "budget": "2", "cost_total": "0", "budget_remaining": "2",
        "budget_certain": true, "open_requests": 0, "heartbeat_interval_seconds": 30});
    assert_eq!(beat.expect(200), &expected);
    agent.post(&route(&task, &id, "heartbeat"), &Value::Null).await.expect(200);
    let mut later = session(&world, &task, &id).await;
    let moved = later["heartbeat_at"].take();
    assert!(moved.as_str() > opened["heartbeat_at"].as_str(), "{moved} after {opened}");
    let mut opened = opened;
    opened["heartbeat_at"] = Value::Null;
    assert_eq!(later, opened);
    world.unmoved(&still).await;
    world.person("ada").post_nothing(&format!("/agent-tasks/{task}/pause")).await.expect(200);
    let beat = agent.post_nothing(&route(&task, &id, "heartbeat")).await;
    assert_eq!((&beat.expect(200)["control"], &beat.body["status"]), (&json!("pause"), &json!("paused")));
}

#[tokio::test]
async fn a_heartbeat_reopens_neither_a_session_nor_a_task() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, first) = world.working(&agent).await;
    let (_, foreign) = world.working(&agent).await;
    let last = take_over(&agent, &task, "s2").await;
    let over = agent.open_session(&task, "s3").await;
    agent.post(&route(&task, &over, "close"), &json!({"reason": "over"})).await.expect(200);
    let still = world.still(&task).await;
    let refusal = agent.post_nothing(&route(&task, &over, "heartbeat")).await;
    refusal.refused(409, "session_closed");
    let last_seq = still_seq(&world, &task).await;
    assert_eq!((&refusal.body["outcome"], &refusal.body["last_seq"]), (&Value::Null, &last_seq));
    for unknown in [foreign.as_str(), "01890a5d-ac96-774b-bcce-b302099a8057", "nonsense"] {
        agent.post_nothing(&route(&task, unknown, "heartbeat")).await.refused(404, "session_not_found");
        let body = json!({"reason": "over"});
        agent.post(&route(&task, unknown, "close"), &body).await.refused(404, "session_not_found");
    }
    world.unmoved(&still).await;
    let ending = json!({"outcome": "partial_capped", "reason": "turn_cap", "session_id": last});
    agent.on(&task, "outcome", ending).await.expect(200);
    let still = world.still(&task).await;
    let last_seq = still_seq(&world, &task).await;
    // The task's end ranks before that of the session, also for one that was superseded.
    for id in [&first, &last, &over] {
        let refusal = agent.post_nothing(&route(&task, id, "heartbeat")).await;
        refusal.refused(409, "task_closed");
        assert_eq!(refusal.body["outcome"], "partial_capped");
        assert_eq!((&refusal.body["outcome_reason"], &refusal.body["last_seq"]), (&json!("turn_cap"), &last_seq));
    }
    for id in [&last, &over] {
        let closed = agent.post(&route(&task, id, "close"), &json!({"reason": "again"})).await;
        assert_eq!(closed.expect(200)["outcome"], "partial_capped");
    }
    let refusal = agent.post(&route(&task, &first, "close"), &json!({"reason": "again"})).await;
    assert_eq!(refusal.refused(409, "session_superseded")["outcome"], "partial_capped");
    world.unmoved(&still).await;
}

#[tokio::test]
async fn a_session_closes_once_and_for_a_reason_of_its_own() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, id) = world.working(&agent).await;
    let still = world.still(&task).await;
    for reason in [json!("task_closed"), json!("heartbeat_lost"), json!("superseded"), json!(""), json!(1), Value::Null]
    {
        let refusal = agent.post(&route(&task, &id, "close"), &json!({"reason": reason})).await;
        assert_eq!(refusal.refused(422, "invalid_body")["errors"][0]["pointer"], "/reason");
    }
    world.unmoved(&still).await;
    agent.post(&route(&task, &id, "close"), &json!({"reason": "first"})).await.expect(200);
    let still = world.still(&task).await;
    for body in [json!({"reason": "second"}), json!({"reason": "superseded"}), json!({})] {
        assert_eq!(agent.post(&route(&task, &id, "close"), &body).await.expect(200)["status"], "queued");
    }
    world.unmoved(&still).await;
    assert_eq!(session(&world, &task, &id).await["close_reason"], "first");
}

#[tokio::test]
async fn a_session_opens_while_paused_or_blocked_and_not_under_a_cancel_or_after_the_end() {
    let world = World::new().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let (task, _) = world.working(&agent).await;
    let path = format!("/agent-tasks/{task}/sessions");
    agent.ask(&task, &[]).await;
    let blocked = agent.post(&path, &json!({"session_key": "blocked"})).await;
    assert_eq!(blocked.expect(201)["task"]["status"], "blocked");
    ada.post_nothing(&format!("/agent-tasks/{task}/pause")).await.expect(200);
    let paused = agent.post(&path, &json!({"session_key": "paused"})).await;
    assert_eq!(paused.expect(201)["task"]["status"], "paused");
    ada.post_nothing(&format!("/agent-tasks/{task}/cancel")).await.expect(200);
    let still = world.still(&task).await;
    for key in ["new", "paused"] {
        let takeover = json!({"session_key": key, "takeover": true});
        agent.post(&path, &takeover).await.refused(409, "task_cancelled");
    }
    world.unmoved(&still).await;
    let seen = json!({"outcome": "cancelled_by_human", "reason": "cancel_seen"});
    agent.on(&task, "outcome", seen).await.expect(200);
    let still = world.still(&task).await;
    for key in ["new", "paused"] {
        let refusal = agent.post(&path, &json!({"session_key": key})).await;
        assert_eq!(refusal.refused(409, "task_closed")["outcome"], "cancelled_by_human");
    }
    world.unmoved(&still).await;
}

#[tokio::test]
async fn only_the_account_of_the_tasks_agent_works_it() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, id) = world.working(&agent).await;
    let second = Seed::agent(&world.db, world.seed.organization_id, "writer").await;
    let stranger = world.account(&second.client_id, &second.client_secret).await;
    let trigger = world.account(&world.seed.trigger_client_id, &world.seed.trigger_client_secret).await;
    let still = world.still(&task).await;
    for caller in [world.person("ada"), world.person("oscar"), world.person("vera"), stranger, trigger] {
        for (path, body) in [
            ("sessions".to_owned(), json!({"session_key": "x"})),
            (format!("sessions/{id}/heartbeat"), Value::Null),
            (format!("sessions/{id}/close"), json!({"reason": "over"})),
            ("events".to_owned(), json!({"events": [{"type": "turn", "payload": {"body": "x"}}]})),
            ("requests".to_owned(), json!({"kind": "feedback", "title": "?"})),
            ("outcome".to_owned(), json!({"outcome": "done_acted"})),
        ] {
            caller.on(&task, &path, body).await.refused(403, "agent_task_forbidden");
        }
    }
    world.unmoved(&still).await;
}

#[tokio::test]
async fn a_new_session_inherits_what_the_task_has_spent() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task_with(json!({"budget": "1.00"})).await;
    let id = agent.open_session(&task, "s1").await;
    // 90,000 output tokens at 10 per million.
    assert_eq!(agent.spend(&task, "u1", 0, 90_000).await.expect(201)["cost"], "0.9");
    agent.post(&route(&task, &id, "close"), &json!({"reason": "over"})).await.expect(200);
    let opened = agent.post(&format!("/agent-tasks/{task}/sessions"), &json!({"session_key": "s2"})).await;
    let state = &opened.expect(201)["task"];
    assert_eq!(
        (&state["budget"], &state["cost_total"], &state["budget_remaining"]),
        (&json!("1"), &json!("0.9"), &json!("0.1"))
    );
}
