//! Outcomes: the table, the closing, and what still may follow.

use serde_json::{Value, json};

use crate::support::{Client, Reply, World};

/// The contract's table, written out again; an asterisk marks what only the server gives.
const TABLE: [(&str, &[&str]); 15] = [
    ("done_acted", &[]),
    ("done_nothing_to_act_on", &["already_satisfied", "no_findings", "condition_cleared"]),
    ("no_reason_to_run", &["precondition_not_met", "subject_gone", "disabled_by_policy"]),
    ("partial_capped", &["turn_cap", "time_cap", "scope_cap", "tool_cap"]),
    ("suppressed_duplicate", &["same_subject_open", "same_subject_recent", "same_trigger"]),
    ("superseded", &["newer_task", "newer_trigger", "replaced_by_operator"]),
    ("cancelled_by_human", &["cancel_seen", "*cancelled_without_session", "*harness_lost"]),
    ("interrupted_by_operator", &["harness_drain", "deploy", "*forced_unconfirmed", "*emergency_stop"]),
    (
        "failed_at_gate",
        &["approval_rejected", "check_failed", "policy_denied", "capability_missing", "read_only_violation"],
    ),
    (
        "failed_external",
        &["dependency_unavailable", "provider_error", "tool_error", "credentials_rejected", "internal_error"],
    ),
    ("unmapped_subject", &["no_project", "no_repository", "unknown_subject"]),
    ("exceeded_ceiling", &["*budget", "*task_timeout", "turn_limit", "token_limit"]),
    ("unhandled_no_actor", &["no_harness", "agent_disabled", "*agent_deleted", "no_owner"]),
    ("request_expired", &["*feedback_expired", "*approval_expired"]),
    ("refused_rate_ceiling", &["org_rate", "agent_rate", "trigger_rate"]),
];

async fn claim(agent: &Client, task: &str, outcome: &str, reason: Option<&str>) -> Reply {
    agent.on(task, "outcome", json!({"outcome": outcome, "reason": reason})).await
}

#[tokio::test]
async fn every_pair_that_a_harness_may_give_closes_the_task_with_it() {
    let world = World::new().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let mut pairs = vec![("done_acted", None)];
    for (outcome, reasons) in TABLE {
        let given = reasons.iter().filter(|reason| !reason.starts_with('*'));
        pairs.extend(given.map(|reason| (outcome, Some(*reason))));
    }
    assert_eq!(pairs.len(), 41);
    for (outcome, reason) in pairs {
        let (task, _) = world.working(&agent).await;
        if outcome == "cancelled_by_human" {
            ada.on(&task, "cancel", json!({})).await.expect(200);
        }
        let closed = claim(&agent, &task, outcome, reason).await;
        assert_eq!(closed.expect(200)["status"], "closed");
        assert_eq!((&closed.body["outcome"], &closed.body["outcome_reason"]), (&json!(outcome), &json!(reason)));
        let log = world.sound(&task).await;
        assert_eq!(log.last().unwrap()["payload"], json!({"outcome": outcome, "reason": reason, "result": null}));
        let read = ada.get(&format!("/agent-tasks/{task}")).await;
        assert_eq!(read.expect(200)["closed_at"], log.last().unwrap()["recorded_at"]);
    }
}

