//! Conditional calls: what the caller has already is not sent again, and a task is resolved only as it was looked at.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Client, Reply, Seed, World, eventually};

async fn get_if(client: &Client, path: &str, known: &str) -> Reply {
    client.send(client.request(Method::GET, path).header("if-none-match", known)).await
}

/// The tag of an answer.
#[track_caller]
fn tag(reply: &Reply) -> String {
    reply.expect(200);
    assert_eq!(reply.header("cache-control"), Some("private, no-cache"));
    reply.header("etag").unwrap().to_owned()
}

#[track_caller]
fn not_modified(reply: &Reply, tag: &str) {
    assert_eq!((reply.status, reply.text.as_str()), (304, ""));
    assert_eq!(reply.header("etag"), Some(tag));
    assert_eq!(reply.header("cache-control"), Some("private, no-cache"));
}

#[tokio::test]
async fn a_task_is_sent_again_only_when_it_changed() {
    let world = World::new().await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    let path = format!("/agent-tasks/{task}");
    let first = vera.get(&path).await;
    assert_eq!(tag(&first), format!("\"{}\"", first.body["last_seq"]));
    let known = tag(&first);
    for named in [known.clone(), format!("W/{known}"), "*".to_owned(), format!("\"1\", {known}")] {
        not_modified(&get_if(&vera, &path, &named).await, &known);
    }
    for other in ["\"1\"".to_owned(), known.trim_matches('"').to_owned(), format!("{known} {known}")] {
        assert_eq!(get_if(&vera, &path, &other).await.expect(200), &first.body, "{other}");
    }
    agent.post_nothing(&format!("{path}/sessions/{session}/heartbeat")).await.expect(200);
    not_modified(&get_if(&vera, &path.replace("T-", "t-"), &known).await, &known);
    agent.say(&task, &session, "On it").await.expect(201);
    let second = get_if(&vera, &path, &known).await;
    assert_ne!(tag(&second), known);
    assert_ne!(second.body, first.body);
}

#[tokio::test]
async fn archiving_changes_the_tag_of_a_task_though_not_its_log() {
    let world = World::new().await;
    let (vera, agent, task) = (world.person("vera"), world.agent().await, world.task().await);
    agent.finish(&task).await.expect(200);
    let path = format!("/agent-tasks/{task}");
    let closed = vera.get(&path).await;
    let known = tag(&closed);
    eventually("the log is archived", async || {
        world.sweep().await;
        !vera.get(&path).await.expect(200)["log_archived_at"].is_null()
    })
    .await;
    let archived = get_if(&vera, &path, &known).await;
    assert_eq!(tag(&archived), format!("\"{}-archived\"", closed.body["last_seq"]));
    not_modified(&get_if(&vera, &path, &tag(&archived)).await, &tag(&archived));
    // The log itself is what it was, wherever it is.
    let events = format!("{path}/events");
    assert_eq!(tag(&get_if(&vera, &events, "\"0\"").await), known);
    not_modified(&get_if(&vera, &events, &known).await, &known);
}

#[tokio::test]
async fn parts_of_a_task_are_tagged_where_its_log_is_their_version() {
    let world = World::new().await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    agent.spend(&task, "u1", 1, 1).await.expect(201);
    agent.spend(&task, "u2", 1, 1).await.expect(201);
    agent.ask(&task, &[]).await;
    let path = |part: &str| format!("/agent-tasks/{task}/{part}");
    let parts = ["requests", "usage", "usage?limit=1", "events", "events?after_seq=2&limit=1", "events?type=turn"];
    let mut known = Vec::new();
    for part in parts {
        let reply = vera.get(&path(part)).await;
        assert_eq!(tag(&reply), format!("\"{}\"", world.last_seq(&task).await), "{part}");
        not_modified(&get_if(&vera, &path(part), &tag(&reply)).await, &tag(&reply));
        known.push(tag(&reply));
    }
    agent.say(&task, &session, "On it").await.expect(201);
    for (part, known) in parts.iter().zip(&known) {
        assert_ne!(&tag(&get_if(&vera, &path(part), known).await), known, "{part}");
    }
    // These change without an event, or are not of this task alone, or wait for news.
    for part in ["sessions", "relations", "projects", "events?wait=1"] {
        let reply = get_if(&vera, &path(part), "*").await;
        reply.expect(200);
        assert_eq!(reply.header("etag"), None, "{part}");
    }
}

