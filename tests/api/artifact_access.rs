//! Who may send artifacts and who may read them.

use serde_json::{Value, json};

use crate::support::{Client, Reply, Seed, World};

/// A refusal without what names the call.
fn told(reply: &Reply) -> (u16, Value) {
    let mut body = reply.body.clone();
    body["request_id"] = Value::Null;
    (reply.status, body)
}

/// The agent refers to the artifact in an event of the task.
async fn refer(agent: &Client, task: &str, digest: &str) {
    let payload = json!({"tool": "build", "mutating": true, "artifact": {"digest": digest}});
    agent.append(task, json!([{"type": "tool.called", "payload": payload}])).await.expect(201);
}

#[tokio::test]
async fn agents_and_people_who_create_tasks_may_send_them() {
    let world = World::with_artifacts().await;
    for (person, status) in [("ada", 201), ("oscar", 201), ("vera", 403), ("abe", 403)] {
        let (_, reply) = world.person(person).send_artifact(person, "text/plain").await;
        assert_eq!(reply.status, status, "{person}: {}", reply.text);
        if status == 403 {
            assert_eq!(reply.refused(403, "permission_denied")["permission"], "agent_task:create");
        }
    }
    world.trigger().await.send_artifact("x", "text/plain").await.1.refused(403, "permission_denied");
    world.anyone().send_artifact("x", "text/plain").await.1.refused(401, "unauthenticated");
    world.person("stranger").send_artifact("x", "text/plain").await.1.refused(403, "organization_forbidden");
    assert_eq!(world.artifact_files().len(), 2);
}

#[tokio::test]
async fn before_any_reference_only_its_sender_reads_it() {
    let world = World::with_artifacts().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let packer = Seed::agent(&world.db, world.seed.organization_id, "packer").await;
    let packer = world.account(&packer.client_id, &packer.client_secret).await;
    let (digest, sent) = agent.send_artifact("Hello.", "text/plain").await;
    sent.expect(201);
    let unknown = format!("sha256:{}", "0".repeat(64));
    let of_unknown = told(&ada.artifact(&unknown).await);
    assert_eq!((of_unknown.0, of_unknown.1["code"].as_str()), (404, Some("not_found")));
    for client in [&ada, &world.person("vera"), &packer, &world.trigger().await] {
        assert_eq!(told(&client.artifact(&digest).await), of_unknown);
        assert_eq!(told(&client.artifact(&unknown).await), of_unknown);
    }
    assert_eq!(agent.artifact(&digest).await.text, "Hello.");
    let (of_ada, sent) = ada.send_artifact("Mine.", "text/plain").await;
    sent.expect(201);
    assert_eq!(ada.artifact(&of_ada).await.text, "Mine.");
    assert_eq!(told(&agent.artifact(&of_ada).await), of_unknown);
    assert_eq!(told(&world.person("oscar").artifact(&of_ada).await), of_unknown);
}

#[tokio::test]
async fn whoever_may_read_a_task_reads_what_its_log_refers_to() {
    let world = World::with_artifacts().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let packer = Seed::agent(&world.db, world.seed.organization_id, "packer").await;
    let packer_client = world.account(&packer.client_id, &packer.client_secret).await;
    let (digest, sent) = ada.send_artifact("Hello.", "text/plain").await;
    sent.expect(201);
    let task = world.task().await;
    agent.artifact(&digest).await.refused(404, "not_found");
    refer(&agent, &task, &digest).await;
    for client in ["vera", "oscar", "abe", "ada"].map(|person| world.person(person)).iter().chain([&agent]) {
        assert_eq!(client.artifact(&digest).await.text, "Hello.");
    }
    // Not the accounts of others: another agent's, and a trigger's that did not create the task.
    packer_client.artifact(&digest).await.refused(404, "not_found");
    let trigger = world.trigger().await;
    trigger.artifact(&digest).await.refused(404, "not_found");
    world.anyone().artifact(&digest).await.refused(401, "unauthenticated");
    // A task of the other agent refers to it too.
    let (theirs, sent) = packer_client.send_artifact("Theirs.", "text/plain").await;
    sent.expect(201);
    let other = world.task_with(json!({"agent_slug": "packer"})).await;
    refer(&packer_client, &other, &theirs).await;
    agent.artifact(&theirs).await.refused(404, "not_found");
    refer(&packer_client, &other, &digest).await;
    assert_eq!(packer_client.artifact(&digest).await.text, "Hello.");
    // The trigger reads what a task that it created refers to.
    let body = json!({"agent_slug": "reviewer", "title": "t", "description": "d"});
    let request = trigger.request(reqwest::Method::POST, "/agent-tasks/").header("x-mandate-scheduled-task", "nightly");
    let created = trigger.send(request.header("x-mandate-accountable", "ada").json(&body)).await;
    refer(&agent, created.expect(201)["short_id"].as_str().unwrap(), &digest).await;
    assert_eq!(trigger.artifact(&digest).await.text, "Hello.");
    world.prove().await;
}

