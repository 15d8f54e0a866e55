//! Money in a tree, closes and cancels that go up and down it, and the tree as it is read.

use futures::future::join_all;
use serde_json::{Value, json};

use crate::delegation::{child, delegate, read, world};
use crate::support::{Client, World};

/// So many hundredths of a dollar of the seeded model.
async fn spend(client: &Client, task: &str, key: &str, cents: i64) -> String {
    client.spend(task, key, cents * 8_000, 0).await.expect(201)["id"].as_str().unwrap().to_owned()
}

async fn root(world: &World, budget: &str) -> String {
    world.task_with(json!({"budget": budget})).await
}

/// Budget, spent, set aside, left.
async fn money(world: &World, task: &str) -> [String; 4] {
    let task = read(world, task).await;
    ["budget", "cost_total", "set_aside", "budget_remaining"].map(|name| task[name].as_str().unwrap().to_owned())
}

async fn last(world: &World, task: &str) -> (String, Value) {
    let log = world.log(task).await;
    let event = log.last().unwrap();
    (event["type"].as_str().unwrap().to_owned(), event["payload"].clone())
}

async fn ending(world: &World, task: &str) -> (Value, Value) {
    let task = read(world, task).await;
    (task["outcome"].clone(), task["outcome_reason"].clone())
}

#[tokio::test]
async fn a_childs_budget_is_set_aside_and_what_it_did_not_spend_comes_back() {
    let (world, tester) = world().await;
    let agent = world.agent().await;
    let worker = world.account(&tester.client_id, &tester.client_secret).await;
    let parent = root(&world, "5").await;
    spend(&agent, &parent, "own", 100).await;
    let part = child(&agent, &parent, json!({"budget": "1.50"})).await;
    assert_eq!(money(&world, &parent).await, ["5", "1", "1.5", "2.5"]);
    assert_eq!(last(&world, &parent).await.1["set_aside_delta"], "1.5");
    // A report of the child looks at no other task.
    let seq = read(&world, &parent).await["last_seq"].clone();
    spend(&worker, &part, "a", 40).await;
    assert_eq!(read(&world, &parent).await["last_seq"], seq);
    worker.finish(&part).await.expect(200);
    assert_eq!(money(&world, &parent).await, ["5", "1", "0.4", "3.6"]);
    let (kind, told) = last(&world, &parent).await;
    assert_eq!((kind.as_str(), &told["set_aside_delta"]), ("child.closed", &json!("-1.1")));
    assert_eq!((&told["outcome"], &told["cost_total"]), (&json!("done_acted"), &json!("0.4")));
    assert_eq!(read(&world, &parent).await["cost_total"], "1", "its own cost is its own");
    world.prove().await;
}

#[tokio::test]
async fn a_budget_that_is_not_given_is_the_smaller_of_the_agents_and_what_is_left() {
    let (world, _) = world().await;
    let agent = world.agent().await;
    let parent = root(&world, "3").await;
    let everything = delegate(&agent, &parent, json!({})).await;
    assert_eq!(everything.expect(201)["budget"], "3");
    let refused = delegate(&agent, &parent, json!({})).await;
    assert_eq!(refused.refused(409, "budget_exhausted")["budget_remaining"], "0");
    delegate(&agent, &parent, json!({"budget": "0"})).await.refused(409, "budget_exhausted");

    sqlx::query("UPDATE agent_directory.agents SET task_budget = 2 WHERE slug = 'tester'")
        .execute(&world.db)
        .await
        .unwrap();
    let parent = root(&world, "3").await;
    assert_eq!(delegate(&agent, &parent, json!({})).await.expect(201)["budget"], "2");
    let refused = delegate(&agent, &parent, json!({"budget": "1.01"})).await;
    assert_eq!(refused.refused(409, "budget_exhausted")["budget_remaining"], "1");
    assert_eq!(delegate(&agent, &parent, json!({})).await.expect(201)["budget"], "1");
    assert_eq!(money(&world, &parent).await, ["3", "0", "3", "0"]);
    assert_eq!(read(&world, &parent).await["status"], "queued", "nothing left is open still");
    // Without a ceiling above, the agent's own default holds.
    let free = world.task().await;
    assert_eq!(delegate(&agent, &free, json!({})).await.expect(201)["budget"], "2");
    assert_eq!(read(&world, &free).await["set_aside"], "2");
    world.prove().await;
}

