//! What nobody refers to is removed, and nothing else, whatever happens at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mandate::app::store_options;
use mandate::config::Role;
use mandate::domain::digest::Digest;
use mandate::service::artifacts::ArtifactsSwept;
use mandate::store::{Received, Store, Upload};
use serde_json::json;
use uuid::Uuid;

use crate::support::{World, digest_of, eventually, keep_artifacts};

const HOUR: Duration = Duration::from_hours(1);

async fn sweep(world: &World, grace: Duration) -> ArtifactsSwept {
    world.service.sweep_artifacts(grace, 100).await.unwrap()
}

fn swept(removed: u64, cleared: u64, failed: u64) -> ArtifactsSwept {
    ArtifactsSwept { removed, cleared, failed, more: false }
}

async fn count(world: &World, what: &str) -> i64 {
    let query = format!("SELECT count(*) FROM agent_runtime.{what}");
    sqlx::query_scalar(sqlx::AssertSqlSafe(query)).fetch_one(&world.db).await.unwrap()
}

/// Moves what the database remembers of artifacts into the past; its clock cannot be moved.
async fn age(world: &World, duration: &str) {
    for (table, column) in [("artifacts", "kept_at"), ("artifact_uploads", "remove_at")] {
        let statement = format!("UPDATE agent_runtime.{table} SET {column} = {column} - interval '{duration}'");
        sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&world.db).await.unwrap();
    }
}

#[tokio::test]
async fn what_no_log_refers_to_goes_after_its_grace() {
    let world = World::with_artifacts().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let mut digests = Vec::new();
    for text in ["kept", "left", "sent again"] {
        let (digest, sent) = agent.send_artifact(text, "text/plain").await;
        sent.expect(201);
        digests.push(digest);
    }
    let event = json!([{"type": "turn", "payload": {"body": "", "artifact": {"digest": digests[0]}}}]);
    agent.append(&task, event).await.expect(201);
    assert_eq!(sweep(&world, HOUR).await, swept(0, 0, 0));
    age(&world, "2 hours").await;
    agent.send_artifact("sent again", "text/plain").await.1.expect(200);
    assert_eq!(sweep(&world, HOUR).await, swept(1, 1, 0));
    assert_eq!(agent.artifact(&digests[0]).await.text, "kept");
    agent.artifact(&digests[1]).await.refused(404, "not_found");
    assert_eq!(agent.artifact(&digests[2]).await.text, "sent again");
    assert_eq!(sweep(&world, HOUR).await, swept(0, 0, 0));
    assert_eq!(world.artifact_files().len(), 2);
    // It may come again, and is then another one.
    agent.send_artifact("left", "text/plain").await.1.expect(201);
    assert_eq!(agent.artifact(&digests[1]).await.text, "left");
    // What is referred to stays, however old.
    age(&world, "100 days").await;
    assert_eq!(sweep(&world, Duration::ZERO).await, swept(2, 2, 0));
    assert_eq!(agent.artifact(&digests[0]).await.text, "kept");
    assert_eq!((count(&world, "artifacts").await, count(&world, "artifact_uploads").await), (1, 0));
}

#[tokio::test]
async fn what_comes_after_its_reference_is_kept_at_once() {
    let world = World::with_artifacts().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let event = json!([{"type": "turn", "payload": {"body": "", "artifact": {"digest": digest_of(b"later")}}}]);
    agent.append(&task, event).await.expect(201);
    world.person("vera").artifact(&digest_of(b"later")).await.refused(404, "not_found");
    agent.send_artifact("later", "text/plain").await.1.expect(201);
    assert_eq!(sweep(&world, Duration::ZERO).await, swept(0, 0, 0));
    assert_eq!(world.person("vera").artifact(&digest_of(b"later")).await.text, "later");
}