#[tokio::test]
async fn a_harness_gives_no_reason_of_the_servers_and_none_of_another_outcome() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, _) = world.working(&agent).await;
    // Under a cancel, so that nothing is refused for the lack of one.
    world.person("ada").on(&task, "cancel", json!({})).await.expect(200);
    let still = world.still(&task).await;
    let all: Vec<_> = TABLE.iter().flat_map(|(_, reasons)| reasons.iter().copied()).collect();
    let mut reserved = 0;
    for (outcome, own) in TABLE {
        for reason in &all {
            match (own.contains(reason), reason.strip_prefix('*')) {
                (true, Some(reason)) => {
                    claim(&agent, &task, outcome, Some(reason)).await.refused(422, "outcome_reserved");
                    reserved += 1;
                }
                (true, None) => {}
                (false, stripped) => {
                    let refusal = claim(&agent, &task, outcome, Some(stripped.unwrap_or(reason))).await;
                    assert_eq!(refusal.refused(422, "invalid_body")["errors"][0]["pointer"], "/reason");
                }
            }
        }
        if outcome != "done_acted" {
            claim(&agent, &task, outcome, None).await.refused(422, "invalid_body");
        }
    }
    assert_eq!(reserved, 9);
    for body in [
        json!({}),
        json!({"outcome": null}),
        json!({"outcome": "done"}),
        json!({"outcome": "DONE_ACTED"}),
        json!({"outcome": 1}),
        json!({"outcome": "done_acted", "reason": ""}),
        json!({"outcome": "done_acted", "reason": "because"}),
        json!({"outcome": "done_acted", "result": "well"}),
        json!({"outcome": "done_acted", "result": []}),
    ] {
        agent.on(&task, "outcome", body).await.refused(422, "invalid_body");
    }
    let large = json!({"outcome": "done_acted", "result": {"summary": "x".repeat(66_000)}});
    assert_eq!(agent.on(&task, "outcome", large).await.refused(413, "payload_too_large")["limit"], 65_536);
    world.unmoved(&still).await;
}

#[tokio::test]
async fn a_task_closes_in_the_contracts_order_in_one_transaction() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, first) = world.working(&agent).await;
    let second = agent.open_session(&task, "s2").await;
    let asked = [agent.ask(&task, &["yes"]).await, agent.ask(&task, &[]).await];
    let before = world.last_seq(&task).await;
    let result = json!({"summary": "Opened 43.", "artifacts": [{"url": "https://example.com/43"}]});
    let body = json!({"outcome": "done_acted", "reason": null, "result": result, "session_id": second});
    let closed = agent.on(&task, "outcome", body).await;
    assert_eq!((&closed.expect(200)["status"], &closed.body["open_requests"]), (&json!("closed"), &json!(0)));
    let void = |id: &String| {
        json!({"request_id": id, "status": "void", "answer": null, "choice": null, "constraints": null,
            "artifact_digests": [], "resolved_by": null, "superseded_by": null})
    };
    let over = |id: &String| json!({"session_id": id, "harness_instance": null, "reason": "task_closed"});
    assert_eq!(
        world.since(&task, before).await,
        [
            ("session.closed".to_owned(), over(&first)),
            ("session.closed".to_owned(), over(&second)),
            ("state.changed".to_owned(), json!({"from": "blocked", "to": "closed", "reason": "outcome_set"})),
            ("outcome.set".to_owned(), json!({"outcome": "done_acted", "reason": null, "result": result})),
            ("request.resolved".to_owned(), void(&asked[0])),
            ("request.resolved".to_owned(), void(&asked[1])),
        ]
    );
    // One transaction, and whoever asked for it stands behind all of it.
    let written: Vec<(String, String)> = sqlx::query_as(
        "SELECT tx::text, recorded_at::text FROM agent_runtime.events WHERE seq > $1 GROUP BY tx, recorded_at",
    )
    .bind(before)
    .fetch_all(&world.db)
    .await
    .unwrap();
    assert_eq!(written.len(), 1);
    for event in &world.log(&task).await[usize::try_from(before).unwrap()..] {
        assert_eq!(
            (&event["actor_kind"], &event["actor_id"]),
            (&json!("agent"), &json!(world.seed.agent.id.to_string()))
        );
    }
    let read = world.person("ada").get(&format!("/agent-tasks/{task}")).await;
    assert_eq!(read.expect(200)["result"], result);
    assert_eq!((&read.body["open_sessions"], &read.body["open_requests"]), (&json!(0), &json!(0)));
    let requests = world.person("ada").get(&format!("/agent-tasks/{task}/requests")).await;
    for request in requests.expect(200).as_array().unwrap() {
        assert_eq!((&request["status"], &request["resolution"]), (&json!("void"), &Value::Null));
        assert_eq!(request["resolved_at"], read.body["closed_at"]);
    }
}