#[tokio::test]
async fn a_child_that_overspends_may_close_its_parent_and_the_parents_parent() {
    let (world, tester) = world().await;
    let agent = world.agent().await;
    let worker = world.account(&tester.client_id, &tester.client_secret).await;
    let top = root(&world, "2").await;
    let middle = child(&agent, &top, json!({"budget": "2"})).await;
    let session = worker.open_session(&middle, "s").await;
    let asked = worker.ask(&middle, &[]).await;
    let low = child(&worker, &middle, json!({"budget": "2"})).await;
    spend(&worker, &low, "a", 250).await;
    for task in [&low, &middle, &top] {
        assert_eq!(ending(&world, task).await, (json!("exceeded_ceiling"), json!("budget")), "{task}");
    }
    assert_eq!(money(&world, &top).await, ["2", "0", "2.5", "-0.5"]);
    assert_eq!(money(&world, &middle).await, ["2", "0", "2.5", "-0.5"]);
    let types = world.types(&middle).await;
    let end = ["child.closed", "session.closed", "state.changed", "outcome.set", "request.resolved"];
    assert_eq!(types[types.len() - end.len()..], end);
    assert_eq!(world.types(&top).await[1..], ["child.created", "child.closed", "state.changed", "outcome.set"]);
    worker
        .post_nothing(&format!("/agent-tasks/{middle}/sessions/{session}/heartbeat"))
        .await
        .refused(409, "task_closed");
    let path = format!("/agent-tasks/{middle}/requests/{asked}/resolve");
    world
        .person("abe")
        .post(&path, &json!({"status": "answered", "answer": "x"}))
        .await
        .refused(409, "request_resolved");
    world.prove().await;
}

#[tokio::test]
async fn a_parent_that_closes_first_leaves_its_children_running_and_what_they_return_stops_there() {
    let (world, tester) = world().await;
    let agent = world.agent().await;
    let worker = world.account(&tester.client_id, &tester.client_secret).await;
    let top = root(&world, "10").await;
    let middle = child(&agent, &top, json!({"budget": "6"})).await;
    spend(&worker, &middle, "own", 100).await;
    let low = child(&worker, &middle, json!({"budget": "3"})).await;
    worker.finish(&middle).await.expect(200);
    // Neither spent nor set aside: 2 of 6.
    assert_eq!(money(&world, &top).await, ["10", "0", "4", "6"]);
    assert_eq!(read(&world, &low).await["status"], "queued");
    spend(&worker, &low, "a", 50).await;
    worker.finish(&low).await.expect(200);
    assert_eq!(money(&world, &top).await, ["10", "0", "4", "6"]);
    assert_eq!(money(&world, &middle).await, ["6", "1", "0.5", "4.5"]);
    assert_eq!(last(&world, &middle).await.0, "child.closed");
    world.prove().await;
}

