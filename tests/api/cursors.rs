//! Every list that is paged: its cursor leads on in that very list, and nowhere else.

use serde_json::{Value, json};

use crate::support::{Client, Seed, World, eventually};

/// Every list, with a filter where it has one.
const LISTS: [&str; 11] = [
    "/agent-tasks/?status=queued",
    "/agent-tasks/?sort=status_since",
    "/agent-tasks/?label=team=core",
    "/agent-tasks/?q=look",
    "/requests?status=open",
    "/agent-tasks/T-1/usage?",
    "/operations-log?",
    "/members?",
    "/agents?",
    "/projects?",
    "/directory-audit?",
];

/// A world in which every list has three entries at least.
async fn peopled() -> World {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    for slug in ["packer", "porter", "pilot"] {
        Seed::agent(&world.db, world.seed.organization_id, slug).await;
        ada.put(&format!("/projects/{slug}"), &json!({"name": slug})).await.expect(201);
    }
    for _ in 0..7 {
        world.task_with(json!({"title": "Look", "labels": {"team": "core"}})).await;
    }
    for (task, key) in [("T-2", "a"), ("T-3", "b"), ("T-4", "c")] {
        agent.ask(task, &[]).await;
        agent.spend("T-1", key, 1, 1).await.expect(201);
    }
    for _ in 0..3 {
        let task = world.task().await;
        agent.finish(&task).await.expect(200);
    }
    eventually("the log has what was done", async || {
        ada.get("/operations-log").await.body.as_array().is_some_and(|all| all.len() >= 3)
    })
    .await;
    world
}

/// The cursor of the link to the second page of one entry each.
async fn cursor(client: &Client, list: &str) -> String {
    let first = client.get(&format!("{list}&limit=1")).await;
    assert_eq!(first.expect(200).as_array().map(Vec::len), Some(1), "{list}");
    let next = first.next().unwrap_or_else(|| panic!("{list} has one page"));
    next.split("cursor=").nth(1).unwrap().split('&').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_cursor_leads_on_in_its_own_list_alone() {
    let world = peopled().await;
    let ada = world.person("ada");
    let all = |reply: &Value| reply.as_array().unwrap().clone();
    for list in LISTS {
        let cursor = cursor(&ada, list).await;
        let whole = all(ada.get(&format!("{list}&limit=100")).await.expect(200));
        let rest = all(ada.get(&format!("{list}&limit=100&cursor={cursor}")).await.expect(200));
        assert_eq!(rest, whole[1..], "{list}");
        for other in LISTS.iter().filter(|other| **other != list) {
            ada.get(&format!("{other}&cursor={cursor}")).await.refused(400, "invalid_cursor");
        }
        ada.get(&format!("{list}&unknown=1&cursor={cursor}")).await.refused(400, "invalid_cursor");
    }
}

#[tokio::test]
async fn a_cursor_that_was_changed_is_refused_by_every_list() {
    let world = peopled().await;
    let ada = world.person("ada");
    for list in LISTS {
        let cursor = cursor(&ada, list).await;
        for at in 0..cursor.len() {
            let mut changed = cursor.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            ada.get(&format!("{list}&cursor={changed}")).await.refused(400, "invalid_cursor");
        }
        for bad in [&cursor[1..], &format!("{cursor}A"), &cursor.to_lowercase(), "x", "%00", "%F0%9F%98%80"] {
            ada.get(&format!("{list}&cursor={bad}")).await.refused(400, "invalid_cursor");
        }
    }
}

#[tokio::test]
async fn a_cursor_of_one_organization_leads_nowhere_in_another() {
    let world = peopled().await;
    let ada = world.person("ada");
    let globex = Seed::plant(&world.db, "globex").await;
    let there = ada.in_organization(&globex.slug);
    there.post("/agent-tasks/", &json!({"agent_slug": "reviewer", "title": "x", "description": ""})).await.expect(201);
    for list in LISTS {
        let cursor = cursor(&ada, list).await;
        there.get(&format!("{list}&cursor={cursor}")).await.refused(400, "invalid_cursor");
    }
}

#[tokio::test]
async fn pages_of_the_inbox_tell_each_request_once_while_others_open_and_settle() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    world.freeze_clock();
    let mut asked = Vec::new();
    for _ in 0..7 {
        asked.push(agent.ask(&world.task().await, &[]).await);
    }
    let (mut seen, mut next) = (Vec::new(), Some("/organizations/acme/requests?limit=2".to_owned()));
    while let Some(path) = next {
        let page = ada.get(&format!("/{path}")).await;
        seen.extend(page.expect(200).as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()));
        next = page.next();
        if seen.len() == 2 {
            let settled = ada.get("/requests?limit=1").await.expect(200)[0].clone();
            let path =
                format!("/agent-tasks/{}/requests/{}/resolve", settled["task"]["short_id"].as_str().unwrap(), seen[0]);
            ada.post(&path, &json!({"status": "answered", "answer": "Yes."})).await.expect(201);
            agent.ask("T-1", &[]).await;
        }
    }
    assert!(asked.iter().all(|id| seen.iter().filter(|other| *other == id).count() == 1), "{asked:?} {seen:?}");
}