#[tokio::test]
async fn a_request_that_expires_unseen_changes_the_tag() {
    let world = World::new().await;
    let (vera, agent, task) = (world.person("vera"), world.agent().await, world.task().await);
    let path = format!("/agent-tasks/{task}/requests");
    // Before the database's clock reaches the end, the first look is over.
    let soon = world.now().plus(std::time::Duration::from_secs(2)).to_string();
    let ask = json!({"kind": "feedback", "title": "Now?", "expires_at": soon});
    agent.on(&task, "requests", ask).await.expect(201);
    let open = vera.get(&path).await;
    assert_eq!(open.body[0]["status"], "open");
    let known = tag(&open);
    let version = world.last_seq(&task).await;
    eventually("its time is over", async || get_if(&vera, &path, &known).await.status == 200).await;
    let expired = get_if(&vera, &path, &known).await;
    assert_eq!(expired.body[0]["status"], "expired");
    assert_eq!(tag(&expired), format!("\"{version}-1\""));
    assert_eq!(world.last_seq(&task).await, version, "nobody wrote it");
    world.step().await;
    let written = get_if(&vera, &path, &tag(&expired)).await;
    assert_eq!(tag(&written), format!("\"{}\"", world.last_seq(&task).await));
    assert_ne!(written.body, expired.body, "it has a time now");
}

#[tokio::test]
async fn a_condition_is_looked_at_behind_all_other_checks() {
    let world = World::new().await;
    let task = world.task().await;
    let packer = Seed::agent(&world.db, world.seed.organization_id, "packer").await;
    let packer = world.account(&packer.client_id, &packer.client_secret).await;
    let vera = world.person("vera");
    for part in ["", "/requests", "/usage", "/events"] {
        let path = format!("/agent-tasks/{task}{part}");
        get_if(&world.anyone(), &path, "*").await.refused(401, "unauthenticated");
        get_if(&packer, &path, "*").await.refused(403, "agent_task_forbidden");
        get_if(&vera, &path.replace("T-1", "T-99"), "*").await.refused(404, "task_not_found");
    }
    get_if(&vera, &format!("/agent-tasks/{task}/usage?limit=0"), "*").await.refused(422, "invalid_body");
    get_if(&vera, &format!("/agent-tasks/{task}/usage?cursor=x"), "*").await.refused(400, "invalid_cursor");
    get_if(&vera, &format!("/agent-tasks/{task}/events?after_seq=x"), "*").await.refused(422, "invalid_body");
}

async fn resolve_if(person: &Client, task: &str, id: &str, version: &str, body: &Value) -> Reply {
    let path = format!("/agent-tasks/{task}/requests/{id}/resolve");
    person.send(person.request(Method::POST, &path).header("if-match", version).json(body)).await
}