#[tokio::test]
async fn what_is_spent_beyond_a_closed_parent_reaches_the_nearest_open_ancestor() {
    let (world, tester) = world().await;
    let agent = world.agent().await;
    let worker = world.account(&tester.client_id, &tester.client_secret).await;
    let top = root(&world, "4").await;
    let middle = child(&agent, &top, json!({"budget": "2"})).await;
    let low = child(&worker, &middle, json!({"budget": "2"})).await;
    worker.finish(&middle).await.expect(200);
    spend(&worker, &low, "a", 250).await;
    assert_eq!(ending(&world, &low).await.1, "budget");
    let (kind, told) = last(&world, &top).await;
    assert_eq!((kind.as_str(), &told["set_aside_delta"]), ("child.adjusted", &json!("0.5")));
    assert_eq!(told["child_short_id"], low.as_str());
    assert_eq!(money(&world, &top).await, ["4", "0", "2.5", "1.5"]);
    // Usage and corrections after the close, each in the transaction that writes it.
    let report = spend(&worker, &low, "late", 100).await;
    assert_eq!(money(&world, &top).await, ["4", "0", "3.5", "0.5"]);
    let right = json!({"idempotency_key": "fix", "model_id": "sonnet", "tokens_in": 400_000, "corrects": report});
    worker.on(&low, "usage", right).await.expect(201);
    assert_eq!(money(&world, &top).await, ["4", "0", "3", "1"]);
    assert_eq!(last(&world, &top).await.1["set_aside_delta"], "-0.5");
    // What costs nothing that is known tells nothing.
    let seq = read(&world, &top).await["last_seq"].clone();
    worker.on(&low, "usage", json!({"idempotency_key": "u", "model_id": "sonnet"})).await.expect(201);
    assert_eq!(read(&world, &top).await["last_seq"], seq);
    // It may close the ancestor.
    spend(&worker, &low, "last", 101).await;
    assert_eq!(ending(&world, &top).await.1, "budget");
    assert_eq!(money(&world, &top).await[3], "-0.01");
    // And where nobody above is open, it is only recorded.
    let seq = read(&world, &top).await["last_seq"].clone();
    spend(&worker, &low, "after all", 5).await;
    assert_eq!(read(&world, &top).await["last_seq"], seq);
    world.prove().await;
}

#[tokio::test]
async fn the_tree_counts_nothing_twice_and_shows_each_task_before_its_children() {
    let (world, tester) = world().await;
    let agent = world.agent().await;
    let worker = world.account(&tester.client_id, &tester.client_secret).await;
    // Case 26: two children and a grandchild, all spending.
    let top = root(&world, "10").await;
    spend(&agent, &top, "a", 100).await;
    let one = child(&agent, &top, json!({"budget": "2"})).await;
    let two = child(&agent, &top, json!({"budget": "3"})).await;
    let low = child(&worker, &one, json!({"budget": "1"})).await;
    spend(&worker, &one, "a", 20).await;
    spend(&worker, &two, "a", 30).await;
    spend(&worker, &low, "a", 40).await;
    worker.on(&low, "usage", json!({"idempotency_key": "u", "model_id": "sonnet"})).await.expect(201);
    worker.finish(&low).await.expect(200);
    let tree = world.person("vera").get(&format!("/agent-tasks/{top}/tree")).await.expect(200).clone();
    let seen: Vec<_> = tree.as_array().unwrap().iter().collect();
    let names: Vec<_> = seen.iter().map(|node| node["short_id"].as_str().unwrap()).collect();
    assert_eq!(names, [&top, &one, &low, &two]);
    let column = |name: &str| seen.iter().map(|node| node[name].clone()).collect::<Vec<_>>();
    assert_eq!(column("depth"), [0, 1, 2, 1]);
    assert_eq!(column("cost_total"), ["1", "0.2", "0.4", "0.3"]);
    assert_eq!(column("set_aside"), ["5", "0.4", "0", "0"]);
    assert_eq!(column("parent_short_id"), [Value::Null, json!(top), json!(one), json!(top)]);
    let below: Vec<_> = seen.iter().map(|node| &node["subtree"]).collect();
    let sums: Vec<_> = below.iter().map(|sum| sum["cost_total"].as_str().unwrap()).collect();
    assert_eq!(sums, ["1.9", "0.6", "0.4", "0.3"]);
    let counts: Vec<_> = below.iter().map(|sum| (sum["tasks"].clone(), sum["open_tasks"].clone())).collect();
    assert_eq!(counts, [(4, 3), (2, 1), (1, 0), (1, 1)].map(|(all, open)| (json!(all), json!(open))));
    let certain: Vec<_> = below.iter().map(|sum| sum["budget_certain"].as_bool().unwrap()).collect();
    assert_eq!(certain, [false, false, false, true]);
    assert_eq!(below[0]["tokens_in"], 190 * 8_000);

    // A part of it, in pages; the sums stay those of the whole.
    let pages = world.person("vera").pages(&format!("/agent-tasks/{top}/tree?limit=3")).await;
    assert_eq!(pages.concat(), *tree.as_array().unwrap());
    assert_eq!(pages.len(), 2);
    let part = world.person("vera").get(&format!("/agent-tasks/{one}/tree")).await.expect(200).clone();
    assert_eq!(part, json!([seen[1], seen[2]]));
    for bad in ["limit=0", "limit=1001", "limit=x"] {
        let reply = world.person("vera").get(&format!("/agent-tasks/{top}/tree?{bad}")).await;
        reply.invalid_at(&["limit"]);
    }
    let reply = world.person("vera").get(&format!("/agent-tasks/{top}/tree?cursor=abc")).await;
    reply.refused(400, "invalid_cursor");
    world.prove().await;
}

