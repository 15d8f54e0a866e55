//! What people want of a task: pause, resume, cancel, reassign. Replies have a file of their own.

use serde_json::{Value, json};

use crate::support::{Client, World};

/// The states in which a control call may meet a task.
const STATES: [&str; 9] = [
    "queued",
    "running",
    "blocked",
    "blocked without a session",
    "paused",
    "paused without a session",
    "cancelling",
    "cancelling and blocked",
    "closed",
];

async fn in_state(world: &World, agent: &Client, state: &str) -> String {
    let ada = world.person("ada");
    let task = world.task().await;
    let control = async |verb: &str| {
        ada.post_nothing(&format!("/agent-tasks/{task}/{verb}")).await.expect(200);
    };
    if !["queued", "blocked without a session", "paused without a session"].contains(&state) {
        agent.open_session(&task, "s1").await;
    }
    if state.contains("blocked") {
        agent.ask(&task, &[]).await;
    }
    if state.starts_with("paused") {
        control("pause").await;
    }
    if state.starts_with("cancelling") {
        control("cancel").await;
    }
    if state == "closed" {
        agent.finish(&task).await.expect(200);
    }
    task
}

/// What a call writes in a state, or the code of its refusal. A change of status is written `from→to`.
fn expected(state: &str, call: &str) -> Result<Vec<String>, &'static str> {
    let (status, alone) = match state {
        "queued" => ("queued", true),
        "running" | "cancelling" => ("running", false),
        "blocked" | "cancelling and blocked" => ("blocked", false),
        "blocked without a session" => ("blocked", true),
        "paused" => ("paused", false),
        "paused without a session" => ("paused", true),
        _ => return Err("task_closed"),
    };
    let cancelling = state.starts_with("cancelling");
    let asks = state.contains("blocked");
    let below = if alone { "queued" } else { "running" };
    let changed = |from: &str, to: &str| vec!["control.changed".to_owned(), format!("{from}→{to}")];
    let closing = |mut events: Vec<String>| {
        if !alone {
            events.push("session.closed".to_owned());
        }
        events.push(format!("{status}→closed"));
        events.push("outcome.set".to_owned());
        if asks {
            events.push("request.resolved".to_owned());
        }
        events
    };
    let turn = vec!["turn".to_owned()];
    Ok(match call {
        "pause" | "resume" | "hold" if cancelling => return Err("cancel_pending"),
        "pause" if status == "paused" => vec![],
        "pause" => changed(status, "paused"),
        "resume" if status == "paused" => changed("paused", below),
        "resume" => vec![],
        "cancel" if cancelling => vec![],
        "force" if cancelling => closing(vec![]),
        "cancel" | "force" if alone => closing(vec!["control.changed".to_owned()]),
        "cancel" | "force" if status == "paused" => changed("paused", below),
        "cancel" | "force" => vec!["control.changed".to_owned()],
        "reassign" => vec!["owner.changed".to_owned()],
        "hold" if status != "paused" => [turn, changed(status, "paused")].concat(),
        _ => turn,
    })
}

async fn call(person: &Client, task: &str, call: &str) -> crate::support::Reply {
    match call {
        "force" => person.on(task, "cancel", json!({"force": true})).await,
        "reassign" => person.on(task, "reassign", json!({"owner": "vera"})).await,
        "reply" => person.on(task, "reply", json!({"body": "Hello."})).await,
        "hold" => person.on(task, "reply", json!({"body": "Stop.", "hold": true})).await,
        verb => person.on(task, verb, json!({})).await,
    }
}

#[tokio::test]
async fn every_control_call_does_what_the_status_allows_and_no_more() {
    let world = World::new().await;
    let agent = world.agent().await;
    let oscar = world.person("oscar");
    for state in STATES {
        for verb in ["pause", "resume", "cancel", "force", "reassign", "reply", "hold"] {
            let task = in_state(&world, &agent, state).await;
            let still = world.still(&task).await;
            let before = world.last_seq(&task).await;
            let reply = call(&oscar, &task, verb).await;
            let events = match expected(state, verb) {
                Err(code) => {
                    reply.refused(409, code);
                    let status = state.replace("cancelling and ", "").replace("cancelling", "running");
                    assert_eq!(reply.body["task_status"], status, "{verb} while {state}");
                    world.unmoved(&still).await;
                    continue;
                }
                Ok(events) => events,
            };
            reply.expect(200);
            let told = world.since(&task, before).await;
            let told: Vec<_> = told
                .iter()
                .map(|(name, payload)| match name.as_str() {
                    "state.changed" => {
                        format!("{}→{}", payload["from"].as_str().unwrap(), payload["to"].as_str().unwrap())
                    }
                    other => other.to_owned(),
                })
                .collect();
            assert_eq!(told, events, "{verb} while {state}");
            // The answer is the task as it is now.
            assert_eq!(&reply.body, oscar.get(&format!("/agent-tasks/{task}")).await.expect(200));
            if events.is_empty() {
                world.unmoved(&still).await;
            }
        }
    }
}

