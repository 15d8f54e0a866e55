//! What the program does beside serving: real processes.

use std::io::Write as _;
use std::process::{Command, Stdio};

use mandate::config::SecretUrl;
use mandate::domain::ids::ReportId;
use mandate::log::{Batch, UsageRow};
use reqwest::Method;
use uuid::Uuid;

use crate::archive::closed_task;
use crate::combination::{Combination, Place, archived, landed};
use crate::duplicates::stored;
use crate::over_every_combination;
use crate::support::{World, program};

over_every_combination!(
    a_sweep_by_hand_archives_and_says_so,
    the_audit_reads_archived_logs_and_finds_what_was_altered,
    the_audit_finds_archived_usage_that_was_altered_lost_or_added,
    migrating_twice_is_migrating_once,
);

/// A command over the database and the log of a world.
fn command(world: &World, arguments: &[&str]) -> Command {
    let log = &world.settings.log;
    let mut command = Command::new(program());
    command
        .args(arguments)
        .current_dir(&world.settings.auth.data_folder)
        .env("MANDATE_DATABASE__URL", &world.database_url)
        .env("MANDATE_AUTH__DATA_FOLDER", &world.settings.auth.data_folder)
        .env("MANDATE_ARCHIVE__GRACE_SECONDS", "0")
        .env("MANDATE_ARCHIVE__PATIENCE_SECONDS", world.settings.archive.patience_seconds.to_string())
        .env("MANDATE_LOG__STREAM_URL", log.stream_url.expose())
        .env("MANDATE_LOG__TOPIC_PREFIX", &log.topic_prefix)
        .env("MANDATE_LOG__SINK_GROUP", &log.sink_group);
    if let Some(url) = &log.store_url {
        command.env("MANDATE_LOG__STORE_URL", url.expose());
    }
    command
}

/// Runs it: the status, and what it prints on both outputs.
async fn run(mut command: Command) -> (Option<i32>, String) {
    let done = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    (done.status.code(), String::from_utf8([done.stdout, done.stderr].concat()).unwrap())
}

async fn a_sweep_by_hand_archives_and_says_so(place: Place) {
    let world = place.world().await;
    let agent = world.agent().await;
    let (closed, open) = (closed_task(&world, &agent).await, world.task().await);
    for task in [&closed, &open] {
        landed(&world, task).await;
    }
    let (status, said) = run(command(&world, &["sweep", "--once"])).await;
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("2 whole in the log store"), "{said}");
    assert!(said.contains("1 logs archived, 0 contradicted"), "{said}");
    assert!(said.contains("the oldest unverified entry is 0 s old; 0 logs are left"), "{said}");
    let row = world.person("ada").get(&format!("/agent-tasks/{closed}")).await.expect(200).clone();
    assert!(row["log_archived_at"].is_string());
    assert_eq!(world.log(&closed).await.len().to_string(), row["last_seq"].to_string());
    let (status, said) = run(command(&world, &["sweep", "--once", "--retry-mismatched"])).await;
    assert!(status == Some(0) && said.contains("0 logs are tried again") && said.contains("0 logs archived"), "{said}");
    // It gave the lease back, so that the server's own sweep goes on at once.
    assert!(!world.sweep().await.elsewhere);
    // While another holds the lease it does nothing, and says why.
    let hold = "INSERT INTO agent_runtime.worker_leases VALUES ('sweep', gen_random_uuid(), now() + interval '1 hour')";
    sqlx::query(hold).execute(&world.db).await.unwrap();
    let (status, said) = run(command(&world, &["sweep", "--once"])).await;
    assert!(status == Some(0) && said.contains("another process sweeps"), "{said}");
    // Once is what it takes.
    assert_eq!(run(command(&world, &["sweep"])).await.0, Some(2));
    world.prove().await;
}

async fn the_audit_reads_archived_logs_and_finds_what_was_altered(place: Place) {
    let world = place.world().await;
    world.spoil().await;
    let agent = world.agent().await;
    let (task, other) = (closed_task(&world, &agent).await, closed_task(&world, &agent).await);
    archived(&world, &task).await;
    archived(&world, &other).await;
    let row = world.person("ada").get(&format!("/agent-tasks/{task}")).await.expect(200).clone();
    let (id, length) = (row["id"].as_str().unwrap(), row["last_seq"].as_i64().unwrap());
    let (status, said) = run(command(&world, &["audit"])).await;
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains(&format!("2 tasks, {} events and 6 reports audited, 0 findings", 2 * length)), "{said}");
    let lone = format!("task_id = '{id}' AND seq = 5");
    let update = if place.is_clickhouse() { "ALTER TABLE {events} UPDATE" } else { "UPDATE {events} SET" };
    let altered = format!("{update} actor_id = 'somebody' WHERE {lone}");
    for statement in [altered, format!("DELETE FROM {{events}} WHERE {lone}")] {
        place.in_store(&world, &statement).await;
        let (status, said) = run(command(&world, &["audit"])).await;
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains(&format!("{task} of organization {}: ", world.seed.organization_id)), "{said}");
        assert!(!said.contains(&format!("{other} of")), "{said} blames the other task");
        assert!(said.contains("1 findings") && said.contains("the audit found faults"), "{said}");
    }
    // A log store that is away is no proof of anything.
    let mut away = command(&world, &["audit"]);
    away.env("MANDATE_LOG__STORE_URL", "clickhouse://default@127.0.0.1:1/away");
    let (status, said) = run(away).await;
    assert!(status == Some(1) && said.contains("unavailable"), "{said}");
}