#[tokio::test]
async fn a_cascade_cancels_the_open_descendants_each_by_its_own_rules() {
    let (world, tester) = world().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let worker = world.account(&tester.client_id, &tester.client_secret).await;
    let top = root(&world, "10").await;
    let working = child(&agent, &top, json!({"budget": "1"})).await;
    worker.open_session(&working, "s").await;
    let done = child(&agent, &top, json!({"budget": "4"})).await;
    let below_done = child(&worker, &done, json!({"budget": "2"})).await;
    worker.finish(&done).await.expect(200);
    let idle = child(&worker, &working, json!({"budget": "0.5"})).await;
    // Without it they run on.
    let other = root(&world, "1").await;
    let left = child(&agent, &other, json!({})).await;
    ada.on(&other, "cancel", json!({})).await.expect(200);
    assert_eq!(read(&world, &left).await["control"], "run");

    let body = json!({"reason": "enough", "cascade": true});
    let answer = ada.on(&top, "cancel", body.clone()).await.expect(200).clone();
    assert_eq!((&answer["status"], &answer["set_aside"]), (&json!("closed"), &json!("3")));
    let closed = (json!("cancelled_by_human"), json!("cancelled_without_session"));
    for task in [&top, &below_done, &idle] {
        assert_eq!(ending(&world, task).await, closed, "{task}");
    }
    assert_eq!(ending(&world, &done).await.0, "done_acted");
    let waiting = read(&world, &working).await;
    assert_eq!((&waiting["status"], &waiting["control"]), (&json!("running"), &json!("cancel")));
    let changed = world.log(&working).await.into_iter().find(|event| event["type"] == "control.changed").unwrap();
    assert_eq!((&changed["payload"]["reason"], &changed["actor_id"]), (&json!("enough"), &json!("ada")));
    // Root first.
    let mut cancelled = Vec::new();
    for task in [&top, &working, &idle] {
        let log = world.log(task).await;
        let change = log.iter().find(|event| event["type"] == "control.changed").unwrap();
        cancelled.push(change["recorded_at"].as_str().unwrap().to_owned());
    }
    assert!(cancelled.is_sorted(), "{cancelled:?}");

    // Nothing is left that is not being cancelled, so the same again writes nothing; with force what waits for its
    // harness closes too.
    let before = world.footprint().await;
    ada.on(&top, "cancel", body).await.expect(200);
    assert_eq!(world.footprint().await, before);
    let answer = ada.on(&top, "cancel", json!({"cascade": true, "force": true})).await;
    assert_eq!(answer.expect(200)["outcome_reason"], "cancelled_without_session");
    assert_eq!(ending(&world, &working).await.1, "forced_unconfirmed");
    ada.on(&top, "cancel", json!({"cascade": true, "force": true})).await.refused(409, "task_closed");
    // A cascade that was cut short after its root is finished by the same call.
    ada.on(&other, "cancel", json!({"cascade": true})).await.expect(200);
    assert_eq!(ending(&world, &left).await, closed);
    ada.on(&other, "cancel", json!({"cascade": "yes"})).await.refused(409, "task_closed");
    let open = world.task().await;
    ada.on(&open, "cancel", json!({"cascade": "yes"})).await.invalid_at(&["/cascade"]);
    world.prove().await;
}

