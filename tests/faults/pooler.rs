//! A proxy that pools by transaction stands between the service and Postgres (case 47).

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mandate::config::SecretUrl;
use nix::unistd::Uid;
use sqlx::{Connection as _, PgConnection};

use crate::support::{World, eventually, program};
use crate::writers::{Writers, assert_kept, never, tasks};

/// A pgbouncer in front of the database server of the tests.
struct Pooler {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
}

impl Pooler {
    fn start(database_url: &str) -> Self {
        let server = url::Url::parse(database_url).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let password = server.password().map(|text| format!(" password='{text}'")).unwrap_or_default();
        let text = format!(
            "[databases]\n* = host={} port={} user={}{password}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
             default_pool_size = 4\nmax_client_conn = 200\nignore_startup_parameters = extra_float_digits\n\
             server_idle_timeout = 5\n",
            server.host_str().unwrap(),
            server.port().unwrap_or(5432),
            server.username(),
        );
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let mut command = if Uid::effective().is_root() {
            // It refuses to be root.
            let mut command = Command::new("setpriv");
            command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups", "pgbouncer"]);
            command
        } else {
            Command::new("pgbouncer")
        };
        let path = format!("{}:/usr/sbin:/usr/local/sbin", std::env::var("PATH").unwrap());
        let child = command.arg("-q").arg(&file).env("PATH", path).current_dir("/").stderr(Stdio::inherit()).spawn();
        Self { child: child.expect("pgbouncer is installed by tests/run"), port, folder }
    }

    fn url(&self, database_url: &str) -> String {
        let mut url = url::Url::parse(database_url).unwrap();
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(self.port)).unwrap();
        url.to_string()
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        assert!(self.folder.path().exists());
    }
}

async fn behind() -> (World, Pooler, String) {
    let started = std::sync::OnceLock::new();
    let world = World::with(|settings| {
        let direct = settings.database.url.expose().to_owned();
        let pooler = Pooler::start(&direct);
        settings.database.url = SecretUrl::new(pooler.url(&direct));
        settings.database.transaction_pooler = true;
        settings.database.max_connections = 16;
        assert!(started.set(pooler).is_ok());
    })
    .await;
    let pooler = started.into_inner().unwrap();
    let url = pooler.url(&world.database_url);
    let anyone = world.anyone();
    eventually("the pooler listens", async || anyone.get("//readyz").await.status == 200).await;
    (world, pooler, url)
}

fn migrate(url: &str, pooled: bool) -> std::process::Output {
    Command::new(program())
        .arg("migrate")
        .current_dir(std::env::temp_dir())
        .env("MANDATE_DATABASE__URL", url)
        .env("MANDATE_DATABASE__TRANSACTION_POOLER", pooled.to_string())
        .output()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_appends_behind_a_transaction_pooler_meet_no_error_while_the_schema_changes() {
    let (world, _pooler, _) = behind().await;
    let (agent, tasks) = (world.agent().await, tasks(&world, 4).await);
    let writers = Writers::start(8, &tasks, |_| agent.clone(), never);
    writers.advance(300).await;
    let mut db = PgConnection::connect(&world.database_url).await.unwrap();
    for statement in [
        "ALTER TABLE agent_runtime.task_projects ADD COLUMN note text",
        "ALTER TABLE agent_runtime.sessions ADD COLUMN note text",
        "CREATE INDEX events_by_type ON agent_runtime.events (organization_id, type)",
    ] {
        sqlx::query(statement).execute(&mut db).await.unwrap();
        writers.advance(100).await;
    }
    let url = world.database_url.clone();
    let output = tokio::task::spawn_blocking(move || migrate(&url, false)).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    writers.advance(400).await;
    let written = writers.end().await;
    assert_kept(&world.db, &written).await;
    world.prove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn migrating_through_the_pooler_works_again_and_again_and_keeps_no_lock() {
    let (world, _pooler, url) = behind().await;
    for _ in 0..3 {
        let through = url.clone();
        let runs: Vec<_> = (0..3)
            .map(|_| {
                let url = through.clone();
                tokio::task::spawn_blocking(move || migrate(&url, true))
            })
            .collect();
        for run in runs {
            let output = tokio::time::timeout(Duration::from_secs(20), run).await.expect("a lock was left").unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        let locks = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
            WHERE l.locktype = 'advisory' AND d.datname = current_database()";
        assert_eq!(sqlx::query_scalar::<_, i64>(locks).fetch_one(&world.db).await.unwrap(), 0);
    }
}
