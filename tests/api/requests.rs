//! Requests: asked, repeated, superseded, withdrawn. How people resolve them stands in `resolutions`.

use serde_json::{Value, json};

use crate::support::{Client, World};

fn digest(letter: char) -> String {
    format!("sha256:{}", letter.to_string().repeat(64))
}

fn approval(digests: &[char]) -> Value {
    let digests: Vec<_> = digests.iter().map(|letter| digest(*letter)).collect();
    json!({"kind": "approval", "title": "Merge?", "artifact_digests": digests})
}

fn with(mut body: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("{more} is no object") };
    body.as_object_mut().unwrap().extend(more);
    body
}

async fn ask(agent: &Client, task: &str, body: Value) -> String {
    let reply = agent.on(task, "requests", body).await;
    reply.expect(201)["request"]["id"].as_str().unwrap().to_owned()
}

async fn request(world: &World, task: &str, id: &str) -> Value {
    let reply = world.person("ada").get(&format!("/agent-tasks/{task}/requests")).await;
    reply.expect(200).as_array().unwrap().iter().find(|request| request["id"] == id).unwrap().clone()
}

#[tokio::test]
async fn a_request_blocks_its_task_and_carries_every_field() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    let before = world.last_seq(&task).await;
    let artifact =
        json!({"digest": digest('a'), "name": "diff", "media_type": "text/x-diff", "size": 12, "preview": "+1"});
    let body = json!({"kind": "approval", "title": "Merge?", "why": "Green.", "artifacts": [artifact],
        "artifact_digests": [digest('b'), digest('a')], "session_id": session, "request_key": "k",
        "expires_at": world.now().plus(std::time::Duration::from_mins(10)).to_string()});
    let asked = agent.on(&task, "requests", body.clone()).await;
    let mut shown = asked.expect(201)["request"].clone();
    let id = shown["id"].clone();
    assert_eq!((&asked.body["task"]["status"], &asked.body["task"]["open_requests"]), (&json!("blocked"), &json!(1)));
    assert_eq!(asked.body["task"]["last_seq"], before + 2);
    assert_eq!(request(&world, &task, id.as_str().unwrap()).await, shown);
    let opened_at = shown["opened_at"].take();
    let expected = json!({"id": id, "session_id": session, "kind": "approval", "status": "open", "title": "Merge?",
        "why": "Green.", "options": [], "artifacts": [artifact], "artifact_digests": [digest('b'), digest('a')],
        "expires_at": body["expires_at"], "opened_at": null, "request_key": "k", "resolved_by": null,
        "resolved_at": null, "resolution": null, "superseded_by": null});
    assert_eq!(shown, expected);
    let told = world.since(&task, before).await;
    assert_eq!(told[0].0, "request.opened");
    assert_eq!(
        told[0].1,
        json!({"request_id": id, "kind": "approval", "title": "Merge?", "why": "Green.", "options": [],
            "artifacts": [artifact], "artifact_digests": [digest('b'), digest('a')], "expires_at": body["expires_at"],
            "request_key": "k", "supersedes": null})
    );
    assert_eq!(told[1].1, json!({"from": "running", "to": "blocked", "reason": "request_opened"}));
    let log = world.log(&task).await;
    assert_eq!(log[usize::try_from(before).unwrap()]["recorded_at"], opened_at);
    assert_eq!(log[usize::try_from(before).unwrap()]["session_id"], session.as_str());
    // Without a time the setting's seven days count.
    let free = ask(&agent, &task, json!({"kind": "feedback", "title": "Which?"})).await;
    let free = request(&world, &task, &free).await;
    let at = |name: &str| mandate::domain::time::Timestamp::parse(free[name].as_str().unwrap()).unwrap().micros();
    assert_eq!(at("expires_at") - at("opened_at"), 7 * 86_400 * 1_000_000);
}

