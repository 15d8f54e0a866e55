//! Agents: made, changed, disabled, deleted with what they work, stopped.

use futures::future::join_all;
use serde_json::{Value, json};
use sqlx::postgres::PgPoolOptions;

use crate::delegation;
use crate::support::{Client, Reply, World, eventually};

/// Makes an agent and answers what its PUT answered, and its account.
async fn make(world: &World, slug: &str, body: Value) -> (Value, Client) {
    let made = world.person("ada").put(&format!("/agents/{slug}"), &body).await.expect(201).clone();
    let account = world.account(made["client_id"].as_str().unwrap(), made["client_secret"].as_str().unwrap()).await;
    (made, account)
}

async fn create(client: &Client, agent: &str) -> Reply {
    client.post("/agent-tasks/", &json!({"agent_slug": agent, "title": "t", "description": ""})).await
}

async fn task_of(world: &World, agent: &str) -> String {
    create(&world.person("ada"), agent).await.expect(201)["short_id"].as_str().unwrap().to_owned()
}

/// How a task ended.
async fn ending(world: &World, task: &str) -> (Value, Value) {
    let read = world.person("ada").get(&format!("/agent-tasks/{task}")).await;
    let task = read.expect(200);
    (task["outcome"].clone(), task["outcome_reason"].clone())
}

fn ended(outcome: &str, reason: &str) -> (Value, Value) {
    (json!(outcome), json!(reason))
}

#[tokio::test]
async fn a_new_agent_comes_with_an_account_that_works_its_tasks() {
    let world = World::new().await;
    let (made, account) = make(&world, "writer", json!({"name": "Writer", "external_ref": "w-1"})).await;
    assert_eq!(
        (&made["slug"], &made["name"], &made["external_ref"]),
        (&json!("writer"), &json!("Writer"), &json!("w-1"))
    );
    assert_eq!((&made["version"], &made["prompt_version"], &made["enabled"]), (&json!(1), &json!(1), &json!(true)));
    let defaults = json!({"task_budget": null, "monthly_cost_cap": null, "max_concurrent_tasks": null,
        "task_timeout_seconds": null, "max_depth": 5, "max_children": 50});
    assert_eq!(made["settings"], defaults);
    let task = task_of(&world, "writer").await;
    let read = world.person("ada").get(&format!("/agent-tasks/{task}")).await;
    assert_eq!(read.expect(200)["agent_id"], made["id"]);
    assert_eq!(read.body["service_account_id"], made["service_account_id"]);
    account.open_session(&task, "s1").await;
    account.finish(&task).await.expect(200);
    // Another agent's account is none of it.
    let other = task_of(&world, "writer").await;
    world.agent().await.finish(&other).await.refused(403, "agent_task_forbidden");
    let trail = [("created".to_owned(), "agent".to_owned()), ("created".to_owned(), "credential".to_owned())];
    assert_eq!(world.trail().await, trail);
}

