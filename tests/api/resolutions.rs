//! How people resolve requests.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mandate::auth::keys::KeyRing;
use mandate::domain::principal::Role;
use serde_json::{Value, json};

use crate::support::{Client, Reply, Seed, World};

fn digest(letter: char) -> String {
    format!("sha256:{}", letter.to_string().repeat(64))
}

async fn approval(agent: &Client, task: &str, digests: &[char]) -> String {
    let digests: Vec<_> = digests.iter().map(|letter| digest(*letter)).collect();
    let body = json!({"kind": "approval", "title": "Merge?", "artifact_digests": digests});
    let reply = agent.on(task, "requests", body).await;
    reply.expect(201)["request"]["id"].as_str().unwrap().to_owned()
}

async fn resolve(person: &Client, task: &str, id: &str, body: Value) -> Reply {
    person.on(task, &format!("requests/{id}/resolve"), body).await
}

#[tokio::test]
async fn a_resolution_says_who_when_what_and_by_which_way() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, _) = world.working(&agent).await;
    let id = approval(&agent, &task, &['a', 'b']).await;
    let before = world.last_seq(&task).await;
    let abe = world.person_claiming("Abe", json!({"channel": "web"}));
    let body = json!({"status": "approved", "artifact_digests": [digest('b'), digest('a')],
        "constraints": {"until": 1.0, "paths": ["src"]}, "answer": "Go.", "resolved_by": "ada", "actor_id": "ada",
        "organization_id": "01890a5d-ac96-774b-bcce-b302099a8057", "channel": "mcp"});
    let resolved = resolve(&abe, &task, &id, body.clone()).await;
    let shown = &resolved.expect(201)["request"];
    assert!(resolved.text.contains(r#""until":1.0"#), "{}", resolved.text);
    assert_eq!((&shown["status"], &shown["resolved_by"]), (&json!("approved"), &json!("abe")));
    assert_eq!(
        shown["resolution"],
        json!({"answer": "Go.", "choice": null, "constraints": body["constraints"],
            "artifact_digests": [digest('a'), digest('b')], "channel": "web"})
    );
    // The whole task, as it is read.
    assert_eq!(&resolved.body["task"], abe.get(&format!("/agent-tasks/{task}")).await.expect(200));
    assert_eq!(resolved.body["task"]["status"], "running");
    let told = world.since(&task, before).await;
    assert_eq!(
        told,
        [
            (
                "request.resolved".to_owned(),
                json!({"request_id": id, "status": "approved", "answer": "Go.", "choice": null,
                    "constraints": body["constraints"], "artifact_digests": [digest('a'), digest('b')],
                    "resolved_by": "abe", "superseded_by": null})
            ),
            ("state.changed".to_owned(), json!({"from": "blocked", "to": "running", "reason": "request_resolved"}))
        ]
    );
    let event = world.log(&task).await[usize::try_from(before).unwrap()].clone();
    assert_eq!(
        (&event["actor_kind"], &event["actor_id"], &event["channel"], &event["recorded_at"]),
        (&json!("human"), &json!("abe"), &json!("web"), &shown["resolved_at"])
    );
    // The same person's same words again, from wherever, are no second resolution.
    let still = world.still(&task).await;
    let again = resolve(&world.person("abe"), &task, &id, body.clone()).await;
    assert_eq!((&again.expect(200)["request"], again.is_replayed()), (shown, true));
    for (person, other) in [
        ("ada", body.clone()),
        ("abe", json!({"status": "rejected"})),
        ("abe", json!({"status": "approved", "artifact_digests": [digest('a')]})),
        ("abe", json!({"status": "nonsense"})),
        ("abe", json!({})),
    ] {
        let refusal = resolve(&world.person(person), &task, &id, other).await;
        refusal.refused(409, "request_resolved");
        assert_eq!(
            (&refusal.body["request_status"], &refusal.body["resolved_by"], &refusal.body["resolved_at"]),
            (&json!("approved"), &json!("abe"), &shown["resolved_at"])
        );
    }
    world.unmoved(&still).await;
}

#[tokio::test]
async fn to_approve_is_to_name_the_same_set_of_digests() {
    let world = World::new().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let (task, _) = world.working(&agent).await;
    let id = approval(&agent, &task, &['a', 'b']).await;
    let still = world.still(&task).await;
    for digests in [json!(null), json!([]), json!([digest('a')]), json!([digest('a'), digest('b'), digest('c')])] {
        let body = json!({"status": "approved", "artifact_digests": digests});
        let refusal = resolve(&ada, &task, &id, body).await;
        assert_eq!(refusal.refused(409, "digest_mismatch")["artifact_digests"], json!([digest('a'), digest('b')]));
    }
    for digests in [json!([digest('a'), digest('a')]), json!([digest('A'), digest('B')]), json!("a"), json!([1])] {
        let body = json!({"status": "approved", "artifact_digests": digests});
        resolve(&ada, &task, &id, body).await.refused(422, "invalid_body");
    }
    for status in ["answered", "open", "void", "expired", "APPROVED", ""] {
        let body = json!({"status": status, "artifact_digests": [digest('a'), digest('b')]});
        let refusal = resolve(&ada, &task, &id, body).await;
        assert_eq!(refusal.refused(422, "invalid_body")["errors"][0]["pointer"], "/status");
    }
    let large = json!({"status": "rejected", "constraints": "x".repeat(66_000)});
    resolve(&ada, &task, &id, large).await.refused(413, "payload_too_large");
    world.unmoved(&still).await;
    // To reject, nothing need have been reviewed; the record binds to the request's digests all the same.
    let rejected = resolve(&ada, &task, &id, json!({"status": "rejected"})).await;
    assert_eq!(rejected.expect(201)["request"]["status"], "rejected");
    assert_eq!(rejected.body["request"]["resolution"]["artifact_digests"], json!([digest('a'), digest('b')]));
    resolve(&ada, &task, &id, json!({"status": "rejected"})).await.expect(200);
}

#[tokio::test]
async fn feedback_is_one_of_the_options_or_a_free_answer() {
    let world = World::new().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let (task, _) = world.working(&agent).await;
    let (choice, free) = (agent.ask(&task, &["yes", "no"]).await, agent.ask(&task, &[]).await);
    let still = world.still(&task).await;
    for (id, body, pointer) in [
        (&choice, json!({"status": "answered"}), "/answer"),
        (&choice, json!({"status": "answered", "choice": null, "answer": null}), "/answer"),
        (&choice, json!({"status": "answered", "choice": "maybe"}), "/choice"),
        (&choice, json!({"status": "answered", "choice": "maybe", "answer": "well"}), "/choice"),
        (&choice, json!({"status": "approved", "choice": "yes"}), "/status"),
        (&choice, json!({"choice": "yes"}), "/status"),
        (&free, json!({"status": "answered", "choice": "yes"}), "/choice"),
        (&free, json!({"status": "answered"}), "/answer"),
        (&free, json!({"status": "answered", "answer": ""}), "/answer"),
        (&free, json!({"status": "rejected", "answer": "no"}), "/status"),
    ] {
        let refusal = resolve(&ada, &task, id, body).await;
        assert_eq!(refusal.refused(422, "invalid_body")["errors"][0]["pointer"], pointer);
    }
    world.unmoved(&still).await;
    let chosen =
        resolve(&ada, &task, &choice, json!({"status": "answered", "choice": "no", "answer": "Not yet."})).await;
    let resolution = &chosen.expect(201)["request"]["resolution"];
    assert_eq!((&resolution["choice"], &resolution["answer"]), (&json!("no"), &json!("Not yet.")));
    let third = agent.ask(&task, &["yes", "no"]).await;
    resolve(&ada, &task, &third, json!({"status": "answered", "answer": "Neither."})).await.expect(201);
    let answered = resolve(&ada, &task, &free, json!({"status": "answered", "answer": "Blue."})).await;
    assert_eq!(answered.expect(201)["task"]["status"], "running");
}

#[tokio::test]
async fn each_of_five_requests_is_settled_by_itself_and_the_task_blocked_until_all_are() {
    let world = World::new().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let (task, _) = world.working(&agent).await;
    let mut ids = Vec::new();
    for letter in ['a', 'b', 'c', 'd', 'e'] {
        ids.push(approval(&agent, &task, &[letter]).await);
    }
    let approve = |letter: char| json!({"status": "approved", "artifact_digests": [digest(letter)]});
    assert_eq!(resolve(&ada, &task, &ids[3], approve('d')).await.expect(201)["task"]["status"], "blocked");
    resolve(&ada, &task, &ids[1], json!({"status": "rejected"})).await.expect(201);
    let rows = ada.get(&format!("/agent-tasks/{task}/requests")).await;
    let statuses: Vec<_> = rows.expect(200).as_array().unwrap().iter().map(|row| row["status"].clone()).collect();
    assert_eq!(statuses, ["open", "rejected", "open", "approved", "open"]);
    let inbox = ada.get("/requests").await;
    let open: Vec<_> = inbox.expect(200).as_array().unwrap().iter().map(|row| row["id"].clone()).collect();
    assert_eq!(open, [json!(ids[0]), json!(ids[2]), json!(ids[4])]);
    for (index, letter) in [(0, 'a'), (2, 'c')] {
        let resolved = resolve(&ada, &task, &ids[index], approve(letter)).await;
        assert_eq!(resolved.expect(201)["task"]["status"], "blocked");
    }
    let last = resolve(&ada, &task, &ids[4], approve('e')).await;
    assert_eq!(
        (&last.expect(201)["task"]["status"], &last.body["task"]["open_requests"]),
        (&json!("running"), &json!(0))
    );
    let log = world.sound(&task).await;
    assert_eq!(log.iter().filter(|event| event["type"] == "state.changed").count(), 3);
}

#[tokio::test]
async fn exactly_one_of_two_operators_at_once_wins() {
    let world = World::new().await;
    let beside = World::beside(&world).await;
    let (agent, ada, abe) = (world.agent().await, world.person("ada"), beside.person("abe"));
    let (task, _) = world.working(&agent).await;
    let mut wins = [0, 0];
    for round in 0..100 {
        let id = approval(&agent, &task, &['a']).await;
        let before = world.last_seq(&task).await;
        let approve = async {
            if round % 3 == 0 {
                ada.get(&format!("/agent-tasks/{task}")).await;
            }
            let body = json!({"status": "approved", "artifact_digests": [digest('a')]});
            resolve(&ada, &task, &id, body).await
        };
        let reject = async {
            if round % 3 == 1 {
                abe.get(&format!("/agent-tasks/{task}")).await;
            }
            resolve(&abe, &task, &id, json!({"status": "rejected"})).await
        };
        let (approved, rejected) = tokio::join!(approve, reject);
        let (winner, loser, who, what) = if approved.status == 201 {
            wins[0] += 1;
            (&approved, &rejected, "ada", "approved")
        } else {
            wins[1] += 1;
            (&rejected, &approved, "abe", "rejected")
        };
        let won = &winner.expect(201)["request"];
        loser.refused(409, "request_resolved");
        assert_eq!(
            (&loser.body["resolved_by"], &loser.body["request_status"], &loser.body["resolved_at"]),
            (&json!(who), &json!(what), &won["resolved_at"])
        );
        let log = ada.get(&format!("/agent-tasks/{task}/events?after_seq={before}")).await;
        let types: Vec<_> = log.expect(200).as_array().unwrap().iter().map(|event| &event["type"]).collect();
        assert_eq!(types, ["request.resolved", "state.changed"]);
    }
    assert!(wins[0] > 0 && wins[1] > 0, "the race was never open: {wins:?}");
    world.sound(&task).await;
}

#[tokio::test]
async fn only_people_with_the_permission_resolve_and_a_service_is_refused_before_any_role() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, _) = world.working(&agent).await;
    let id = approval(&agent, &task, &['a']).await;
    let second = Seed::agent(&world.db, world.seed.organization_id, "writer").await;
    let stranger = world.account(&second.client_id, &second.client_secret).await;
    let trigger = world.account(&world.seed.trigger_client_id, &world.seed.trigger_client_secret).await;
    let still = world.still(&task).await;
    let body = json!({"status": "approved", "artifact_digests": [digest('a')]});
    for service in [&agent, &stranger, &trigger] {
        resolve(service, &task, &id, body.clone()).await.refused(403, "person_required");
        // Neither the body nor the request's state is looked at.
        resolve(service, &task, &id, json!({})).await.refused(403, "person_required");
    }
    for person in ["vera", "oscar"] {
        // A token that claims more than the directory grants.
        let claims = json!({"permissions": ["agent_task:resolve"], "roles": ["admin"], "scope": "agent_task:resolve"});
        let refusal = resolve(&world.person_claiming(person, claims), &task, &id, body.clone()).await;
        assert_eq!(refusal.refused(403, "permission_denied")["permission"], "agent_task:resolve");
    }
    resolve(&world.person("mallory"), &task, &id, body.clone()).await.refused(403, "organization_forbidden");
    let other = world.task().await;
    for (task, id) in [(other.as_str(), id.as_str()), (&task, "nonsense"), (&task, &world.seed.project_id.to_string())]
    {
        resolve(&world.person("vera"), task, id, body.clone()).await.refused(404, "request_not_found");
    }
    world.unmoved(&still).await;
    resolve(&world.person("abe"), &task, &id, body).await.expect(201);
}

