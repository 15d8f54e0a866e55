//! Lists: filtered, paged without loss or repetition, and only of what the caller may read.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Client, Seed, World};

fn short_ids(tasks: &[Value]) -> Vec<String> {
    tasks.iter().map(|task| task["short_id"].as_str().unwrap().to_owned()).collect()
}

/// The short ids of a list, sorted by number.
async fn found(client: &Client, query: &str) -> Vec<u32> {
    let tasks = client.all(&format!("/agent-tasks/{query}")).await;
    let mut numbers: Vec<u32> = short_ids(&tasks).iter().map(|id| id[2..].parse().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

#[tokio::test]
async fn tasks_of_one_microsecond_are_each_listed_once_while_others_are_created() {
    let world = World::new().await;
    let vera = world.person("vera");
    world.freeze_clock();
    for _ in 0..25 {
        world.task().await;
    }
    let first = vera.all("/agent-tasks/?limit=100").await;
    let instants: BTreeSet<_> = first.iter().map(|task| task["created_at"].as_str().unwrap()).collect();
    assert_eq!((first.len(), instants.len()), (25, 1));
    for query in ["?limit=10", "?limit=10&sort=status_since"] {
        let (mut seen, mut sizes) = (Vec::new(), Vec::new());
        let mut next = Some(format!("/organizations/acme/agent-tasks/{query}"));
        while let Some(path) = next {
            let page = vera.get(&format!("/{path}")).await;
            let tasks = page.expect(200).as_array().unwrap();
            sizes.push(tasks.len());
            seen.extend(short_ids(tasks));
            next = page.next();
            if sizes.len() <= 3 {
                world.task().await;
            }
        }
        let mut known: Vec<_> = short_ids(&first);
        known.retain(|id| !seen.contains(id));
        assert_eq!(known, Vec::<String>::new(), "{query}: {sizes:?}");
        assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), seen.len(), "{query}: {seen:?}");
    }
}

#[tokio::test]
async fn a_cursor_that_was_changed_or_belongs_to_another_query_is_refused() {
    let world = World::new().await;
    let vera = world.person("vera");
    for _ in 0..3 {
        world.task().await;
    }
    let first = vera.get("/agent-tasks/?limit=1&status=queued").await;
    let next = first.next().unwrap();
    let cursor = next.split("cursor=").nth(1).unwrap().split('&').next().unwrap().to_owned();
    let with = |query: &str, cursor: &str| format!("/agent-tasks/?{query}&cursor={cursor}");
    let page = vera.get(&with("status=queued&limit=1", &cursor)).await;
    assert_eq!(short_ids(page.expect(200).as_array().unwrap()), ["T-2"]);
    let page = vera.get(&with("limit=2&status=queued", &cursor)).await;
    assert_eq!(page.expect(200).as_array().unwrap().len(), 2, "another limit is the same list");
    for at in 0..cursor.len() {
        let mut bytes = cursor.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        let tampered = String::from_utf8(bytes).unwrap();
        vera.get(&with("status=queued&limit=1", &tampered)).await.refused(400, "invalid_cursor");
    }
    let (shorter, longer) = (&cursor[1..], format!("{cursor}A"));
    for bad in [shorter, &longer, "x", "%00", "T-2", "..%2F"] {
        vera.get(&with("status=queued", bad)).await.refused(400, "invalid_cursor");
    }
    for query in
        ["", "status=running", "status=queued&sort=status_since", "status=queued&q=task", "status=queued&mine=false"]
    {
        vera.get(&with(query, &cursor)).await.refused(400, "invalid_cursor");
    }
    for path in ["/agent-tasks/T-1/usage?status=queued", "/requests?status=queued"] {
        let reply = vera.get(&format!("{path}&cursor={cursor}")).await;
        assert!(matches!(reply.status, 400 | 422), "{path}: {}", reply.text);
    }
    // An organization's cursor leads nowhere in another.
    let globex = Seed::plant(&world.db, "globex").await;
    let elsewhere = vera.in_organization(&globex.slug);
    elsewhere.get(&with("status=queued", &cursor)).await.refused(400, "invalid_cursor");
}

