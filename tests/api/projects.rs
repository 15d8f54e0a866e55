//! Projects that a task touches beside its primary one.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Client, Reply, World, eventually};

const UNKNOWN: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

fn path(task: &str, project: &str) -> String {
    format!("/agent-tasks/{task}/projects/{project}")
}

async fn add(client: &Client, task: &str, project: &str) -> Reply {
    client.send(client.request(Method::PUT, &path(task, project))).await
}

async fn listed(world: &World, task: &str) -> Value {
    world.person("vera").get(&format!("/agent-tasks/{task}/projects")).await.expect(200).clone()
}

/// A project of that slug; its id.
async fn project(world: &World, slug: &str) -> String {
    let put = world.person("ada").put(&format!("/projects/{slug}"), &json!({"name": slug})).await;
    put.expect(201)["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_project_is_associated_once_and_dissociated_with_its_whole_row() {
    let world = World::new().await;
    let (oscar, ada) = (world.person("oscar"), world.person("ada"));
    let (site, docs) = (project(&world, "site").await, project(&world, "docs").await);
    let task = world.task().await;
    assert_eq!(listed(&world, &task).await, json!([]));
    add(&oscar, &task, &site).await.expect(204);
    add(&oscar, &task, &docs.to_uppercase()).await.expect(204);
    let rows = listed(&world, &task).await;
    let log = world.log(&task).await;
    for (row, event) in rows.as_array().unwrap().iter().zip(&log[1..]) {
        assert_eq!((&event["type"], &event["actor_id"]), (&json!("project.associated"), &json!("oscar")));
        let mut shown = row.clone();
        assert_eq!(shown.as_object_mut().unwrap().remove("available"), Some(json!(true)));
        assert_eq!(shown, event["payload"]);
    }
    let slugs: Vec<_> = rows.as_array().unwrap().iter().map(|row| &row["project_slug"]).collect();
    assert_eq!(slugs, ["site", "docs"]);

    let still = world.footprint().await;
    add(&ada, &task, &site).await.expect(204);
    assert_eq!(world.footprint().await, still, "it is there already");
    world.skew_clock(60);
    ada.delete(&path(&task, &site)).await.expect(204);
    let last = world.log(&task).await.pop().unwrap();
    assert_eq!((&last["type"], &last["actor_id"]), (&json!("project.dissociated"), &json!("ada")));
    assert_eq!(last["payload"], log[1]["payload"], "the whole row");
    let still = world.footprint().await;
    ada.delete(&path(&task, &site)).await.expect(204);
    assert_eq!(world.footprint().await, still, "it is gone already");
    assert_eq!(listed(&world, &task).await, json!([rows[1]]));
    world.prove().await;
}

#[tokio::test]
async fn the_primary_project_is_refused() {
    let world = World::new().await;
    let (oscar, primary) = (world.person("oscar"), world.seed.project_id.to_string());
    let task = world.task_with(json!({"project_id": primary})).await;
    let before = world.footprint().await;
    add(&oscar, &task, &primary).await.refused(409, "primary_project");
    oscar.delete(&path(&task, &primary)).await.expect(204);
    assert_eq!(world.footprint().await, before);
    assert_eq!(listed(&world, &task).await, json!([]));
}

#[tokio::test]
async fn an_unknown_project_is_not_found() {
    let world = World::new().await;
    let task = world.task().await;
    let before = world.footprint().await;
    for client in [world.person("oscar"), world.person("vera")] {
        for name in [UNKNOWN, "app", "x"] {
            add(&client, &task, name).await.refused(404, "not_found");
            client.delete(&path(&task, name)).await.refused(404, "not_found");
        }
        add(&client, "T-99", &world.seed.project_id.to_string()).await.refused(404, "task_not_found");
    }
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn a_deleted_project_stays_as_unavailable_until_it_is_taken_off() {
    let world = World::new().await;
    let (oscar, ada) = (world.person("oscar"), world.person("ada"));
    let site = project(&world, "site").await;
    let task = world.task().await;
    add(&oscar, &task, &site).await.expect(204);
    ada.delete(&format!("/projects/{site}")).await.expect(204);
    // Its slug is free again, but another project has it then.
    let namesake = project(&world, "site").await;
    let rows = listed(&world, &task).await;
    assert_eq!(rows[0]["project_id"], json!(site));
    assert_eq!((&rows[0]["project_slug"], &rows[0]["available"]), (&json!("site"), &json!(false)));
    add(&oscar, &task, &site).await.refused(404, "not_found");
    add(&oscar, &task, &namesake).await.expect(204);
    oscar.delete(&path(&task, &site)).await.expect(204);
    let last = world.log(&task).await.pop().unwrap();
    assert_eq!(last["payload"]["project_id"], json!(site));
    let rows = listed(&world, &task).await;
    assert_eq!((&rows[0]["project_id"], &rows[0]["available"]), (&json!(namesake), &json!(true)));
    world.prove().await;
}

#[tokio::test]
async fn projects_may_change_after_the_close_and_not_after_the_archive() {
    let world = World::new().await;
    let (oscar, ada, agent) = (world.person("oscar"), world.person("ada"), world.agent().await);
    let (site, docs) = (project(&world, "site").await, project(&world, "docs").await);
    let task = world.task().await;
    agent.finish(&task).await.expect(200);
    add(&oscar, &task, &site).await.expect(204);
    eventually("the log is archived", || async {
        world.sweep().await;
        !ada.get(&format!("/agent-tasks/{task}")).await.expect(200)["log_archived_at"].is_null()
    })
    .await;
    let before = world.footprint().await;
    add(&oscar, &task, &site).await.refused(409, "task_archived");
    add(&oscar, &task, &docs).await.refused(409, "task_archived");
    oscar.delete(&path(&task, &site)).await.refused(409, "task_archived");
    assert_eq!(world.footprint().await, before);
    assert_eq!(listed(&world, &task).await[0]["project_slug"], "site");
    assert_eq!(world.types(&task).await.last().unwrap(), "project.associated");
    world.prove().await;
}

#[tokio::test]
async fn many_who_associate_one_project_write_one_event() {
    let world = World::new().await;
    let beside = World::beside(&world).await;
    let site = project(&world, "site").await;
    let task = world.task().await;
    let clients = [world.person("oscar"), beside.person("ada")];
    let calls = (0..20).map(|n| add(&clients[n % 2], &task, &site));
    for reply in futures::future::join_all(calls).await {
        reply.expect(204);
    }
    assert_eq!(world.types(&task).await, ["task.created", "project.associated"]);
    let path = path(&task, &site);
    let calls = (0..20).map(|n| clients[n % 2].delete(&path));
    for reply in futures::future::join_all(calls).await {
        reply.expect(204);
    }
    assert_eq!(world.types(&task).await, ["task.created", "project.associated", "project.dissociated"]);
    world.prove().await;
}