#[tokio::test]
async fn one_step_removes_a_batch_and_says_that_there_is_more() {
    let world = World::with_artifacts().await;
    let agent = world.agent().await;
    for n in 0..5 {
        agent.send_artifact(n.to_string(), "text/plain").await.1.expect(201);
    }
    let mut steps = Vec::new();
    for _ in 0..4 {
        let ArtifactsSwept { removed, more, .. } = world.service.sweep_artifacts(Duration::ZERO, 2).await.unwrap();
        steps.push((removed, more));
    }
    assert_eq!(steps, [(2, true), (2, true), (1, false), (0, false)]);
    assert_eq!(world.artifact_files(), []);
}

#[tokio::test]
async fn bytes_that_cannot_be_removed_now_are_removed_later() {
    let world = World::with_artifacts().await;
    let agent = world.agent().await;
    agent.send_artifact("x", "text/plain").await.1.expect(201);
    let (file, _) = world.artifact_files().remove(0);
    // A folder in its place, which is no file to be removed.
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    assert_eq!(sweep(&world, Duration::ZERO).await, swept(1, 0, 1));
    assert_eq!(sweep(&world, Duration::ZERO).await, swept(0, 0, 0), "not before a pause");
    std::fs::remove_dir(&file).unwrap();
    std::fs::write(&file, "x").unwrap();
    age(&world, "10 minutes").await;
    assert_eq!(sweep(&world, Duration::ZERO).await, swept(0, 1, 0));
    assert_eq!((world.artifact_files().len(), count(&world, "artifact_uploads").await), (0, 0));
}

#[tokio::test]
async fn the_role_that_closes_what_time_closes_removes_by_itself() {
    let world = World::with(|settings| {
        keep_artifacts(settings);
        settings.workers.roles.push(Role::Expiry);
        settings.artifacts.sweep_interval_seconds = 1;
    })
    .await;
    let agent = world.agent().await;
    let kept = agent.send_artifact("kept", "text/plain").await.0;
    let put = agent.request(reqwest::Method::PUT, &format!("/artifacts/{}", digest_of(b"x")));
    agent.send(put.body("y")).await.refused(422, "digest_mismatch");
    eventually("what came to nothing is forgotten", async || count(&world, "artifact_uploads").await == 0).await;
    let (left, sent) = agent.send_artifact("left", "text/plain").await;
    sent.expect(201);
    let statement =
        "UPDATE agent_runtime.artifacts SET kept_at = kept_at - interval '2 days' WHERE encode(digest, 'hex') = $1";
    sqlx::query(statement).bind(left.replace("sha256:", "")).execute(&world.db).await.unwrap();
    eventually("what nobody refers to is gone", async || world.artifact_files().len() == 1).await;
    assert_eq!(agent.artifact(&kept).await.text, "kept");
    agent.artifact(&left).await.refused(404, "not_found");
}

#[tokio::test]
async fn what_a_process_that_died_left_is_removed() {
    let world = World::with_artifacts().await;
    let store = Store::connect(&store_options(&world.settings)).unwrap();
    let upload =
        Upload { organization: world.seed.organization_id.into(), digest: Digest::of(b"x"), id: Uuid::from_u128(7) };
    // It had noted the upload and written the bytes, and did not come to the row that names them.
    store.begin_upload(upload, HOUR).await.unwrap();
    let hex = digest_of(b"x").replace("sha256:", "");
    let root: url::Url = world.settings.artifacts.store_url.as_ref().unwrap().expose().parse().unwrap();
    let folder = root.to_file_path().unwrap().join(format!("{}/{}", world.seed.organization_id.simple(), &hex[..2]));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(format!("{}-{}", &hex[2..], upload.id.simple())), "x").unwrap();
    assert_eq!(sweep(&world, HOUR).await, swept(0, 0, 0));
    assert_eq!(world.artifact_files().len(), 1);
    age(&world, "2 hours").await;
    assert_eq!(sweep(&world, HOUR).await, swept(0, 1, 0));
    assert_eq!((world.artifact_files().len(), count(&world, "artifact_uploads").await), (0, 0));
    store.close().await;
}

