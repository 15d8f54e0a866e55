//! What a process does is chosen by its roles.

use std::process::Command;

use crate::archive::closed_task;
use crate::combination::{Combination, Place, without_publisher};
use crate::process::Process;
use crate::support::{World, eventually, program};

const SWEEPING: &[(&str, &str)] = &[
    ("MANDATE_WORKERS__ROLES", "sweep"),
    ("MANDATE_ARCHIVE__GRACE_SECONDS", "0"),
    ("MANDATE_ARCHIVE__PATIENCE_SECONDS", "0"),
    ("MANDATE_ARCHIVE__SWEEP_INTERVAL_SECONDS", "1"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_only_sweeps_has_no_api() {
    let world = Place::new(Combination::DirectPostgres).world_with(without_publisher).await;
    let agent = world.agent().await;
    let task = closed_task(&world, &agent).await;
    let mut process = Process::start(&world, SWEEPING).await;
    let (vera, anyone) = (world.person("vera").at(&process.base), world.anyone().at(&process.base));
    for probe in ["//healthz", "//readyz", "//metrics"] {
        anyone.get(probe).await.expect(200);
    }
    for path in [
        "/agent-tasks/",
        "/agent-usage",
        "/operations-log",
        "//.well-known/jwks.json",
        "//openapi.json",
        "//docs",
        "//",
    ] {
        vera.get(path).await.refused(404, "not_found");
    }
    anyone.send(anyone.request(reqwest::Method::POST, "//auth/token")).await.refused(404, "not_found");
    vera.post_nothing("//healthz").await.refused(405, "method_not_allowed");
    // It does what the server with the API does not.
    eventually("the other process archives", async || {
        !world.person("ada").get(&format!("/agent-tasks/{task}")).await.expect(200)["log_archived_at"].is_null()
    })
    .await;
    process.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(process.exit_code(std::time::Duration::from_secs(10)).await, Some(0));
    world.prove().await;
}

async fn serve(world: &World, arguments: &[&str], roles: Option<&str>) -> (Option<i32>, String) {
    let mut command = Command::new(program());
    command
        .arg("serve")
        .args(arguments)
        .current_dir(&world.settings.auth.data_folder)
        .env("MANDATE_SERVER__LISTEN", "127.0.0.1:0")
        .env("MANDATE_DATABASE__URL", &world.database_url)
        .env("MANDATE_AUTH__DATA_FOLDER", &world.settings.auth.data_folder);
    if let Some(roles) = roles {
        command.env("MANDATE_WORKERS__ROLES", roles);
    }
    let done = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    (done.status.code(), String::from_utf8(done.stderr).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_is_none_is_refused_by_name() {
    let world = Place::new(Combination::DirectPostgres).world().await;
    let names = "api, publisher, sink, sweep, expiry";
    for (arguments, variable, named) in [
        (&["--roles", "king"][..], None, "--roles"),
        (&["--roles", "api,king"], None, "--roles"),
        (&["--roles", "api,"], None, "--roles"),
        (&[], Some("king"), "workers.roles"),
        (&[], Some("api,king"), "workers.roles"),
    ] {
        let (status, said) = serve(&world, arguments, variable).await;
        assert!(status.is_some_and(|status| status != 0), "{arguments:?} {variable:?}: {said}");
        assert!(said.contains(names) && said.contains(named), "{arguments:?} {variable:?}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn by_default_a_process_does_everything() {
    let settings = Command::new(program()).arg("settings").output().unwrap();
    let text = String::from_utf8(settings.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("workers.roles")).unwrap();
    assert!(line.contains(r#"["api", "publisher", "sink", "sweep", "expiry"]"#), "{line}");
}