/// The token of a service account as this server would sign it, with every claim that might make somebody an approver.
fn promoted(world: &World, account: &Client) -> Client {
    let payload = URL_SAFE_NO_PAD.decode(account.token().split('.').nth(1).unwrap()).unwrap();
    let mut claims: Value = serde_json::from_slice(&payload).unwrap();
    let permissions = json!(["agent_task:read", "agent_task:manage", "agent_task:resolve"]);
    for (name, value) in [
        ("scope", json!("agent_task:read agent_task:resolve")),
        ("scp", permissions.clone()),
        ("permissions", permissions),
        ("roles", json!(["approver", "admin"])),
        ("groups", json!(["board"])),
        ("channel", json!("web")),
    ] {
        assert_eq!(claims[name], Value::Null, "the server says so itself");
        claims[name] = value;
    }
    let keys = KeyRing::open(&world.settings.auth.data_folder.join("keys")).unwrap();
    world.bearer(&keys.sign_jws(claims.to_string().as_bytes(), "at+jwt"))
}

#[tokio::test]
async fn a_service_account_resolves_nothing_whatever_its_token_says() {
    let world = World::with(|settings| {
        let issuer = &mut settings.auth.issuers[0];
        issuer.roles_claim = Some("groups".to_owned());
        issuer.roles_map = [("board".to_owned(), Role::Approver)].into();
    })
    .await;
    let planner = Seed::agent(&world.db, world.seed.organization_id, "planner").await;
    let planner = world.account(&planner.client_id, &planner.client_secret).await;
    let parent = world.task_with(json!({"agent_slug": "planner"})).await;
    let part = json!({"agent_slug": "reviewer", "title": "A part", "description": ""});
    let part = planner.on(&parent, "children", part).await;
    let task = part.expect(201)["short_id"].as_str().unwrap().to_owned();
    let agent = world.agent().await;
    let id = approval(&agent, &task, &['a']).await;
    let still = world.still(&task).await;
    let body = json!({"status": "approved", "artifact_digests": [digest('a')]});
    for account in [&agent, &planner, &world.trigger().await] {
        let promoted = promoted(&world, account);
        // The token is a good one, for what the account may do.
        promoted.get("/agent-tasks/").await.expect(200);
        resolve(&promoted, &task, &id, body.clone()).await.refused(403, "person_required");
        resolve(&promoted, &task, &id, json!({})).await.refused(403, "person_required");
        promoted.on(&task, "pause", json!({})).await.refused(403, "permission_denied");
    }
    world.unmoved(&still).await;
    // Of a person of the issuer the same claim is taken.
    let vera = world.person_claiming("vera", json!({"groups": ["board"]}));
    resolve(&vera, &task, &id, body).await.expect(201);
}

#[tokio::test]
async fn an_approval_may_offer_options_and_a_choice_is_one_of_them() {
    let world = World::new().await;
    let (agent, ada, task) = (world.agent().await, world.person("ada"), world.task().await);
    let body = json!({"kind": "approval", "title": "Merge?", "options": ["squash", "merge"],
        "artifact_digests": [digest('a')]});
    let asked = agent.post(&format!("/agent-tasks/{task}/requests"), &body).await;
    let id = asked.expect(201)["request"]["id"].as_str().unwrap();
    let path = format!("/agent-tasks/{task}/requests/{id}/resolve");
    let mut approve = json!({"status": "approved", "artifact_digests": [digest('a')], "choice": "rebase"});
    ada.post(&path, &approve).await.refused(422, "invalid_body");
    approve["choice"] = json!("squash");
    assert_eq!(ada.post(&path, &approve).await.expect(201)["request"]["resolution"]["choice"], "squash");
}