#[tokio::test]
async fn versions_only_rise_and_tasks_keep_what_they_pinned() {
    let world = World::new().await;
    let ada = world.person("ada");
    let task = world.task().await;
    let first = ada.get("/agents/reviewer").await.expect(200).clone();
    assert_eq!((&first["version"], &first["prompt_version"]), (&json!(3), &json!(7)));
    let raised = ada.put("/agents/reviewer", &json!({"name": "R", "version": 4, "prompt_version": 9})).await;
    assert_eq!((&raised.expect(200)["version"], &raised.body["prompt_version"]), (&json!(4), &json!(9)));
    assert_eq!((&raised.body["id"], &raised.body["service_account_id"]), (&first["id"], &first["service_account_id"]));
    let before = world.directory_footprint().await;
    let put = |body: Value| {
        let ada = ada.clone();
        async move { ada.put("/agents/reviewer", &body).await }
    };
    put(json!({"name": "S", "version": 3})).await.invalid_at(&["/version"]);
    put(json!({"name": "S", "version": 5, "prompt_version": 8})).await.invalid_at(&["/prompt_version"]);
    put(json!({"name": "S", "version": 1, "prompt_version": 1})).await.invalid_at(&["/version", "/prompt_version"]);
    assert_eq!(world.directory_footprint().await, before);
    let kept = put(json!({"name": "R"})).await;
    assert_eq!(kept.expect(200)["updated_at"], raised.body["updated_at"]);
    assert_eq!((&kept.body["version"], &kept.body["prompt_version"]), (&json!(4), &json!(9)), "absent: as they are");
    assert_eq!(world.directory_footprint().await, before, "the same again writes nothing");
    let pinned = ada.get(&format!("/agent-tasks/{task}")).await;
    assert_eq!((&pinned.expect(200)["agent_version"], &pinned.body["prompt_version"]), (&json!(3), &json!(7)));
    let new = create(&ada, "reviewer").await;
    assert_eq!((&new.expect(201)["agent_version"], &new.body["prompt_version"]), (&json!(4), &json!(9)));
}

#[tokio::test]
async fn versions_rise_under_parallel_changes() {
    let world = World::new().await;
    let ada = world.person("ada");
    let put = |version: i32| {
        let ada = ada.clone();
        async move { (version, ada.put("/agents/reviewer", &json!({"name": "R", "version": version})).await) }
    };
    let mut highest = 0;
    for (version, reply) in join_all([9, 4, 8, 5, 7, 6].map(put)).await {
        if reply.status == 422 {
            reply.invalid_at(&["/version"]);
        } else {
            reply.expect(200);
            highest = highest.max(version);
        }
    }
    assert_eq!(highest, 9);
    assert_eq!(ada.get("/agents/reviewer").await.expect(200)["version"], 9);
}

#[tokio::test]
async fn settings_are_replaced_whole_and_hold_for_new_tasks_only() {
    let world = World::new().await;
    let ada = world.person("ada");
    let before = world.task().await;
    let settings = json!({"task_budget": "5.50", "monthly_cost_cap": 500, "max_concurrent_tasks": 4,
        "task_timeout_seconds": 3600, "max_depth": 0, "max_children": 0});
    let id = ada.get("/agents/reviewer").await.body["id"].as_str().unwrap().to_owned();
    let put = ada.put(&format!("/agents/{id}"), &json!({"name": "R", "settings": settings})).await;
    let shown = json!({"task_budget": "5.5", "monthly_cost_cap": "500", "max_concurrent_tasks": 4,
        "task_timeout_seconds": 3600, "max_depth": 0, "max_children": 0});
    assert_eq!(put.expect(200)["settings"], shown);
    let after = world.task().await;
    let part = ada.put("/agents/reviewer", &json!({"name": "R", "settings": {"max_depth": 2}})).await;
    let rest = json!({"task_budget": null, "monthly_cost_cap": null, "max_concurrent_tasks": null,
        "task_timeout_seconds": null, "max_depth": 2, "max_children": 50});
    assert_eq!(part.expect(200)["settings"], rest);
    // A new name lifts no bound: settings that are not there stay.
    for body in [json!({"name": "R", "settings": null}), json!({"name": "Renamed"})] {
        assert_eq!(ada.put("/agents/reviewer", &body).await.expect(200)["settings"], rest);
    }
    let none = ada.put("/agents/reviewer", &json!({"name": "R", "settings": {}})).await;
    assert_eq!(none.expect(200)["settings"]["max_depth"], 5);
    for (task, budget) in [(&before, json!(null)), (&after, json!("5.5")), (&world.task().await, json!(null))] {
        assert_eq!(ada.get(&format!("/agent-tasks/{task}")).await.expect(200)["budget"], budget, "{task}");
    }
}