#[tokio::test]
async fn a_request_that_breaks_a_rule_is_told_where_and_writes_nothing() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, _) = world.working(&agent).await;
    let still = world.still(&task).await;
    let ahead = |seconds: i64| {
        let at = world.now().micros() + seconds * 1_000_000;
        mandate::domain::time::Timestamp::from_micros(at).unwrap().to_string()
    };
    let feedback = json!({"kind": "feedback", "title": "?"});
    let upper = digest('a').to_uppercase().replace("SHA256", "sha256");
    let days = 86_400;
    for (more, pointer) in [
        (json!({"kind": null}), "/kind"),
        (json!({"kind": "question"}), "/kind"),
        (json!({"title": null}), "/title"),
        (json!({"title": " "}), "/title"),
        (json!({"title": "x".repeat(501)}), "/title"),
        (json!({"kind": "approval"}), "/artifact_digests"),
        (json!({"kind": "approval", "artifact_digests": []}), "/artifact_digests"),
        (json!({"kind": "approval", "artifact_digests": [digest('a'), digest('a')]}), "/artifact_digests/1"),
        (json!({"kind": "approval", "artifact_digests": [upper]}), "/artifact_digests/0"),
        (json!({"kind": "approval", "artifact_digests": ["a".repeat(64)]}), "/artifact_digests/0"),
        (json!({"kind": "approval", "artifact_digests": ["sha256:abc"]}), "/artifact_digests/0"),
        (json!({"kind": "approval", "artifact_digests": digest('a')}), "/artifact_digests"),
        (json!({"options": ["yes", 1]}), "/options/1"),
        (json!({"artifacts": [{"digest": "x", "name": "n", "media_type": "m", "size": 1}]}), "/artifacts/0/digest"),
        (json!({"artifacts": [{"digest": digest('a'), "name": "n", "media_type": "m"}]}), "/artifacts/0/size"),
        (json!({"expires_at": ahead(-1)}), "/expires_at"),
        (json!({"expires_at": ahead(90 * days + 60)}), "/expires_at"),
        (json!({"expires_at": "2030-01-01T00:00:00"}), "/expires_at"),
        (json!({"request_key": "x".repeat(201)}), "/request_key"),
        (json!({"session_id": "01890a5d-ac96-774b-bcce-b302099a8057"}), "/session_id"),
        (json!({"supersedes": "01890a5d-ac96-774b-bcce-b302099a8057"}), "/supersedes"),
        (json!({"supersedes": "nonsense"}), "/supersedes"),
    ] {
        let refusal = agent.on(&task, "requests", with(feedback.clone(), more.clone())).await;
        let errors = &refusal.refused(422, "invalid_body")["errors"];
        assert!(errors.as_array().unwrap().iter().any(|error| error["pointer"] == pointer), "{more}: {errors}");
    }
    let previews: Vec<_> = ['a', 'b', 'c', 'd']
        .iter()
        .map(|letter| {
            json!({"digest": digest(*letter), "name": "n", "media_type": "m", "size": 1, "preview": "x".repeat(20_000)})
        })
        .collect();
    let large = with(feedback.clone(), json!({"artifacts": previews}));
    agent.on(&task, "requests", large).await.refused(413, "payload_too_large");
    world.unmoved(&still).await;
    // Just inside.
    ask(&agent, &task, with(feedback.clone(), json!({"expires_at": ahead(90 * days - 60)}))).await;
    ask(&agent, &task, with(feedback, json!({"title": "x".repeat(500)}))).await;
}

#[tokio::test]
async fn the_same_key_and_digests_answer_the_request_as_it_is_now() {
    let world = World::new().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let (task, _) = world.working(&agent).await;
    let body = with(approval(&['a', 'b']), json!({"request_key": "merge"}));
    let first = ask(&agent, &task, body.clone()).await;
    let path = format!("/agent-tasks/{task}/requests");
    let mut still = world.still(&task).await;
    for status in ["open", "approved"] {
        if status == "approved" {
            let resolve = json!({"status": status, "artifact_digests": [digest('b'), digest('a')]});
            ada.on(&task, &format!("requests/{first}/resolve"), resolve).await.expect(201);
            still = world.still(&task).await;
        }
        let again = agent.post(&path, &body).await;
        assert_eq!(&again.expect(200)["request"], &request(&world, &task, &first).await);
        assert_eq!(again.body["request"]["status"], status);
        assert!(again.is_replayed());
        assert_eq!(again.header("idempotency-body-match"), None);
        // The header stands for the member; the digests are a set.
        let keyed = agent.post_keyed(&path, "merge", &approval(&['a', 'b'])).await;
        assert_eq!(
            (&keyed.expect(200)["request"]["id"], keyed.header("idempotency-body-match")),
            (&json!(first), None)
        );
        let turned = agent.post_keyed(&path, "merge", &approval(&['b', 'a'])).await;
        assert_eq!(turned.expect(200)["request"]["id"], first.as_str());
        assert_eq!(turned.header("idempotency-body-match"), Some("false"));
        let reworded = with(body.clone(), json!({"title": "Really merge?"}));
        let reworded = agent.post(&path, &reworded).await;
        assert_eq!(reworded.expect(200)["request"]["title"], "Merge?");
        assert_eq!(reworded.header("idempotency-body-match"), Some("false"));
    }
    // Whatever the rest of the body says.
    let odd = with(body.clone(), json!({"title": 1, "kind": null, "expires_at": "1999-01-01T00:00:00Z"}));
    let odd = agent.post(&path, &odd).await;
    assert_eq!((&odd.expect(200)["request"]["id"], odd.is_replayed()), (&json!(first), true));
    let refusal = agent.post_keyed(&path, "other", &body).await;
    assert_eq!(refusal.refused(422, "invalid_body")["errors"][0]["header"], "Idempotency-Key");
    world.unmoved(&still).await;
    // After settlement other digests under the key are a new question, and the key answers for each.
    let second = ask(&agent, &task, with(approval(&['c']), json!({"request_key": "merge"}))).await;
    assert_eq!(request(&world, &task, &first).await["status"], "approved");
    agent.post(&path, &body).await.expect(200);
    let newest = agent.post_keyed(&path, "merge", &approval(&['c'])).await;
    assert_eq!(newest.expect(200)["request"]["id"], second.as_str());
    // A key is answered before any state.
    agent.finish(&task).await.expect(200);
    let after = agent.post_keyed(&path, "merge", &approval(&['c'])).await;
    assert_eq!(
        (&after.expect(200)["request"]["status"], &after.body["task"]["status"]),
        (&json!("void"), &json!("closed"))
    );
    agent.post_keyed(&path, "new", &approval(&['c'])).await.refused(409, "task_closed");
}