#[tokio::test]
async fn a_task_is_resolved_only_as_it_was_looked_at() {
    let world = World::new().await;
    let (abe, agent) = (world.person("abe"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    let (first, second) = (agent.ask(&task, &[]).await, agent.ask(&task, &[]).await);
    let answer = json!({"status": "answered", "answer": "Yes."});
    let path = format!("/agent-tasks/{task}");
    let old = tag(&abe.get(&path).await);
    agent.say(&task, &session, "Wait, there is more").await.expect(201);
    let new = tag(&abe.get(&path).await);
    let before = world.footprint().await;
    for stale in [old.clone(), format!("W/{new}"), format!("{old}, \"1\""), "\"-1\"".to_owned()] {
        let reply = resolve_if(&abe, &task, &first, &stale, &answer).await;
        let told = reply.refused(412, "precondition_failed");
        assert_eq!(told["last_seq"].to_string(), new.trim_matches('"'), "{stale}");
    }
    assert_eq!(world.footprint().await, before, "nothing was written");
    let resolved = resolve_if(&abe, &task, &first, &format!("{old}, {new}"), &answer).await;
    resolved.expect(201);
    // The repeat is answered, though the first call moved the task.
    let repeated = resolve_if(&abe, &task, &first, &new, &answer).await;
    assert_eq!(repeated.expect(200), &resolved.body);
    resolve_if(&abe, &task, &second, "*", &answer).await.expect(201);
}

#[tokio::test]
async fn the_precondition_ranks_behind_the_requests_state_and_before_what_is_said() {
    let world = World::new().await;
    let (abe, ada, agent, task) = (world.person("abe"), world.person("ada"), world.agent().await, world.task().await);
    let digest = format!("sha256:{}", "a".repeat(64));
    let ask = json!({"kind": "approval", "title": "Ship?", "artifact_digests": [digest]});
    let open = agent.on(&task, "requests", ask).await.expect(201)["request"]["id"].as_str().unwrap().to_owned();
    let settled = agent.ask(&task, &[]).await;
    let answer = json!({"status": "answered", "answer": "Yes."});
    resolve_if(&ada, &task, &settled, "*", &answer).await.expect(201);
    let approve = json!({"status": "approved", "artifact_digests": [digest]});
    let stale = "\"1\"";
    let unknown = "01890a5d-ac96-774b-bcce-b302099a8057";
    resolve_if(&world.anyone(), &task, &open, stale, &approve).await.refused(401, "unauthenticated");
    resolve_if(&abe, &task, unknown, stale, &approve).await.refused(404, "request_not_found");
    resolve_if(&agent, &task, &open, stale, &approve).await.refused(403, "person_required");
    resolve_if(&world.person("vera"), &task, &open, stale, &approve).await.refused(403, "permission_denied");
    resolve_if(&abe, &task, &settled, stale, &answer).await.refused(409, "request_resolved");
    let path = format!("/agent-tasks/{task}/requests/{open}/resolve");
    let request = abe.request(Method::POST, &path).header("if-match", stale).header("content-type", "application/json");
    abe.send(request.body("{")).await.refused(400, "invalid_json");
    for body in [json!({"status": "maybe"}), json!({"status": "approved", "artifact_digests": []}), answer.clone()] {
        resolve_if(&abe, &task, &open, stale, &body).await.refused(412, "precondition_failed");
    }
    for unreadable in ["17", "\"17", "*, \"17\""] {
        let reply = resolve_if(&abe, &task, &open, unreadable, &approve).await;
        assert_eq!(reply.refused(422, "invalid_body")["errors"][0]["header"], "If-Match", "{unreadable}");
    }
    resolve_if(&abe, &task, &settled, "17", &answer).await.refused(409, "request_resolved");
    agent.finish(&task).await.expect(200);
    resolve_if(&abe, &task, &open, stale, &approve).await.refused(409, "request_resolved");
}

#[tokio::test]
async fn an_expired_request_is_told_before_the_precondition() {
    let world = World::new().await;
    let (abe, task) = (world.person("abe"), world.task().await);
    // Some time ago by the server's clock, so that it is over by the database's.
    world.skew_clock(-600);
    let agent = world.agent().await;
    let soon = world.now().plus(std::time::Duration::from_mins(1)).to_string();
    let ask = json!({"kind": "feedback", "title": "Now?", "expires_at": soon});
    let id = agent.on(&task, "requests", ask).await.expect(201)["request"]["id"].as_str().unwrap().to_owned();
    world.skew_clock(0);
    let answer = json!({"status": "answered", "answer": "Yes."});
    resolve_if(&abe, &task, &id, "\"1\"", &answer).await.refused(409, "request_expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_who_looked_at_the_same_version_one_resolves() {
    let world = World::new().await;
    let beside = World::beside(&world).await;
    let agent = world.agent().await;
    let (abe, ada) = (world.person("abe"), world.person("ada").at(&beside.base));
    let answer = json!({"status": "answered", "answer": "Yes."});
    for _ in 0..10 {
        let task = world.task().await;
        let (one, other) = (agent.ask(&task, &[]).await, agent.ask(&task, &[]).await);
        let version = tag(&abe.get(&format!("/agent-tasks/{task}")).await);
        let (first, second) = tokio::join!(
            resolve_if(&abe, &task, &one, &version, &answer),
            resolve_if(&ada, &task, &other, &version, &answer)
        );
        let mut statuses = [first.status, second.status];
        statuses.sort_unstable();
        assert_eq!(statuses, [201, 412], "{} {}", first.text, second.text);
    }
    beside.stop().await;
}