#[tokio::test]
async fn every_fault_of_an_agent_is_named_at_once() {
    let world = World::new().await;
    let ada = world.person("ada");
    let before = world.directory_footprint().await;
    let body = json!({"name": "", "version": 0, "prompt_version": "7", "enabled": "yes", "external_ref": "x".repeat(501),
        "settings": {"task_budget": "-1", "monthly_cost_cap": "1e3x", "max_concurrent_tasks": 0,
            "task_timeout_seconds": 0, "max_depth": -1, "max_children": 1.5}});
    for slug in ["reviewer", "fresh"] {
        let reply = ada.put(&format!("/agents/{slug}"), &body).await;
        reply.refused(422, "invalid_body");
        let mut places = reply.places();
        places.sort_unstable();
        let all = "/enabled /external_ref /name /prompt_version /settings/max_children /settings/max_concurrent_tasks \
            /settings/max_depth /settings/monthly_cost_cap /settings/task_budget /settings/task_timeout_seconds /version";
        assert_eq!(places, all.split(' ').collect::<Vec<_>>());
        ada.put(&format!("/agents/{slug}"), &json!({"settings": 5})).await.invalid_at(&["/settings", "/name"]);
        let huge = json!({"name": "n", "version": 2_147_483_648_i64, "settings": {"max_children": 2_147_483_648_i64}});
        ada.put(&format!("/agents/{slug}"), &huge).await.invalid_at(&["/settings/max_children", "/version"]);
    }
    assert_eq!(world.directory_footprint().await, before);
}

#[tokio::test]
async fn a_disabled_agent_takes_no_new_task_and_ends_those_it_has() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    let waiting = world.task().await;
    let put = ada.put("/agents/reviewer", &json!({"name": "R", "enabled": false})).await;
    assert_eq!(put.expect(200)["enabled"], false);
    let before = world.footprint().await;
    create(&ada, "reviewer").await.refused(409, "agent_disabled");
    assert_eq!(world.footprint().await, before);
    agent.say(&task, &session, "I go on.").await.expect(201);
    agent.spend(&task, "u1", 1, 1).await.expect(201);
    agent.open_session(&waiting, "s2").await;
    world.agent().await.finish(&task).await.expect(200);
    let renamed = ada.put("/agents/reviewer", &json!({"name": "Renamed"})).await;
    assert_eq!(renamed.expect(200)["enabled"], false, "absent: as it is");
    ada.put("/agents/reviewer", &json!({"name": "R", "enabled": true})).await.expect(200);
    create(&ada, "reviewer").await.expect(201);
}