#[tokio::test]
async fn twenty_askings_with_one_key_over_two_servers_are_one_question() {
    let world = World::new().await;
    let beside = World::beside(&world).await;
    let (agent, other) = (world.agent().await, beside.agent().await);
    for body in [json!({"kind": "feedback", "title": "Which?"}), approval(&['a'])] {
        let (task, _) = world.working(&agent).await;
        let before = world.last_seq(&task).await;
        let body = with(body, json!({"request_key": "k"}));
        let calls = (0..20).map(|n| {
            let asker = if n % 2 == 0 { &agent } else { &other };
            asker.on(&task, "requests", body.clone())
        });
        let replies = futures::future::join_all(calls).await;
        let first = &replies[0].body["request"]["id"];
        assert!(replies.iter().all(|reply| &reply.body["request"]["id"] == first && reply.status < 300));
        assert_eq!(replies.iter().filter(|reply| reply.status == 201).count(), 1);
        assert_eq!(replies.iter().filter(|reply| reply.is_replayed()).count(), 19);
        let told = world.since(&task, before).await;
        assert_eq!(told.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["request.opened", "state.changed"]);
    }
}

#[tokio::test]
async fn new_digests_are_a_new_request_that_voids_the_old_one() {
    let world = World::new().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let (task, _) = world.working(&agent).await;
    for by_key in [false, true] {
        let key = if by_key { json!({"request_key": "k"}) } else { json!({}) };
        let first = ask(&agent, &task, with(approval(&['a']), key.clone())).await;
        let before = world.last_seq(&task).await;
        let more = if by_key { key } else { json!({"supersedes": first}) };
        let second = ask(&agent, &task, with(approval(&['b']), more)).await;
        let told = world.since(&task, before).await;
        assert_eq!(told.len(), 2, "{told:?}");
        assert_eq!(
            told[0],
            (
                "request.resolved".to_owned(),
                json!({"request_id": first, "status": "void", "answer": null, "choice": null, "constraints": null,
                    "artifact_digests": [], "resolved_by": null, "superseded_by": second})
            )
        );
        assert_eq!((&told[1].1["request_id"], &told[1].1["supersedes"]), (&json!(second), &json!(first)));
        let row = request(&world, &task, &first).await;
        assert_eq!((&row["status"], &row["superseded_by"]), (&json!("void"), &json!(second)));
        // The operator who still sees the first one approves nothing, with neither set of digests.
        let still = world.still(&task).await;
        for digests in [[digest('a')], [digest('b')]] {
            let resolve = json!({"status": "approved", "artifact_digests": digests});
            let refusal = ada.on(&task, &format!("requests/{first}/resolve"), resolve).await;
            let problem = refusal.refused(409, "request_resolved");
            assert_eq!((&problem["request_status"], &problem["superseded_by"]), (&json!("void"), &json!(second)));
        }
        let resolve = json!({"status": "approved", "artifact_digests": [digest('a')]});
        let refusal = ada.on(&task, &format!("requests/{second}/resolve"), resolve).await;
        assert_eq!(refusal.refused(409, "digest_mismatch")["artifact_digests"], json!([digest('b')]));
        // Nothing supersedes what is settled.
        let late = with(approval(&['c']), json!({"supersedes": first}));
        agent.on(&task, "requests", late).await.refused(409, "request_resolved");
        world.unmoved(&still).await;
        let resolve = json!({"status": "approved", "artifact_digests": [digest('b')]});
        let resolved = ada.on(&task, &format!("requests/{second}/resolve"), resolve).await;
        assert_eq!(resolved.expect(201)["request"]["resolution"]["artifact_digests"], json!([digest('b')]));
    }
    world.sound(&task).await;
}