#[tokio::test]
async fn a_change_of_control_says_who_wanted_what_and_why() {
    let world = World::new().await;
    let (agent, oscar) = (world.agent().await, world.person("oscar"));
    let ada = world.person_claiming("Ada", json!({"channel": "slack"}));
    let (task, _) = world.working(&agent).await;
    let before = world.last_seq(&task).await;
    ada.on(&task, "pause", json!({"reason": "lunch", "actor": "vera", "actor_id": "vera"})).await.expect(200);
    oscar.on(&task, "resume", json!({"reason": null})).await.expect(200);
    let cancelled = oscar.post_nothing(&format!("/agent-tasks/{task}/cancel")).await;
    assert_eq!((&cancelled.expect(200)["status"], &cancelled.body["control"]), (&json!("running"), &json!("cancel")));
    let told = world.since(&task, before).await;
    let told: Vec<_> = told.into_iter().map(|(_, payload)| payload).collect();
    assert_eq!(
        told,
        [
            json!({"from": "run", "to": "pause", "actor": "ada", "reason": "lunch"}),
            json!({"from": "running", "to": "paused", "reason": "control_changed"}),
            json!({"from": "pause", "to": "run", "actor": "oscar", "reason": null}),
            json!({"from": "paused", "to": "running", "reason": "control_changed"}),
            json!({"from": "run", "to": "cancel", "actor": "oscar", "reason": null}),
        ]
    );
    let log = world.log(&task).await;
    let first = &log[usize::try_from(before).unwrap()];
    assert_eq!((&first["actor_kind"], &first["actor_id"]), (&json!("human"), &json!("ada")));
    assert_eq!((&first["channel"], &log.last().unwrap()["channel"]), (&json!("slack"), &json!("api")));
}

#[tokio::test]
async fn control_belongs_to_people_who_manage() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, _) = world.working(&agent).await;
    let trigger = world.account(&world.seed.trigger_client_id, &world.seed.trigger_client_secret).await;
    let still = world.still(&task).await;
    for verb in ["pause", "resume", "cancel", "reassign", "reply"] {
        for caller in [world.person("vera"), world.person("abe"), agent.clone(), trigger.clone()] {
            let refusal = call(&caller, &task, verb).await;
            assert_eq!(refusal.refused(403, "permission_denied")["permission"], "agent_task:manage");
        }
        call(&world.person("mallory"), &task, verb).await.refused(403, "organization_forbidden");
        call(&world.anyone(), &task, verb).await.refused(401, "unauthenticated");
        call(&world.person("oscar"), "T-404", verb).await.refused(404, "task_not_found");
        let bad = world.person("oscar").on(&task, verb, json!({"reason": 1, "owner": 1, "body": 1})).await;
        bad.refused(422, "invalid_body");
        let raw = world.person("oscar").post_raw(&format!("/agent-tasks/{task}/{verb}"), "{").await;
        raw.refused(400, "invalid_json");
    }
    let long = json!({"reason": "x".repeat(1_001)});
    let refusal = world.person("oscar").on(&task, "pause", long).await;
    assert_eq!(refusal.refused(422, "invalid_body")["errors"][0]["pointer"], "/reason");
    world.person("oscar").on(&task, "cancel", json!({"force": "yes"})).await.refused(422, "invalid_body");
    world.unmoved(&still).await;
    // In any letter case, and for the administrator too.
    let lower = task.to_lowercase();
    world.person("ada").on(&lower, "pause", json!({"reason": "x".repeat(1_000)})).await.expect(200);
}

#[tokio::test]
async fn the_owner_is_a_member_and_the_same_one_again_writes_nothing() {
    let world = World::new().await;
    let oscar = world.person("oscar");
    let task = world.task().await;
    let still = world.still(&task).await;
    oscar.on(&task, "reassign", json!({"owner": "Ada"})).await.expect(200);
    let refusal = oscar.on(&task, "reassign", json!({"owner": "mallory"})).await;
    assert_eq!(refusal.refused(422, "owner_not_member")["errors"][0]["pointer"], "/owner");
    for body in [json!({}), json!({"owner": null}), json!({"owner": ""})] {
        oscar.on(&task, "reassign", body).await.refused(422, "invalid_body");
    }
    world.unmoved(&still).await;
    let moved = oscar.on(&task, "reassign", json!({"owner": "Vera"})).await;
    assert_eq!(moved.expect(200)["owner"], "vera");
    assert_eq!(world.since(&task, 1).await, [("owner.changed".to_owned(), json!({"from": "ada", "to": "vera"}))]);
}

#[tokio::test]
async fn a_pause_lets_the_turn_in_flight_report_and_ask_and_end() {
    let world = World::new().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let (task, session) = world.working(&agent).await;
    ada.on(&task, "pause", json!({})).await.expect(200);
    agent.say(&task, &session, "in flight").await.expect(201);
    agent.spend(&task, "u1", 1, 1).await.expect(201);
    let asked = agent.on(&task, "requests", json!({"kind": "feedback", "title": "?", "session_id": session})).await;
    let state = &asked.expect(201)["task"];
    assert_eq!((&state["status"], &state["open_requests"]), (&json!("paused"), &json!(1)));
    // Resuming shows what was hidden: the open request.
    assert_eq!(ada.on(&task, "resume", json!({})).await.expect(200)["status"], "blocked");
    ada.on(&task, "pause", json!({})).await.expect(200);
    let ended = agent.on(&task, "outcome", json!({"outcome": "done_acted", "session_id": session})).await;
    assert_eq!(ended.expect(200)["status"], "closed");
    assert_eq!(ended.body["control"], "pause");
    world.sound(&task).await;
}