#[tokio::test]
async fn the_same_outcome_again_is_fine_and_another_is_told_the_recorded_one() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    claim(&agent, &task, "failed_external", Some("tool_error")).await.expect(200);
    let still = world.still(&task).await;
    let again = json!({"outcome": "failed_external", "reason": "tool_error", "session_id": session,
        "result": {"summary": "more words"}});
    let repeat = agent.on(&task, "outcome", again).await;
    assert_eq!((&repeat.expect(200)["outcome"], &repeat.body["status"]), (&json!("failed_external"), &json!("closed")));
    let last_seq = world.last_seq(&task).await;
    for body in [
        json!({"outcome": "done_acted"}),
        json!({"outcome": "failed_external", "reason": "provider_error"}),
        json!({"outcome": "exceeded_ceiling", "reason": "budget"}),
        json!({"outcome": "cancelled_by_human", "reason": "cancel_seen"}),
        json!({"outcome": "nonsense"}),
        json!({"outcome": "done_acted", "session_id": "nonsense"}),
    ] {
        let refusal = agent.on(&task, "outcome", body).await;
        refusal.refused(409, "task_closed");
        assert_eq!(
            (&refusal.body["outcome"], &refusal.body["outcome_reason"], &refusal.body["last_seq"]),
            (&json!("failed_external"), &json!("tool_error"), &json!(last_seq))
        );
    }
    world.unmoved(&still).await;
}

#[tokio::test]
async fn cancelled_by_human_needs_a_human_who_cancelled() {
    let world = World::new().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let (task, _) = world.working(&agent).await;
    for (verb, status) in [(None, "running"), (Some("pause"), "paused")] {
        if let Some(verb) = verb {
            ada.on(&task, verb, json!({})).await.expect(200);
        }
        let still = world.still(&task).await;
        let refusal = claim(&agent, &task, "cancelled_by_human", Some("cancel_seen")).await;
        assert_eq!(refusal.refused(409, "not_cancelled")["task_status"], status);
        world.unmoved(&still).await;
    }
    ada.on(&task, "cancel", json!({})).await.expect(200);
    claim(&agent, &task, "cancelled_by_human", Some("cancel_seen")).await.expect(200);
}

#[tokio::test]
async fn an_outcome_ends_a_task_in_every_open_status() {
    let world = World::new().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    for status in ["queued", "blocked", "paused"] {
        let task = world.task().await;
        if status == "blocked" {
            agent.ask(&task, &[]).await;
        } else if status == "paused" {
            ada.on(&task, "pause", json!({})).await.expect(200);
        }
        let before = world.last_seq(&task).await;
        claim(&agent, &task, "no_reason_to_run", Some("subject_gone")).await.expect(200);
        let told = world.since(&task, before).await;
        assert_eq!(told[0].1, json!({"from": status, "to": "closed", "reason": "outcome_set"}));
    }
}