#[tokio::test]
async fn an_agent_with_open_tasks_is_deleted_only_by_force_which_closes_them() {
    let world = World::new().await;
    let ada = world.person("ada");
    let (made, account) = make(&world, "writer", json!({"name": "Writer", "version": 4})).await;
    let (done, queued, working) =
        (task_of(&world, "writer").await, task_of(&world, "writer").await, task_of(&world, "writer").await);
    account.finish(&done).await.expect(200);
    account.open_session(&working, "s1").await;
    account.ask(&working, &[]).await;
    let (done_before, others) = (world.still(&done).await, world.task().await);
    let others_before = world.still(&others).await;
    let (runtime, directory) = (world.footprint().await, world.directory_footprint().await);
    for query in ["", "?force=false"] {
        let refused = ada.delete(&format!("/agents/writer{query}")).await;
        assert_eq!(refused.refused(409, "open_tasks")["open_tasks"], 2);
    }
    ada.delete("/agents/writer?force=perhaps").await.invalid_at(&["force"]);
    assert_eq!((world.footprint().await, world.directory_footprint().await), (runtime, directory));
    account.get(&format!("/agent-tasks/{queued}")).await.expect(200);
    ada.delete("/agents/writer?force=true").await.expect(204);
    for task in [&queued, &working] {
        assert_eq!(ending(&world, task).await, ended("unhandled_no_actor", "agent_deleted"), "{task}");
        world.sound(task).await;
        let read = ada.get(&format!("/agent-tasks/{task}")).await;
        let both = (&read.expect(200)["agent_id"], &read.body["service_account_id"]);
        assert_eq!(both, (&made["id"], &made["service_account_id"]));
        assert_eq!((&read.body["agent_slug"], &read.body["agent_version"]), (&json!("writer"), &json!(4)));
        assert_eq!((&read.body["open_sessions"], &read.body["open_requests"]), (&json!(0), &json!(0)));
        let last = world.log(task).await;
        let set = last.iter().find(|event| event["type"] == "outcome.set").unwrap();
        assert_eq!((&set["actor_kind"], &set["actor_id"]), (&json!("human"), &json!("ada")));
    }
    world.unmoved(&done_before).await;
    world.unmoved(&others_before).await;
    account.get(&format!("/agent-tasks/{queued}")).await.refused(401, "unauthenticated");
    for path in ["/agents/writer".to_owned(), format!("/agents/{}", made["id"].as_str().unwrap())] {
        ada.get(&path).await.refused(404, "not_found");
        ada.delete(&format!("{path}?force=true")).await.refused(404, "not_found");
    }
    create(&ada, "writer").await.invalid_at(&["/agent_slug"]);
    // The slug is free; its next owner begins anew and has none of the old one's tasks.
    let (next, account) = make(&world, "writer", json!({"name": "Writer"})).await;
    assert_ne!((&next["id"], &next["service_account_id"]), (&made["id"], &made["service_account_id"]));
    assert_eq!(next["version"], 1);
    account.get(&format!("/agent-tasks/{queued}")).await.refused(403, "agent_task_forbidden");
    assert!(account.all("/agent-tasks/").await.is_empty());
}

#[tokio::test]
async fn an_agent_without_open_tasks_is_deleted_and_its_closed_ones_stay() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let task = world.task().await;
    agent.finish(&task).await.expect(200);
    let before = world.still(&task).await;
    ada.delete(&format!("/agents/{}", world.seed.agent.id)).await.expect(204);
    world.unmoved(&before).await;
    agent.get(&format!("/agent-tasks/{task}")).await.refused(401, "unauthenticated");
    let trail = [("revoked".to_owned(), "credential".to_owned()), ("deleted".to_owned(), "agent".to_owned())];
    assert_eq!(world.trail().await, trail);
}

#[tokio::test]
async fn no_open_task_outlives_its_agent_however_creations_race_the_deletion() {
    let world = World::new().await;
    let ada = world.person("ada");
    let open = "SELECT count(*) FROM agent_runtime.tasks t JOIN agent_directory.agents a ON a.id = t.agent_id
        WHERE t.outcome IS NULL AND a.deleted_at IS NOT NULL";
    let mut deleted = 0;
    for round in 0..8 {
        let force = round % 2 == 0;
        let slug = format!("racer-{round}");
        make(&world, &slug, json!({"name": "Racer"})).await;
        let creations = join_all((0..8).map(|_| create(&ada, &slug)));
        let path = format!("/agents/{slug}{}", if force { "?force=true" } else { "" });
        let (created, gone) = tokio::join!(creations, ada.delete(&path));
        let made = created.iter().filter(|reply| reply.status == 201).count();
        for reply in &created {
            match reply.status {
                201 => {}
                409 if force => drop(reply.refused(409, "agent_disabled")),
                _ => reply.invalid_at(&["/agent_slug"]),
            }
        }
        match gone.status {
            204 => deleted += 1,
            _ => assert!(!force && gone.refused(409, "open_tasks")["open_tasks"].as_u64() > Some(0) && made > 0),
        }
        let left: i64 = sqlx::query_scalar(open).fetch_one(&world.db).await.unwrap();
        assert_eq!(left, 0, "round {round}: open tasks of a deleted agent");
    }
    assert!(deleted >= 4, "every forced deletion succeeds");
}