#[tokio::test]
async fn no_child_that_is_born_during_a_cascade_survives_it() {
    let (world, tester) = world().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let worker = world.account(&tester.client_id, &tester.client_secret).await;
    let beside = World::beside(&world).await;
    for round in 0..4 {
        let top = world.task().await;
        let mut parents = Vec::new();
        for _ in 0..3 {
            let middle = child(&agent, &top, json!({})).await;
            parents.push(child(&worker, &middle, json!({})).await);
            parents.push(middle);
        }
        // Until their parent may delegate no more, each child a parent too.
        let grow = |place: usize, parent: String| {
            let worker = if place.is_multiple_of(2) { worker.clone() } else { worker.at(&beside.base) };
            async move {
                loop {
                    let reply = delegate(&worker, &parent, json!({})).await;
                    if reply.status != 201 {
                        break reply.status;
                    }
                    let below = reply.body["short_id"].as_str().unwrap();
                    delegate(&worker, below, json!({})).await;
                }
            }
        };
        let growing = join_all(parents.into_iter().enumerate().map(|(place, parent)| grow(place, parent)));
        let cancel = async {
            let grown = "SELECT count(*) FROM agent_runtime.tasks WHERE depth = 3";
            crate::support::eventually("the tree grows", || async {
                sqlx::query_scalar::<_, i64>(grown).fetch_one(&world.db).await.unwrap() > 30 * (round + 1)
            })
            .await;
            ada.on(&top, "cancel", json!({"cascade": true})).await.expect(200);
        };
        let (ended, ()) = futures::future::join(growing, cancel).await;
        assert!(ended.iter().all(|status| *status == 409), "{ended:?}");
        let left = "SELECT count(*) FROM agent_runtime.tasks WHERE outcome IS NULL AND control <> 'cancel'";
        assert_eq!(sqlx::query_scalar::<_, i64>(left).fetch_one(&world.db).await.unwrap(), 0);
    }
    world.prove().await;
}

#[tokio::test]
async fn time_and_operators_close_children_with_the_parents_knowledge() {
    let (world, tester) = world().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let worker = world.account(&tester.client_id, &tester.client_secret).await;
    let top = root(&world, "10").await;
    // A request that expires, a cancelled task whose harness is lost, a task at the end of its time.
    let asking = child(&agent, &top, json!({"budget": "1"})).await;
    let soon = (world.now().plus(std::time::Duration::from_millis(200))).to_string();
    let body = json!({"kind": "feedback", "title": "?", "expires_at": soon});
    worker.on(&asking, "requests", body).await.expect(201);
    let lost = child(&agent, &top, json!({"budget": "2"})).await;
    worker.open_session(&lost, "s").await;
    ada.on(&lost, "cancel", json!({})).await.expect(200);
    sqlx::query("UPDATE agent_runtime.sessions SET heartbeat_at = now() - interval '1 hour', check_at = now()")
        .execute(&world.db)
        .await
        .unwrap();
    assert_eq!(money(&world, &top).await, ["10", "0", "3", "7"]);
    crate::support::eventually("both are closed", || async {
        world.step().await;
        money(&world, &top).await[2] == "0"
    })
    .await;
    assert_eq!(ending(&world, &asking).await.1, "feedback_expired");
    assert_eq!(ending(&world, &lost).await.1, "harness_lost");
    let log = world.log(&top).await;
    let told: Vec<_> = log.iter().filter(|event| event["type"] == "child.closed").collect();
    assert!(told.iter().all(|event| event["actor_kind"] == "system" && event["channel"].is_null()), "{told:?}");
    assert_eq!(told.len(), 2);
    world.prove().await;
}