#[tokio::test]
async fn the_account_of_a_parents_agent_reads_what_a_child_refers_to() {
    let world = World::with_artifacts().await;
    let agent = world.agent().await;
    let packer = Seed::agent(&world.db, world.seed.organization_id, "packer").await;
    let packer_client = world.account(&packer.client_id, &packer.client_secret).await;
    let (parent, child) = (world.task().await, world.task_with(json!({"agent_slug": "packer"})).await);
    let (digest, sent) = packer_client.send_artifact("Theirs.", "text/plain").await;
    sent.expect(201);
    refer(&packer_client, &child, &digest).await;
    agent.artifact(&digest).await.refused(404, "not_found");
    // Planted past the guards, so the audit of all databases leaves this one out.
    world.spoil().await;
    let adopt = "UPDATE agent_runtime.tasks c SET origin_kind = 'task', origin_principal = p.id::text,
        parent_task_id = p.id, parent_short_number = p.short_number, origin_agent_id = p.agent_id
        FROM agent_runtime.tasks p WHERE p.short_number = 1 AND c.short_number = 2";
    let mut transaction = world.db.begin().await.unwrap();
    sqlx::raw_sql("SET LOCAL session_replication_role = replica").execute(&mut *transaction).await.unwrap();
    sqlx::raw_sql(adopt).execute(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(agent.artifact(&digest).await.text, "Theirs.");
    // Not the other way round.
    let (own, sent) = agent.send_artifact("Own.", "text/plain").await;
    sent.expect(201);
    refer(&agent, &parent, &own).await;
    packer_client.artifact(&own).await.refused(404, "not_found");
}

#[tokio::test]
async fn another_organization_has_nothing_of_it() {
    let world = World::with_artifacts().await;
    let agent = world.agent().await;
    let foreign = Seed::plant(&world.db, "globex").await;
    let theirs = world.account(&foreign.agent.client_id, &foreign.agent.client_secret).await.in_organization("globex");
    let (digest, sent) = agent.send_artifact("Hello.", "text/plain").await;
    sent.expect(201);
    let task = world.task().await;
    refer(&agent, &task, &digest).await;
    let unknown = format!("sha256:{}", "0".repeat(64));
    for client in [&theirs, &world.person("ada").in_organization("globex")] {
        assert_eq!(told(&client.artifact(&digest).await), told(&client.artifact(&unknown).await));
        client.artifact(&digest).await.refused(404, "not_found");
    }
    // Nor do they find out that somebody has it by sending it.
    let (_, sent) = theirs.send_artifact("Hello.", "text/plain").await;
    sent.expect(201);
    assert_eq!(world.artifact_files().len(), 2);
    theirs.in_organization("acme").artifact(&digest).await.refused(403, "organization_forbidden");
}

#[tokio::test]
async fn requests_outcomes_and_events_refer_to_what_they_name() {
    let world = World::with_artifacts().await;
    let (agent, vera) = (world.agent().await, world.person("vera"));
    let task = world.task().await;
    let mut digests = Vec::new();
    for text in ["shown", "bound", "event", "made", "listed"] {
        let (digest, sent) = agent.send_artifact(text, "text/plain").await;
        sent.expect(201);
        digests.push(digest);
    }
    let elsewhere = format!("sha256:{}", "e".repeat(64));
    let shown = json!({"digest": digests[0], "name": "n", "media_type": "text/plain", "size": 5});
    let ask =
        json!({"kind": "approval", "title": "t", "artifacts": [shown], "artifact_digests": [digests[1], elsewhere]});
    agent.on(&task, "requests", ask).await.expect(201);
    refer(&agent, &task, &digests[2]).await;
    let made = json!({"digest": digests[3], "weight": 1.5});
    let outcome = json!({"outcome": "done_acted", "result": {"artifacts": [made, digests[4], digests[2]]}});
    agent.on(&task, "outcome", outcome).await.expect(200);
    for (digest, text) in digests.iter().zip(["shown", "bound", "event", "made", "listed"]) {
        assert_eq!(vera.artifact(digest).await.text, text);
    }
    // It may be kept elsewhere, or come later.
    vera.artifact(&elsewhere).await.refused(404, "not_found");
    let rows: Vec<(String, i64)> =
        sqlx::query_as("SELECT encode(digest, 'hex'), seq FROM agent_runtime.artifact_refs ORDER BY seq, digest")
            .fetch_all(&world.db)
            .await
            .unwrap();
    assert_eq!(rows.len(), 6);
    assert_eq!(rows.iter().filter(|(digest, _)| digests[2].ends_with(digest)).count(), 1, "the first mention counts");
    let referenced = "SELECT count(*) FROM agent_runtime.artifacts WHERE referenced";
    assert_eq!(sqlx::query_scalar::<_, i64>(referenced).fetch_one(&world.db).await.unwrap(), 5);
    world.prove().await;
}

#[tokio::test]
async fn the_audit_finds_references_that_the_log_does_not_tell_of() {
    let world = World::with_artifacts().await;
    let agent = world.agent().await;
    let (one, other) = (world.task().await, world.task().await);
    refer(&agent, &one, &format!("sha256:{}", "a".repeat(64))).await;
    world.prove().await;
    world.spoil().await;
    for (statement, task) in [
        ("INSERT INTO agent_runtime.artifact_refs SELECT organization_id, digest, (SELECT id FROM agent_runtime.tasks
            WHERE short_number = 2), 1 FROM agent_runtime.artifact_refs", &other),
        ("DELETE FROM agent_runtime.artifact_refs", &one),
    ] {
        let mut transaction = world.db.begin().await.unwrap();
        sqlx::raw_sql("SET LOCAL session_replication_role = replica").execute(&mut *transaction).await.unwrap();
        sqlx::raw_sql(statement).execute(&mut *transaction).await.unwrap();
        transaction.commit().await.unwrap();
        let findings = world.audit().await;
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].starts_with(task.as_str()), "{findings:?}");
        assert!(findings[0].contains("its references to artifacts differ from its log"), "{findings:?}");
    }
}