#[tokio::test]
async fn the_emergency_stop_closes_every_open_task_of_the_agent_and_nothing_else() {
    let world = World::new().await;
    let (ada, oscar, agent) = (world.person("ada"), world.person("oscar"), world.agent().await);
    make(&world, "writer", json!({"name": "Writer"})).await;
    let others = world.still(&task_of(&world, "writer").await).await;
    let done = world.task().await;
    agent.finish(&done).await.expect(200);
    let done = world.still(&done).await;
    let queued = world.task().await;
    let (running, _) = world.working(&agent).await;
    let (blocked, _) = world.working(&agent).await;
    let request = agent.ask(&blocked, &[]).await;
    let paused = world.task().await;
    ada.post_nothing(&format!("/agent-tasks/{paused}/pause")).await.expect(200);
    let (cancelling, _) = world.working(&agent).await;
    ada.post_nothing(&format!("/agent-tasks/{cancelling}/cancel")).await.expect(200);
    let before = world.footprint().await;
    for person in ["vera", "abe"] {
        let refused = world.person(person).post_nothing("/agents/reviewer/stop").await;
        assert_eq!(refused.refused(403, "permission_denied")["permission"], "agent_task:manage");
    }
    let refused = agent.post_nothing("/agents/reviewer/stop").await;
    assert_eq!(refused.refused(403, "permission_denied")["permission"], "agent_task:manage");
    oscar.post_nothing("/agents/nobody/stop").await.refused(404, "not_found");
    oscar.post_raw("/agents/reviewer/stop", "{").await.refused(400, "invalid_json");
    assert_eq!(world.footprint().await, before);
    let stop = oscar.post_nothing("/agents/reviewer/stop").await;
    assert_eq!(stop.expect(200), &json!({"stopped": 5}));
    for task in [&queued, &running, &blocked, &paused, &cancelling] {
        assert_eq!(ending(&world, task).await, ended("interrupted_by_operator", "emergency_stop"), "{task}");
        let log = world.sound(task).await;
        let set = log.iter().find(|event| event["type"] == "outcome.set").unwrap();
        assert_eq!((&set["actor_kind"], &set["actor_id"]), (&json!("human"), &json!("oscar")));
    }
    let closing = ["session.closed", "state.changed", "outcome.set", "request.resolved"];
    for (task, order) in [(&blocked, &closing[..]), (&cancelling, &closing[..3]), (&queued, &closing[1..3])] {
        assert!(
            world.types(task).await.ends_with(&order.iter().map(ToString::to_string).collect::<Vec<_>>()),
            "{task}"
        );
    }
    let asked = ada.get(&format!("/agent-tasks/{blocked}/requests")).await;
    assert_eq!((&asked.expect(200)[0]["id"], &asked.body[0]["status"]), (&json!(request), &json!("void")));
    let sessions = ada.get(&format!("/agent-tasks/{running}/sessions")).await;
    assert_eq!(sessions.expect(200)[0]["close_reason"], "task_closed");
    world.unmoved(&done).await;
    world.unmoved(&others).await;
    let after = world.footprint().await;
    assert_eq!(oscar.post_nothing("/agents/reviewer/stop").await.expect(200), &json!({"stopped": 0}));
    assert_eq!(world.footprint().await, after);
    // It is enabled still, and works what is created from now on.
    let next = world.task().await;
    agent.finish(&next).await.expect(200);
}