#[tokio::test]
async fn bounds_and_values_of_a_filter_are_checked() {
    let world = World::new().await;
    let vera = world.person("vera");
    for (query, parameter) in [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=-5", "limit"),
        ("limit=x", "limit"),
        ("status=asleep", "status"),
        ("status=queued&status=Queued", "status"),
        ("agent_id=reviewer", "agent_id"),
        ("project_id=1", "project_id"),
        ("mine=perhaps", "mine"),
        ("label=team", "label"),
        ("sort=title", "sort"),
        ("origin_kind=email", "origin_kind"),
        ("q=ab", "q"),
        ("q=%C3%BC%C3%BC", "q"),
    ] {
        let reply = vera.get(&format!("/agent-tasks/?{query}")).await;
        assert_eq!(reply.refused(422, "invalid_body")["errors"][0]["parameter"], parameter, "{query}");
    }
    let labels = |count: usize| (0..count).map(|n| format!("label=k{n}=v")).collect::<Vec<_>>().join("&");
    let reply = vera.get(&format!("/agent-tasks/?{}", labels(17))).await;
    assert_eq!(reply.refused(422, "invalid_body")["errors"][0]["parameter"], "label");
    vera.get(&format!("/agent-tasks/?{}&{0}", labels(16))).await.expect(200);
    for (query, parameter) in [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("status=maybe", "status"),
        ("kind=order", "kind"),
        ("agent_id=1", "agent_id"),
    ] {
        let reply = vera.get(&format!("/requests?{query}")).await;
        assert_eq!(reply.refused(422, "invalid_body")["errors"][0]["parameter"], parameter, "{query}");
    }
    vera.get("/agent-tasks/?limit=100").await.expect(200);
    vera.get("/agent-tasks/?limit=&status=&cursor=&unknown=1").await.expect(200);
}

#[tokio::test]
async fn a_page_holds_fifty_tasks_unless_the_query_says() {
    let world = World::new().await;
    for _ in 0..51 {
        world.task().await;
    }
    let vera = world.person("vera");
    let pages = vera.pages("/agent-tasks/").await;
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [50, 1]);
    let newest_first: Vec<_> = (1..=51).rev().map(|n| format!("T-{n}")).collect();
    assert_eq!(short_ids(&pages.concat()), newest_first);
    let pages = vera.pages("/agent-tasks/?limit=17").await;
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [17, 17, 17], "a full last page leads nowhere");
}

#[tokio::test]
async fn every_filter_finds_its_tasks_and_no_others() {
    let world = World::new().await;
    let agent = world.agent().await;
    let other = Seed::agent(&world.db, world.seed.organization_id, "packer").await;
    let project = world.seed.project_id;
    let (ada, oscar) = (world.person("ada"), world.person("oscar"));
    let create = async |client: &Client, more: Value| {
        let mut body = json!({"agent_slug": "reviewer", "title": "Look", "description": "Do."});
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        client.post("/agent-tasks/", &body).await.expect(201);
    };
    create(&ada, json!({"subject": "repo#1", "labels": {"team": "core", "tier": "1"}})).await;
    create(&oscar, json!({"subject": "repo#2", "labels": {"team": "core", "tier": "2"}})).await;
    create(&ada, json!({"agent_slug": "packer", "title": "100% of_it \\ done", "labels": {"a=b": "c=d"}})).await;
    create(&ada, json!({"project_id": project, "title": "ÜBER-sicht"})).await;
    let trigger = world.account(&world.seed.trigger_client_id, &world.seed.trigger_client_secret).await;
    let scheduled = json!({"agent_slug": "reviewer", "title": "Nightly", "description": "Do."});
    let request = trigger.request(reqwest::Method::POST, "/agent-tasks/").json(&scheduled);
    let request = request.header("X-Mandate-Scheduled-Task", "nightly").header("X-Mandate-Accountable", "oscar");
    trigger.send(request).await.expect(201);
    let request = trigger.request(reqwest::Method::POST, "/agent-tasks/").json(&scheduled);
    let request = request.header("X-Mandate-Webhook", "hook").header("X-Mandate-Delivery", "d1");
    trigger.send(request.header("X-Mandate-Accountable", "ada")).await.expect(201);
    agent.open_session("T-1", "s").await;
    agent.ask("T-2", &[]).await;
    ada.post_nothing("/agent-tasks/T-4/pause").await.expect(200);
    agent.finish("T-5").await.expect(200);

    let reviewer = world.seed.agent.id;
    for (query, expected) in [
        ("?status=queued".to_owned(), vec![3, 6]),
        ("?status=running".to_owned(), vec![1]),
        ("?status=blocked&status=paused".to_owned(), vec![2, 4]),
        ("?status=closed&status=running&status=closed".to_owned(), vec![1, 5]),
        (format!("?agent_id={}", other.id), vec![3]),
        (format!("?agent_id={reviewer}&status=closed"), vec![5]),
        (format!("?agent_id={}", Uuid::nil()), vec![]),
        ("?owner=oscar".to_owned(), vec![2, 5]),
        ("?owner=OSCAR".to_owned(), vec![2, 5]),
        ("?owner=nobody".to_owned(), vec![]),
        ("?mine=true".to_owned(), vec![1, 3, 4, 6]),
        ("?mine=true&owner=ada".to_owned(), vec![1, 3, 4, 6]),
        ("?mine=true&owner=oscar".to_owned(), vec![]),
        ("?mine=false&owner=oscar".to_owned(), vec![2, 5]),
        ("?mine=false".to_owned(), vec![1, 2, 3, 4, 5, 6]),
        (format!("?project_id={project}"), vec![4]),
        ("?origin_kind=human".to_owned(), vec![1, 2, 3, 4]),
        ("?origin_kind=schedule".to_owned(), vec![5]),
        ("?origin_kind=webhook".to_owned(), vec![6]),
        ("?origin_kind=task".to_owned(), vec![]),
        ("?subject=repo%231".to_owned(), vec![1]),
        ("?subject=repo".to_owned(), vec![]),
        ("?label=team=core".to_owned(), vec![1, 2]),
        ("?label=team=core&label=tier=2".to_owned(), vec![2]),
        ("?label=tier=1&label=tier=2".to_owned(), vec![]),
        ("?label=team=cor".to_owned(), vec![]),
        ("?q=look".to_owned(), vec![1, 2]),
        ("?q=PACKER".to_owned(), vec![3]),
        ("?q=100%25".to_owned(), vec![3]),
        ("?q=of_it".to_owned(), vec![3]),
        ("?q=ofXit".to_owned(), vec![]),
        ("?q=%5C+done".to_owned(), vec![3]),
        ("?q=%C3%9Cber-S".to_owned(), vec![4]),
        ("?q=t-6".to_owned(), vec![6]),
        ("?q=T-66".to_owned(), vec![]),
        ("?q=T-06".to_owned(), vec![]),
        ("?q=t%1F6".to_owned(), vec![6]),
        ("?q=app".to_owned(), vec![4]),
        ("?q=%C3%BCber".to_owned(), vec![4]),
        ("?q=look&owner=oscar&label=team=core&status=blocked".to_owned(), vec![2]),
    ] {
        assert_eq!(found(&ada, &query).await, expected, "{query}");
        let by_one: Vec<u32> = found(&ada, &format!("{query}&limit=1")).await;
        assert_eq!(by_one, expected, "{query}, one by one");
    }
    // The key ends at the first `=`.
    assert_eq!(found(&ada, "?label=a=b=c=d").await, Vec::<u32>::new());
}