#[tokio::test]
async fn after_the_close_what_was_spent_and_done_is_kept_and_all_else_refused() {
    let world = World::new().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let task = world.task_with(json!({"budget": "0.001"})).await;
    let early = agent.open_session(&task, "s1").await;
    agent.on(&task, &format!("sessions/{early}/close"), json!({"reason": "over"})).await.expect(200);
    let late = agent.open_session(&task, "s2").await;
    let request = agent.ask(&task, &[]).await;
    agent.finish(&task).await.expect(200);
    let row = ada.get(&format!("/agent-tasks/{task}")).await.expect(200).clone();
    let effect = json!({"type": "tool.called", "payload": {"tool": "push", "mutating": true}});
    let turn = json!({"type": "turn", "payload": {"body": "late"}});
    for (n, session) in [json!(early), json!(late), Value::Null].iter().enumerate() {
        let events = json!({"session_id": session, "events": [effect, effect]});
        let kept = agent.on(&task, "events", events).await;
        assert_eq!(&kept.expect(201)["written"][1]["session_id"], session);
        // Above the budget too: nothing is left to be closed.
        let usage = json!({"session_id": session, "idempotency_key": n.to_string(), "model_id": "sonnet",
            "tokens_out": 100_000});
        let spent = agent.on(&task, "usage", usage).await;
        assert_eq!(&spent.expect(201)["task"]["outcome"], "done_acted");
        assert_eq!(spent.body["session_id"], *session);
    }
    let original = agent.on(&task, "usage", json!({"idempotency_key": "0", "model_id": "sonnet"})).await;
    let corrects = original.expect(200)["id"].clone();
    let correction = json!({"idempotency_key": "c", "model_id": "sonnet", "tokens_out": 90_000, "corrects": corrects});
    assert_eq!(agent.on(&task, "usage", correction).await.expect(201)["cost"], "-0.1");
    // The log grew, the state did not.
    let now = ada.get(&format!("/agent-tasks/{task}")).await.expect(200).clone();
    for fact in
        ["status", "status_since", "outcome", "outcome_reason", "closed_at", "control", "owner", "open_sessions"]
    {
        assert_eq!(now[fact], row[fact], "{fact}");
    }
    assert_eq!((&now["cost_total"], &now["budget_remaining"]), (&json!("2.9"), &json!("-2.899")));
    world.sound(&task).await;

    let still = world.still(&task).await;
    let batch = |events: Value| json!({"events": events});
    for (path, body) in [
        ("events", batch(json!([turn]))),
        ("events", batch(json!([effect, turn]))),
        ("events", batch(json!([{"type": "phase.changed", "payload": {"phase": "x"}}]))),
        ("events", batch(json!([{"type": "todos.updated", "payload": {"todos": []}}]))),
        ("events", batch(json!([{"type": "check.reported", "payload": {"name": "n", "verdict": "v"}}]))),
        ("events", batch(json!([]))),
        ("requests", json!({"kind": "feedback", "title": "?"})),
        ("requests", json!({})),
        ("sessions", json!({"session_key": "s3"})),
        ("sessions", json!({})),
        ("outcome", json!({"outcome": "partial_capped", "reason": "turn_cap"})),
    ] {
        let refusal = agent.on(&task, path, body.clone()).await;
        assert_eq!(refusal.refused(409, "task_closed")["outcome"], "done_acted", "{path} {body}");
    }
    for verb in ["pause", "resume", "cancel", "reassign", "reply"] {
        let body = json!({"owner": "vera", "body": "Hello."});
        ada.on(&task, verb, body).await.refused(409, "task_closed");
    }
    // For the two routes of a request, its own state ranks first.
    let resolve = format!("requests/{request}/resolve");
    let refusal = ada.on(&task, &resolve, json!({"status": "answered", "answer": "late"})).await;
    assert_eq!(refusal.refused(409, "request_resolved")["request_status"], "void");
    agent.on(&task, &format!("requests/{request}/withdraw"), json!({})).await.expect(200);
    world.unmoved(&still).await;
}

#[tokio::test]
async fn of_an_outcome_and_a_cancel_at_once_the_first_commit_wins() {
    let world = World::new().await;
    let beside = World::beside(&world).await;
    let (agent, ada) = (world.agent().await, beside.person("ada"));
    let (mut acted, mut cancelled) = (0, 0);
    for round in 0..200 {
        let task = world.task().await;
        let session = round % 2 == 0;
        if session {
            agent.open_session(&task, "s1").await;
        }
        let outcome = async {
            if round % 3 == 0 {
                agent.get(&format!("/agent-tasks/{task}")).await;
            }
            agent.finish(&task).await
        };
        let cancel = async {
            if round % 3 == 1 {
                ada.get(&format!("/agent-tasks/{task}")).await;
            }
            ada.on(&task, "cancel", json!({})).await
        };
        let (outcome, cancel) = tokio::join!(outcome, cancel);
        let log = world.sound(&task).await;
        let ended = log.iter().filter(|event| event["type"] == "outcome.set");
        assert_eq!(ended.count(), 1);
        let read = ada.get(&format!("/agent-tasks/{task}")).await;
        if read.expect(200)["outcome"] == "done_acted" {
            outcome.expect(200);
            // With a session a cancel that came first waits, and the outcome is accepted under it.
            if read.body["control"] == "cancel" {
                assert!(session);
                assert_eq!(cancel.expect(200)["status"], "running");
            } else {
                assert_eq!(cancel.refused(409, "task_closed")["outcome"], "done_acted");
            }
            acted += 1;
        } else {
            assert_eq!(cancel.expect(200)["outcome_reason"], "cancelled_without_session");
            assert_eq!(outcome.refused(409, "task_closed")["outcome"], "cancelled_by_human");
            cancelled += 1;
        }
    }
    assert!(acted > 100 && cancelled > 0, "the race was never open: {acted} acted, {cancelled} cancelled");
}