#[tokio::test]
async fn the_inbox_finds_by_status_kind_and_agent_together() {
    let world = World::new().await;
    let ada = world.person("ada");
    let other = Seed::agent(&world.db, world.seed.organization_id, "packer").await;
    // A token of then is good now too.
    world.skew_clock(-600);
    let agent = world.agent().await;
    let packer = world.account(&other.client_id, &other.client_secret).await;
    world.skew_clock(0);
    let approval =
        json!({"kind": "approval", "title": "Ship?", "artifact_digests": [format!("sha256:{}", "a".repeat(64))]});
    let (first, second) = (world.task().await, world.task_with(json!({"agent_slug": "packer"})).await);
    for (client, task) in [(&agent, &first), (&packer, &second)] {
        client.ask(task, &[]).await;
        client.on(task, "requests", approval.clone()).await.expect(201);
    }
    // One whose time was over before any worker saw it, beside one that a worker has seen.
    world.skew_clock(-600);
    let late = json!({"kind": "feedback", "title": "Now?",
        "expires_at": world.now().plus(std::time::Duration::from_mins(1)).to_string()});
    let seen = world.task().await;
    agent.on(&seen, "requests", late.clone()).await.expect(201);
    world.skew_clock(0);
    world.step().await;
    world.skew_clock(-600);
    agent.on(&first, "requests", late).await.expect(201);
    world.skew_clock(0);
    let count = async |query: &str| ada.all(&format!("/requests?limit=1&{query}")).await.len();
    let of_packer = format!("agent_id={}", other.id);
    for (query, expected) in [
        ("", 4),
        ("kind=feedback", 2),
        ("kind=approval", 2),
        (of_packer.as_str(), 2),
        (&format!("{of_packer}&kind=approval"), 1),
        ("status=expired", 2),
        ("status=expired&kind=feedback", 2),
        ("status=expired&kind=approval", 0),
        (&format!("status=expired&{of_packer}"), 0),
        ("status=answered", 0),
    ] {
        assert_eq!(count(query).await, expected, "{query}");
    }
    let waiting = ada.get("/agent-tasks/waiting").await.expect(200).clone();
    assert_eq!((&waiting["requests"], &waiting["feedback"], &waiting["approval"]), (&json!(4), &json!(2), &json!(2)));
}

#[tokio::test]
async fn a_search_that_takes_too_long_says_so_and_leaves_the_rest_alone() {
    let world = World::with(|settings| settings.database.search_timeout_ms = 50).await;
    let vera = world.person("vera");
    world.task_with(json!({"title": "Look"})).await;
    assert_eq!(vera.all("/agent-tasks/?q=look").await.len(), 1);
    let mut hold = world.db.begin().await.unwrap();
    sqlx::query("LOCK TABLE agent_runtime.task_texts IN ACCESS EXCLUSIVE MODE").execute(&mut *hold).await.unwrap();
    let reply = vera.get("/agent-tasks/?q=look").await;
    let told = reply.refused(503, "unavailable");
    assert_eq!(told["errors"][0]["parameter"], "q");
    assert!(told["detail"].as_str().unwrap().contains("narrow it"), "{told}");
    assert!(reply.header("retry-after").is_some());
    vera.get("/agent-tasks/").await.expect(200);
    hold.rollback().await.unwrap();
    // The limit was the search's alone.
    assert_eq!(vera.all("/agent-tasks/?q=look").await.len(), 1);
}

#[tokio::test]
async fn the_audit_finds_a_task_that_is_found_by_something_else() {
    let world = World::new().await;
    world.spoil().await;
    world.task_with(json!({"title": "Über", "labels": {"team": "core", "tier": "1"}})).await;
    assert_eq!(world.audit().await, Vec::<String>::new());
    let spoil = "SET LOCAL session_replication_role = replica;
        UPDATE agent_runtime.task_labels SET value = '2' WHERE key = 'tier';
        DELETE FROM agent_runtime.task_texts";
    sqlx::raw_sql(spoil).execute(&mut *world.db.begin().await.unwrap()).await.unwrap();
    assert_eq!(world.audit().await, Vec::<String>::new(), "it was rolled back");
    let mut changed = world.db.begin().await.unwrap();
    sqlx::raw_sql(spoil).execute(&mut *changed).await.unwrap();
    changed.commit().await.unwrap();
    let findings = world.audit().await;
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert!(findings[0].contains(r#"found by the labels {"team": "core", "tier": "2"}"#), "{findings:?}");
    assert!(findings[1].contains("found by the texts []"), "{findings:?}");
}