#[tokio::test]
async fn under_a_cancel_what_happened_is_told_and_nothing_new_begins() {
    let world = World::new().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let (task, session) = world.working(&agent).await;
    let (first, second) = (agent.ask(&task, &["yes", "no"]).await, agent.ask(&task, &[]).await);
    ada.on(&task, "cancel", json!({})).await.expect(200);
    let still = world.still(&task).await;
    agent.on(&task, "requests", json!({"kind": "feedback", "title": "?"})).await.refused(409, "task_cancelled");
    agent.on(&task, "sessions", json!({"session_key": "s2"})).await.refused(409, "task_cancelled");
    world.unmoved(&still).await;
    agent.say(&task, &session, "in flight").await.expect(201);
    agent.spend(&task, "u1", 1, 1).await.expect(201);
    let answer = json!({"status": "answered", "choice": "no"});
    ada.on(&task, &format!("requests/{first}/resolve"), answer).await.expect(201);
    agent.on(&task, &format!("requests/{second}/withdraw"), json!({})).await.expect(200);
    let ended = agent.on(&task, "outcome", json!({"outcome": "done_acted"})).await;
    assert_eq!((&ended.expect(200)["outcome"], &ended.body["control"]), (&json!("done_acted"), &json!("cancel")));
    world.sound(&task).await;
}

#[tokio::test]
async fn a_cancelled_task_closes_when_its_last_session_ends_without_an_outcome() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, first) = world.working(&agent).await;
    let second = agent.open_session(&task, "s2").await;
    let request = agent.ask(&task, &[]).await;
    world.person("ada").on(&task, "cancel", json!({"reason": "enough"})).await.expect(200);
    let close =
        async |session: &str| agent.on(&task, &format!("sessions/{session}/close"), json!({"reason": "over"})).await;
    let state = close(&first).await;
    assert_eq!((&state.expect(200)["status"], &state.body["outcome"]), (&json!("blocked"), &Value::Null));
    let before = world.last_seq(&task).await;
    let state = close(&second).await;
    assert_eq!(
        (&state.expect(200)["status"], &state.body["outcome_reason"]),
        (&json!("closed"), &json!("cancel_seen"))
    );
    let told = world.since(&task, before).await;
    let names: Vec<_> = told.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["session.closed", "state.changed", "outcome.set", "request.resolved"]);
    assert_eq!(told[0].1["reason"], "over");
    assert_eq!(told[1].1, json!({"from": "blocked", "to": "closed", "reason": "outcome_set"}));
    assert_eq!(told[2].1, json!({"outcome": "cancelled_by_human", "reason": "cancel_seen", "result": null}));
    assert_eq!((&told[3].1["request_id"], &told[3].1["status"]), (&json!(request), &json!("void")));
    // The harness that was slower than its own close is told the same.
    let seen = json!({"outcome": "cancelled_by_human", "reason": "cancel_seen", "session_id": second});
    agent.on(&task, "outcome", seen).await.expect(200);
}

#[tokio::test]
async fn a_cancel_without_a_session_and_a_forced_one_end_the_task_by_themselves() {
    let world = World::new().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let idle = world.task().await;
    let closed = ada.on(&idle, "cancel", json!({"force": true})).await;
    assert_eq!(
        (&closed.expect(200)["outcome"], &closed.body["control"]),
        (&json!("cancelled_by_human"), &json!("cancel"))
    );
    assert_eq!(closed.body["outcome_reason"], "cancelled_without_session");
    let (task, _) = world.working(&agent).await;
    // A force on the first cancel is ignored.
    let first = ada.on(&task, "cancel", json!({"force": true})).await;
    assert_eq!((&first.expect(200)["status"], &first.body["outcome"]), (&json!("running"), &Value::Null));
    let before = world.last_seq(&task).await;
    let second = ada.on(&task, "cancel", json!({"force": true, "reason": "it hangs"})).await;
    assert_eq!(
        (&second.expect(200)["outcome"], &second.body["control"]),
        (&json!("interrupted_by_operator"), &json!("cancel"))
    );
    let told = world.since(&task, before).await;
    assert_eq!(told[0].1["reason"], "task_closed");
    assert_eq!(
        told[2].1,
        json!({"outcome": "interrupted_by_operator", "reason": "forced_unconfirmed", "result": null})
    );
    // A third one finds the task closed.
    let third = ada.on(&task, "cancel", json!({"force": true})).await;
    assert_eq!(third.refused(409, "task_closed")["outcome_reason"], "forced_unconfirmed");
}