#[tokio::test]
async fn the_emergency_stop_counts_only_what_it_closed_when_harnesses_close_too() {
    let world = World::new().await;
    let (oscar, agent) = (world.person("oscar"), world.agent().await);
    let mut tasks = Vec::new();
    for _ in 0..12 {
        tasks.push(world.task().await);
    }
    let finishing = join_all(tasks.iter().map(|task| agent.finish(task)));
    let (finished, stop) = tokio::join!(finishing, oscar.post_nothing("/agents/reviewer/stop"));
    let done = finished.iter().filter(|reply| reply.status == 200).count();
    for reply in finished.iter().filter(|reply| reply.status != 200) {
        assert_eq!(reply.refused(409, "task_closed")["outcome_reason"], "emergency_stop");
    }
    assert_eq!(stop.expect(200)["stopped"], 12 - done);
    for task in &tasks {
        world.sound(task).await;
        assert_ne!(ending(&world, task).await.0, json!(null), "{task} is open");
    }
}

/// A task's id is made before it is committed, so the stop may have passed it by then.
#[tokio::test]
async fn the_emergency_stop_closes_a_task_that_is_committed_behind_it() {
    let (world, _) = delegation::world().await;
    let (oscar, agent) = (world.person("oscar"), world.agent().await);
    let (parent, _) = world.working(&agent).await;
    let watch = PgPoolOptions::new().max_connections(1).connect(&world.database_url).await.unwrap();
    let counted = async |count: &'static str, wanted: i64| {
        eventually(count, async || sqlx::query_scalar::<_, i64>(count).fetch_one(&watch).await.unwrap() == wanted)
            .await;
    };
    let held_up = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'mandate' AND wait_event_type = 'Lock'";
    let made = "SELECT count(*) FROM agent_runtime.tasks WHERE agent_id <> (
        SELECT agent_id FROM agent_runtime.tasks WHERE short_number = 1)";
    let hold = "SELECT FROM agent_runtime.tasks WHERE 'T-' || short_number = $1 FOR UPDATE";
    let mut above = world.db.begin().await.unwrap();
    sqlx::query(hold).bind(&parent).execute(&mut *above).await.unwrap();
    let stopping = async {
        // The child has its id and waits for its parent.
        counted(held_up, 1).await;
        let later = task_of(&world, "tester").await;
        let mut end = world.db.begin().await.unwrap();
        sqlx::query(hold).bind(&later).execute(&mut *end).await.unwrap();
        let behind = async {
            // The stop has read what there is and waits for the last of it.
            counted(held_up, 2).await;
            above.rollback().await.unwrap();
            counted(made, 2).await;
            end.rollback().await.unwrap();
        };
        tokio::join!(oscar.post_nothing("/agents/tester/stop"), behind).0
    };
    let (child, stopped) = tokio::join!(delegation::delegate(&agent, &parent, json!({})), stopping);
    assert_eq!(stopped.expect(200), &json!({"stopped": 2}));
    let child = child.expect(201)["short_id"].as_str().unwrap().to_owned();
    assert_eq!(ending(&world, &child).await, ended("interrupted_by_operator", "emergency_stop"));
}

#[tokio::test]
async fn a_task_that_cannot_be_closed_stands_in_no_others_way() {
    let world = World::new().await;
    world.spoil().await;
    let oscar = world.person("oscar");
    let tasks = [world.task().await, world.task().await, world.task().await];
    // No version of the program writes such a row.
    let mut db = world.db.acquire().await.unwrap();
    sqlx::raw_sql("SET session_replication_role = replica").execute(&mut *db).await.unwrap();
    let labels = "UPDATE agent_runtime.tasks SET labels = $1::jsonb WHERE short_number = 2";
    sqlx::query(labels).bind("[]").execute(&mut *db).await.unwrap();
    let stop = oscar.post_nothing("/agents/reviewer/stop").await;
    stop.refused(500, "internal_error");
    for task in [&tasks[0], &tasks[2]] {
        assert_eq!(ending(&world, task).await, ended("interrupted_by_operator", "emergency_stop"), "{task}");
    }
    sqlx::query(labels).bind("{}").execute(&mut *db).await.unwrap();
    drop(db.detach());
    assert_eq!(oscar.post_nothing("/agents/reviewer/stop").await.expect(200), &json!({"stopped": 1}));
}