#[tokio::test]
async fn sorted_by_status_since_the_longest_waiting_comes_first() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    for _ in 0..5 {
        world.task().await;
    }
    agent.ask("T-2", &[]).await;
    ada.post_nothing("/agent-tasks/T-1/pause").await.expect(200);
    agent.spend("T-3", "u", 1, 1).await.expect(201);
    ada.post(&format!("/agent-tasks/{}/reassign", "T-4"), &json!({"owner": "oscar"})).await.expect(200);
    let all = ada.all("/agent-tasks/?sort=status_since&limit=2").await;
    assert_eq!(short_ids(&all), ["T-3", "T-4", "T-5", "T-2", "T-1"]);
    let since: Vec<_> = all.iter().map(|task| task["status_since"].as_str().unwrap()).collect();
    assert!(since.is_sorted(), "{since:?}");
    assert_eq!(short_ids(&ada.all("/agent-tasks/?sort=created_at").await)[0], "T-5");
}

#[tokio::test]
async fn the_inbox_tells_each_request_with_its_task_and_counts_who_waits() {
    let world = World::new().await;
    let (ada, vera, agent) = (world.person("ada"), world.person("vera"), world.agent().await);
    let other = Seed::agent(&world.db, world.seed.organization_id, "packer").await;
    let packer = world.account(&other.client_id, &other.client_secret).await;
    let (first, second) = (world.task().await, world.task_with(json!({"agent_slug": "packer"})).await);
    let closed = world.task().await;
    let count = async |client: &Client| client.get("/agent-tasks/waiting").await.expect(200)["count"].clone();
    assert_eq!(count(&vera).await, 0);
    let one = agent.ask(&first, &["yes"]).await;
    let digest = format!("sha256:{}", "a".repeat(64));
    let approval = json!({"kind": "approval", "title": "Ship?", "artifact_digests": [digest]});
    let two = packer.post(&format!("/agent-tasks/{second}/requests"), &approval).await;
    let two = two.expect(201)["request"]["id"].as_str().unwrap().to_owned();
    let three = agent.ask(&first, &[]).await;
    agent.ask(&closed, &[]).await;
    agent.finish(&closed).await.expect(200);
    assert_eq!(count(&vera).await, 2, "tasks, not requests; closed ones do not wait");
    let waiting = async |client: &Client| client.get("/agent-tasks/waiting").await.expect(200).clone();
    assert_eq!(waiting(&vera).await, json!({"count": 2, "requests": 3, "feedback": 2, "approval": 1}));
    assert_eq!(waiting(&agent).await, json!({"count": 1, "requests": 2, "feedback": 2, "approval": 0}));
    assert_eq!((count(&agent).await, count(&packer).await), (json!(1), json!(1)), "of its own agent");

    let ids = |rows: &[Value]| rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    let inbox = vera.all("/requests").await;
    assert_eq!(ids(&inbox), [one.clone(), two.clone(), three.clone()], "oldest first");
    assert_eq!(inbox[1]["task"]["short_id"], json!(second));
    assert_eq!(inbox[1]["task"]["status"], "blocked");
    assert_eq!((&inbox[1]["kind"], &inbox[1]["artifact_digests"][0]), (&json!("approval"), &json!(digest)));
    let read = vera.get(&format!("/agent-tasks/{second}")).await;
    assert_eq!(&inbox[1]["task"], read.expect(200), "the whole task");
    assert_eq!(vera.pages("/requests?limit=2").await.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(ids(&vera.all("/requests?limit=1").await), ids(&inbox));
    assert_eq!(ids(&vera.all("/requests?kind=approval").await), std::slice::from_ref(&two));
    assert_eq!(ids(&vera.all(&format!("/requests?agent_id={}", other.id)).await), std::slice::from_ref(&two));
    assert_eq!(ids(&vera.all("/requests?status=answered").await), Vec::<String>::new());
    let path = format!("/agent-tasks/{first}/requests/{one}/resolve");
    ada.post(&path, &json!({"status": "answered", "choice": "yes"})).await.expect(201);
    assert_eq!(ids(&vera.all("/requests?status=open").await), [two, three]);
    assert_eq!(ids(&vera.all("/requests?status=answered").await), [one]);
    assert_eq!(vera.all("/requests?status=void").await.len(), 1);
    assert_eq!(count(&vera).await, 2);
    for service in [&agent, &packer] {
        service.get("/requests").await.refused(403, "permission_denied");
    }
}

#[tokio::test]
async fn a_service_account_sees_its_own_tasks_and_a_parents_account_its_children() {
    let world = World::new().await;
    let agent = world.agent().await;
    let other = Seed::agent(&world.db, world.seed.organization_id, "packer").await;
    let packer = world.account(&other.client_id, &other.client_secret).await;
    let trigger = world.account(&world.seed.trigger_client_id, &world.seed.trigger_client_secret).await;
    let (own, others) = (world.task().await, world.task_with(json!({"agent_slug": "packer"})).await);
    let scheduled = json!({"agent_slug": "packer", "title": "Nightly", "description": "Do."});
    let request = trigger.request(reqwest::Method::POST, "/agent-tasks/").json(&scheduled);
    let request = request.header("X-Mandate-Scheduled-Task", "nightly").header("X-Mandate-Accountable", "ada");
    let nightly = trigger.send(request).await.expect(201)["short_id"].as_str().unwrap().to_owned();
    let part = json!({"agent_slug": "packer", "title": "Child", "description": ""});
    let child = agent.on(&own, "children", part).await.expect(201)["short_id"].as_str().unwrap().to_owned();

    assert_eq!(found(&agent, "").await, [1]);
    assert_eq!(found(&packer, "").await, [2, 3, 4]);
    assert_eq!(found(&trigger, "").await, [3]);
    assert_eq!(found(&trigger, "?owner=ada").await, [3]);
    assert_eq!(found(&agent, &format!("?agent_id={}", other.id)).await, Vec::<u32>::new());
    assert_eq!(found(&world.person("vera"), "?origin_kind=task").await, [4]);
    for service in [&agent, &trigger] {
        let reply = service.get("/agent-tasks/?mine=true").await;
        assert_eq!(reply.refused(422, "invalid_body")["errors"][0]["parameter"], "mine");
    }
    for part in ["", "/events", "/sessions", "/requests", "/usage"] {
        let read = async |client: &Client, task: &str| client.get(&format!("/agent-tasks/{task}{part}")).await;
        for (client, task) in [(&agent, &own), (&packer, &others), (&packer, &nightly), (&trigger, &nightly)] {
            read(client, task).await.expect(200);
        }
        read(&agent, &child).await.expect(200);
        read(&packer, &child).await.expect(200);
        read(&agent, &others).await.refused(403, "agent_task_forbidden");
        read(&agent, &nightly).await.refused(403, "agent_task_forbidden");
        read(&packer, &own).await.refused(403, "agent_task_forbidden");
        for task in [&own, &others, &child] {
            read(&trigger, task).await.refused(403, "permission_denied");
        }
        read(&agent, "T-99").await.refused(404, "task_not_found");
    }
    // To read a child is all that its parent's account may do.
    agent.say(&child, &Uuid::nil().to_string(), "Hello").await.refused(403, "agent_task_forbidden");
    agent.finish(&child).await.refused(403, "agent_task_forbidden");
    trigger.get("/agent-tasks/waiting").await.refused(403, "permission_denied");
}