#[tokio::test]
async fn children_that_close_at_once_while_the_parent_works_lose_nothing() {
    let (world, tester) = world().await;
    let agent = world.agent().await;
    let worker = world.account(&tester.client_id, &tester.client_secret).await;
    let beside = World::beside(&world).await;
    let top = root(&world, "100").await;
    let mut children = Vec::new();
    for _ in 0..16 {
        children.push(child(&agent, &top, json!({"budget": "2"})).await);
    }
    // Through two processes: children report and close, the parent appends, reports and delegates more.
    let close = |place: usize, task: String| {
        let worker = if place.is_multiple_of(2) { worker.clone() } else { worker.at(&beside.base) };
        async move {
            let cents = 10 + i64::try_from(place).unwrap();
            spend(&worker, &task, "a", cents).await;
            worker.finish(&task).await.expect(200);
            spend(&worker, &task, "late", 1).await;
        }
    };
    let work = async {
        for turn in 0..30 {
            let agent = if turn % 3 == 0 { agent.at(&beside.base) } else { agent.clone() };
            agent.append(&top, json!([{"type": "turn", "payload": {"body": "on"}}])).await.expect(201);
            spend(&agent, &top, &format!("own {turn}"), 1).await;
            if turn % 10 == 0 {
                child(&agent, &top, json!({"budget": "1"})).await;
            }
        }
    };
    let closing = join_all(children.into_iter().enumerate().map(|(place, task)| close(place, task)));
    futures::future::join(closing, work).await;
    // 16 children at 0.10 and more, each a late cent, and three that are open at 1.
    let spent: i64 = (0..16).map(|place| 10 + place + 1).sum();
    let aside = format!("{}.{:02}", 3 + spent / 100, spent % 100);
    assert_eq!(money(&world, &top).await[1..3], ["0.3".to_owned(), aside.trim_end_matches('0').to_owned()]);
    let types = world.types(&top).await;
    let count = |kind: &str| types.iter().filter(|found| *found == kind).count();
    assert_eq!((count("child.created"), count("child.closed"), count("child.adjusted")), (19, 16, 16));
    world.prove().await;
}

#[tokio::test]
async fn sixteen_delegations_at_once_never_give_more_than_is_left() {
    let (world, _) = world().await;
    let agent = world.agent().await;
    let beside = World::beside(&world).await;
    let top = root(&world, "5").await;
    let calls = (0_usize..16).map(|place| {
        let agent = if place.is_multiple_of(2) { agent.clone() } else { agent.at(&beside.base) };
        let top = top.clone();
        async move { delegate(&agent, &top, json!({"budget": "0.8"})).await }
    });
    let replies = join_all(calls).await;
    assert_eq!(replies.iter().filter(|reply| reply.status == 201).count(), 6);
    for reply in replies.iter().filter(|reply| reply.status != 201) {
        reply.refused(409, "budget_exhausted");
    }
    assert_eq!(money(&world, &top).await, ["5", "0", "4.8", "0.2"]);
    world.prove().await;
}

#[tokio::test]
async fn the_audit_finds_children_of_which_the_log_does_not_tell() {
    let (world, tester) = world().await;
    let agent = world.agent().await;
    let worker = world.account(&tester.client_id, &tester.client_secret).await;
    let top = root(&world, "5").await;
    let part = child(&agent, &top, json!({"budget": "1"})).await;
    worker.finish(&part).await.expect(200);
    world.prove().await;
    world.spoil().await;
    // Past the guards, as nobody should: the child becomes a root, and its parent forgets what it holds.
    for (statement, finding) in [
        (
            "UPDATE agent_runtime.tasks SET parent_task_id = gen_random_uuid() WHERE short_number = 2",
            "its children are {}",
        ),
        ("UPDATE agent_runtime.tasks SET cost_total = 7 WHERE short_number = 2", "set aside, which is less"),
    ] {
        let mut tampering = world.db.begin().await.unwrap();
        sqlx::raw_sql("SET LOCAL session_replication_role = replica").execute(&mut *tampering).await.unwrap();
        let before = "SELECT parent_task_id, cost_total::text FROM agent_runtime.tasks WHERE short_number = 2";
        let (parent, cost): (uuid::Uuid, String) = sqlx::query_as(before).fetch_one(&mut *tampering).await.unwrap();
        sqlx::raw_sql(statement).execute(&mut *tampering).await.unwrap();
        tampering.commit().await.unwrap();
        let found = world.audit().await;
        assert!(found.iter().any(|fault| fault.starts_with("T-1 ") && fault.contains(finding)), "{found:?}");
        let mut tampering = world.db.begin().await.unwrap();
        sqlx::raw_sql("SET LOCAL session_replication_role = replica").execute(&mut *tampering).await.unwrap();
        let give_back =
            "UPDATE agent_runtime.tasks SET parent_task_id = $1, cost_total = $2::text::numeric WHERE short_number = 2";
        sqlx::query(give_back).bind(parent).bind(cost).execute(&mut *tampering).await.unwrap();
        tampering.commit().await.unwrap();
    }
    world.prove().await;
}