#[tokio::test]
async fn an_upload_that_was_taken_for_dead_becomes_no_artifact() {
    let world = World::with_artifacts().await;
    let store = Store::connect(&store_options(&world.settings)).unwrap();
    let organization = world.seed.organization_id.into();
    let received = Received { size: 1, media_type: "text/plain", sender: "person:ada" };
    let upload = |id| Upload { organization, digest: Digest::of(b"x"), id: Uuid::from_u128(id) };
    store.begin_upload(upload(1), Duration::ZERO).await.unwrap();
    store.begin_upload(upload(2), HOUR).await.unwrap();
    assert_eq!(store.abandoned_uploads(10).await.unwrap(), [upload(1)]);
    assert_eq!(store.finish_upload(upload(1), received).await.unwrap(), None);
    assert_eq!(count(&world, "artifacts").await, 0);
    let kept = store.finish_upload(upload(2), received).await.unwrap().unwrap();
    assert_eq!(kept.upload, upload(2).id);
    // One that has become an artifact is nobody's leftover.
    age(&world, "2 hours").await;
    assert_eq!(store.abandoned_uploads(10).await.unwrap(), [upload(1)]);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_remover_without_grace_never_takes_what_a_commit_refers_to() {
    let world = Arc::new(World::with_artifacts().await);
    let other = World::beside(&world).await;
    let (agent, ada) = (world.agent().await, other.person("ada"));
    let stop = Arc::new(AtomicBool::new(false));
    // Two removers that give nothing any time at all.
    let removers: Vec<_> = [Arc::clone(&world.service), Arc::clone(&other.service)]
        .map(|service| {
            let stop = Arc::clone(&stop);
            tokio::spawn(async move {
                let mut removed = 0;
                while !stop.load(Ordering::Relaxed) {
                    let swept = service.sweep_artifacts(Duration::ZERO, 100).await.unwrap();
                    assert_eq!(swept.failed, 0);
                    removed += swept.removed;
                }
                removed
            })
        })
        .into();
    let mut tasks = Vec::new();
    for _ in 0..4 {
        tasks.push(world.task().await);
    }
    let (mut written, mut busy) = (Vec::new(), 0);
    for round in 0..25 {
        // The same content from all at once, sent by itself too.
        let payload = json!({"body": format!("{round} {}", "x".repeat(70_000))});
        let appends = tasks.iter().map(|task| agent.append(task, json!([{"type": "turn", "payload": payload}])));
        let sends = (0..2).map(|_| ada.send_artifact(payload.to_string(), "application/json"));
        let (appended, sent) =
            futures::future::join(futures::future::join_all(appends), futures::future::join_all(sends)).await;
        for reply in appended {
            if reply.status == 201 {
                let artifact = &reply.body["written"][0]["payload"]["artifact"];
                written.push((artifact["digest"].as_str().unwrap().to_owned(), payload.to_string()));
            } else {
                // The remover was faster three times; nothing was written.
                reply.refused(503, "unavailable");
                busy += 1;
            }
        }
        for (_, reply) in sent {
            assert!([200, 201, 503].contains(&reply.status), "{}", reply.text);
        }
    }
    stop.store(true, Ordering::Relaxed);
    let mut removed = 0;
    for remover in removers {
        removed += remover.await.unwrap();
    }
    println!("{} written, {busy} busy, {removed} removed", written.len());
    assert!(written.len() > 20, "{} written, {busy} busy", written.len());
    for (digest, text) in &written {
        let read = world.person("vera").artifact(digest).await;
        assert!(read.status == 200 && read.text == *text, "{digest}: {}", read.status);
    }
    // When all is quiet every artifact has its bytes and all bytes their artifact.
    while sweep(&world, Duration::ZERO).await != swept(0, 0, 0) {}
    let artifacts = count(&world, "artifacts").await;
    assert_eq!(world.artifact_files().len(), usize::try_from(artifacts).unwrap());
    assert_eq!(count(&world, "artifact_uploads").await, 0);
    assert_eq!(count(&world, "artifacts WHERE NOT referenced").await, 0);
    world.prove().await;
}