/// Whoever approves the first one while it is superseded approves its digests or nothing.
#[tokio::test]
async fn an_approval_beside_a_new_version_binds_what_was_reviewed() {
    let world = World::new().await;
    let beside = World::beside(&world).await;
    let (agent, ada) = (world.agent().await, beside.person("ada"));
    let (task, _) = world.working(&agent).await;
    let (mut approved, mut superseded) = (0, 0);
    for round in 0..40 {
        let first = ask(&agent, &task, approval(&['a'])).await;
        let resolve = async {
            if round % 2 == 0 {
                ada.get(&format!("/agent-tasks/{task}")).await;
            }
            let body = json!({"status": "approved", "artifact_digests": [digest('a')]});
            ada.on(&task, &format!("requests/{first}/resolve"), body).await
        };
        let newer = agent.on(&task, "requests", with(approval(&['b']), json!({"supersedes": first})));
        let (resolved, newer) = tokio::join!(resolve, newer);
        let row = request(&world, &task, &first).await;
        if newer.status == 201 {
            assert_eq!(resolved.refused(409, "request_resolved")["request_status"], "void");
            assert_eq!((&row["status"], &row["resolution"]), (&json!("void"), &Value::Null));
            let newer = newer.body["request"]["id"].as_str().unwrap();
            agent.on(&task, &format!("requests/{newer}/withdraw"), json!({})).await.expect(200);
            superseded += 1;
        } else {
            assert_eq!(newer.refused(409, "request_resolved")["request_status"], "approved");
            resolved.expect(201);
            assert_eq!(row["resolution"]["artifact_digests"], json!([digest('a')]));
            approved += 1;
        }
    }
    assert!(approved > 0 && superseded > 0, "the race was never open: {approved}, {superseded}");
    world.sound(&task).await;
}

#[tokio::test]
async fn a_harness_takes_a_request_back_once() {
    let world = World::new().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let (task, session) = world.working(&agent).await;
    let (first, second) = (agent.ask(&task, &[]).await, agent.ask(&task, &[]).await);
    let withdraw = |id: &str| format!("/agent-tasks/{task}/requests/{id}/withdraw");
    let before = world.last_seq(&task).await;
    let state = agent.post_nothing(&withdraw(&first)).await;
    assert_eq!((&state.expect(200)["status"], &state.body["open_requests"]), (&json!("blocked"), &json!(1)));
    let told = world.since(&task, before).await;
    assert_eq!((told.len(), &told[0].1["status"], &told[0].1["superseded_by"]), (1, &json!("void"), &Value::Null));
    let still = world.still(&task).await;
    agent.post(&withdraw(&first), &json!({"session_id": session})).await.expect(200);
    ada.on(&task, &format!("requests/{first}/resolve"), json!({"status": "answered", "answer": "x"}))
        .await
        .refused(409, "request_resolved");
    let foreign = agent.ask(&world.task().await, &[]).await;
    for unknown in [foreign.as_str(), "01890a5d-ac96-774b-bcce-b302099a8057", "nonsense"] {
        agent.post_nothing(&withdraw(unknown)).await.refused(404, "request_not_found");
    }
    ada.post_nothing(&withdraw(&second)).await.refused(403, "agent_task_forbidden");
    world.unmoved(&still).await;
    ada.on(&task, &format!("requests/{second}/resolve"), json!({"status": "answered", "answer": "x"}))
        .await
        .expect(201);
    let refusal = agent.post_nothing(&withdraw(&second)).await;
    assert_eq!(refusal.refused(409, "request_resolved")["resolved_by"], "ada");
    assert_eq!(agent.post(&withdraw(&first), &json!({"session_id": session})).await.expect(200)["status"], "running");
}