async fn the_audit_finds_archived_usage_that_was_altered_lost_or_added(place: Place) {
    let world = place.world().await;
    world.spoil().await;
    let agent = world.agent().await;
    let task = closed_task(&world, &agent).await;
    archived(&world, &task).await;
    let row = world.person("ada").get(&format!("/agent-tasks/{task}")).await.expect(200).clone();
    let (_, usage) = stored(&world, &row).await;
    let report = usage.iter().map(|row| row.report_id).min().unwrap();
    let found = async |fault: String| {
        let (status, said) = run(command(&world, &["audit"])).await;
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains("1 findings") && said.contains(&format!("{task} of")) && said.contains(&fault), "{said}");
    };
    let update = if place.is_clickhouse() { "ALTER TABLE {usage} UPDATE" } else { "UPDATE {usage} SET" };
    let altered = format!("{update} tokens_out = tokens_out + 1 WHERE report_id = '{report}'");
    for statement in [altered, format!("DELETE FROM {{usage}} WHERE report_id = '{report}'")] {
        place.in_store(&world, &statement).await;
        found(format!("report {report} is missing in the log store, or differs")).await;
    }
    let lost = usage.iter().find(|row| row.report_id == report).unwrap().clone();
    world.log.store.append(&Batch { events: Vec::new(), usage: vec![lost.clone()] }).await.unwrap();
    let (status, said) = run(command(&world, &["audit"])).await;
    assert_eq!(status, Some(0), "{said}");
    let added = UsageRow { report_id: ReportId(Uuid::from_u128(7)), ..lost };
    world.log.store.append(&Batch { events: Vec::new(), usage: vec![added] }).await.unwrap();
    found(format!("the log store has report {}", Uuid::from_u128(7))).await;
}

async fn migrating_twice_is_migrating_once(place: Place) {
    let world = place.world().await;
    let agent = world.agent().await;
    let task = closed_task(&world, &agent).await;
    archived(&world, &task).await;
    let (usage, log) = (world.person("vera").get("/agent-usage").await.body["total"].clone(), world.log(&task).await);
    for _ in 0..2 {
        let (status, said) = run(command(&world, &["migrate"])).await;
        assert!(status == Some(0) && said.contains("up to date"), "{said}");
    }
    assert_eq!(world.person("vera").get("/agent-usage").await.body["total"], usage);
    assert_eq!(world.log(&task).await, log);
    world.prove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_reached_is_told_without_its_password() {
    let world = Place::new(Combination::DirectPostgres).world().await;
    for arguments in [&["migrate"][..], &["sweep", "--once"]] {
        let mut command = command(&world, arguments);
        let url = SecretUrl::new("clickhouse://somebody:hunter2@127.0.0.1:1/away");
        command.env("MANDATE_LOG__STORE_URL", url.expose());
        // Something to compare.
        world.task().await;
        let (status, said) = run(command).await;
        assert_eq!(status, Some(1), "{arguments:?}: {said}");
        assert!(said.contains("log store") && !said.contains("hunter2"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_verified_from_standard_input() {
    let world = Place::new(Combination::DirectPostgres).world().await;
    let agent = world.agent().await;
    let task = closed_task(&world, &agent).await;
    let proof = world.person("vera").get(&format!("/agent-tasks/{task}/proof")).await.expect(200).clone();
    let request = world.person("vera").request(Method::GET, &format!("/agent-tasks/{task}/events"));
    let lines = request.header("accept", "application/x-ndjson").send().await.unwrap().text().await.unwrap();
    let head = proof["log_digest"].as_str().unwrap();
    let verify = async |text: String, more: &[&str]| {
        let mut command = Command::new(program());
        command.args(["verify", "-"]).args(more).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let done = tokio::task::spawn_blocking(move || {
            let writer = std::thread::spawn(move || drop(input.write_all(text.as_bytes())));
            let done = child.wait_with_output().unwrap();
            writer.join().unwrap();
            done
        });
        let done = done.await.unwrap();
        (done.status.code(), String::from_utf8([done.stdout, done.stderr].concat()).unwrap())
    };
    let (status, said) = verify(lines.clone(), &["--head", head]).await;
    let entries = lines.lines().count();
    assert_eq!((status, said.as_str()), (Some(0), format!("whole: {entries} entries, head {head}\n").as_str()));
    let (status, said) = verify(lines.clone(), &[]).await;
    assert!(status == Some(0) && said.contains("compare it with the proof's"), "{said}");
    let (status, said) = verify(lines.replacen("\"seq\":2,", "\"seq\":3,", 1), &[]).await;
    assert!(status == Some(1) && said.contains("line 2"), "{said}");
    assert_eq!(verify(String::new(), &[]).await.0, Some(1));
    // Entries of the events route do not name the task: it is given.
    let entries = lines.lines().map(|line| format!("{{{}", line.split_once(',').unwrap().1));
    let plain = entries.collect::<Vec<_>>().join("\n");
    let (status, said) = verify(plain.clone(), &["--task", proof["task_id"].as_str().unwrap()]).await;
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(verify(plain, &[]).await.0, Some(1));
}
