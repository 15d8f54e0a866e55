//! The managed PostgreSQL: it starts from nothing, ends with its parent however that ends, and loses no row.

#![allow(clippy::unwrap_used)]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mandate::dev::postgres::{ManagedPostgres, ManagedPostgresError, PostgresOptions, Programs};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};
use sqlx::{Connection as _, PgConnection};
use tempfile::TempDir;

/// Set in the processes that these tests start from their own program: the data folder to work in.
const PARENT_IN: &str = "MANDATE_TEST_PARENT_IN";
/// Set beside it when the shell shall stand watch.
const WATCHDOG: &str = "MANDATE_TEST_WATCHDOG";

/// A temporary folder that other users can pass through.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o711)).unwrap();
    folder
}

fn options(data: &Path) -> PostgresOptions {
    PostgresOptions { durable: false, fallback: data.join("fallback"), ..PostgresOptions::new(data) }
}

async fn insert(postgres: &ManagedPostgres) -> i64 {
    let mut connection = PgConnection::connect(&postgres.url("postgres")).await.unwrap();
    sqlx::query("CREATE TABLE IF NOT EXISTS kept (n int)").execute(&mut connection).await.unwrap();
    sqlx::query("INSERT INTO kept VALUES (1)").execute(&mut connection).await.unwrap();
    sqlx::query_scalar("SELECT count(*) FROM kept").fetch_one(&mut connection).await.unwrap()
}

/// Whether the process runs: one that has ended and was not waited for does not.
fn runs(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let ended = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']));
    kill(Pid::from_raw(pid), None).is_ok() && !ended
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "after 20 s still not: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[tokio::test]
async fn starts_from_nothing_and_again_with_its_rows() {
    let folder = folder();
    let data = folder.path().join("data");
    for run in 1..=2 {
        let postgres = ManagedPostgres::start(options(&data)).await.unwrap();
        assert_eq!(postgres.notes(), [""; 0]);
        assert_eq!(insert(&postgres).await, run);
        assert_eq!(postgres.ensure_database("of \"mine\"").await.unwrap(), run == 1);
        let mut connection = PgConnection::connect(&postgres.url("of \"mine\"")).await.unwrap();
        let shown = "SELECT current_setting('listen_addresses') || current_setting('fsync')";
        assert_eq!(sqlx::query_scalar::<_, String>(shown).fetch_one(&mut connection).await.unwrap(), "off");
        let lower = sqlx::query_scalar::<_, String>("SELECT lower('ÄÉΣ')").fetch_one(&mut connection).await.unwrap();
        assert_eq!(lower, "äéσ", "the case of letters beyond ASCII is known");
        let pid = postgres.pid();
        // A client that is still connected does not hold up the stop.
        postgres.stop().await.unwrap();
        assert!(!runs(pid));
    }
}

#[tokio::test]
async fn its_folders_are_its_users_alone() {
    let folder = folder();
    let postgres = ManagedPostgres::start(options(folder.path())).await.unwrap();
    let home = folder.path().join(format!("postgres-{}", postgres.programs().major));
    for path in [home.clone(), home.join("socket"), home.join("data")] {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700, "{}", path.display());
    }
    assert_eq!(postgres.log().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn a_second_one_on_the_same_data_is_refused_and_names_the_first() {
    let folder = folder();
    let first = ManagedPostgres::start(options(folder.path())).await.unwrap();
    let refusal = ManagedPostgres::start(options(folder.path())).await.unwrap_err();
    assert!(matches!(refusal, ManagedPostgresError::InUse { .. }), "{refusal}");
    let text = refusal.to_string();
    assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
    assert_eq!(insert(&first).await, 1, "the first one does not notice");
    first.stop().await.unwrap();
    ManagedPostgres::start(options(folder.path())).await.unwrap().stop().await.unwrap();
}

#[tokio::test]
async fn a_long_path_and_an_odd_one_work_too() {
    let folder = folder();
    for name in ["long".repeat(30), "with 'quotes', \"commas\" & $HOME %20".to_owned()] {
        let postgres = ManagedPostgres::start(options(&folder.path().join(name))).await.unwrap();
        assert_eq!(insert(&postgres).await, 1);
        let mut psql = Command::new("psql");
        psql.arg(postgres.url("postgres")).args(["--tuples-only", "--no-align", "--command", "SELECT n FROM kept"]);
        assert_eq!(psql.output().unwrap().stdout, b"1\n", "psql understands the same URL");
        postgres.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_folder_without_programs_is_named() {
    let folder = folder();
    let wrong = PostgresOptions { programs: Some(folder.path().to_path_buf()), ..options(folder.path()) };
    let text = ManagedPostgres::start(wrong).await.unwrap_err().to_string();
    assert!(text.contains(&folder.path().display().to_string()) && text.contains("initdb"), "{text}");
}

#[tokio::test]
async fn a_server_that_cannot_start_says_why() {
    let folder = folder();
    let mut wrong = options(folder.path());
    wrong.settings = vec![("max_connections".to_owned(), "lots".to_owned())];
    let text = ManagedPostgres::start(wrong).await.unwrap_err().to_string();
    assert!(text.contains("max_connections"), "{text}");
}

#[tokio::test]
async fn a_server_that_ends_by_itself_is_noticed() {
    let folder = folder();
    let postgres = ManagedPostgres::start(options(folder.path())).await.unwrap();
    kill(Pid::from_raw(postgres.pid()), Signal::SIGTERM).unwrap();
    let text = tokio::time::timeout(Duration::from_secs(20), postgres.ended()).await.unwrap();
    assert!(text.contains("shut down"), "{text}");
    postgres.stop().await.unwrap();
}

/// Becomes a parent of a managed PostgreSQL when this process was started as one: inserts a row, says so, and waits to
/// be killed.
fn be_the_parent_if_asked() {
    let Some(data) = std::env::var_os(PARENT_IN).map(PathBuf::from) else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let watchdog = std::env::var_os(WATCHDOG).is_some();
        let postgres = ManagedPostgres::start(PostgresOptions { watchdog, ..options(&data) }).await.unwrap();
        let rows = insert(&postgres).await;
        std::fs::write(data.join("ready.new"), format!("{} {rows}", postgres.pid())).unwrap();
        std::fs::rename(data.join("ready.new"), data.join("ready")).unwrap();
        tokio::time::sleep(Duration::from_mins(1)).await;
    });
    std::process::exit(1);
}

/// A process that is killed at the latest when the test is over.
struct Parent(Child);

impl Parent {
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        // It may have been killed before.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `test` of this program again as a parent in `data`; returns it with its server's process and the rows.
fn start_parent(test: &str, data: &Path, watchdog: bool) -> (Parent, i32, i64) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(PARENT_IN, data).stdout(Stdio::null());
    if watchdog {
        command.env(WATCHDOG, "1");
    }
    let mut parent = Parent(command.spawn().unwrap());
    let ready = data.join("ready");
    wait_until("the parent has a server", || ready.exists() || parent.0.try_wait().unwrap().is_some());
    let said = std::fs::read_to_string(&ready).expect("the parent ended too early");
    std::fs::remove_file(&ready).unwrap();
    let (pid, rows) = said.split_once(' ').unwrap();
    (parent, pid.parse().unwrap(), rows.parse().unwrap())
}

fn dies_with_its_parent(test: &str, watchdog: bool) {
    let folder = folder();
    for run in 1..=4 {
        let (mut parent, pid, rows) = start_parent(test, folder.path(), watchdog);
        assert_eq!(rows, run, "every row of the runs before is there");
        parent.kill();
        // Every other time the next start meets the old server on its way out.
        if run % 2 == 0 {
            wait_until("the server is gone", || !runs(pid));
        }
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let postgres = ManagedPostgres::start(options(folder.path())).await.unwrap();
        assert_eq!(insert(&postgres).await, 5);
        postgres.stop().await.unwrap();
    });
}

#[test]
fn a_killed_parent_leaves_no_server_and_loses_no_row() {
    be_the_parent_if_asked();
    dies_with_its_parent("a_killed_parent_leaves_no_server_and_loses_no_row", false);
}

#[test]
fn a_killed_parent_leaves_no_server_where_a_shell_stands_watch() {
    be_the_parent_if_asked();
    dies_with_its_parent("a_killed_parent_leaves_no_server_where_a_shell_stands_watch", true);
}

#[tokio::test]
async fn an_orphan_of_an_earlier_run_is_stopped() {
    let folder = folder();
    let first = ManagedPostgres::start(options(folder.path())).await.unwrap();
    assert_eq!(insert(&first).await, 1);
    let programs = first.programs().clone();
    first.stop().await.unwrap();
    // What a parent that was killed in the wrong moment would leave: a server on the same data, with nobody above it.
    let home = folder.path().join(format!("postgres-{}", programs.major));
    let mut command = Command::new(programs.folder.join("postgres"));
    command.arg("-D").arg(home.join("data")).args(["-c", "listen_addresses=", "-c"]);
    command.arg(format!("unix_socket_directories={}", home.join("socket").display()));
    command.current_dir("/").stderr(Stdio::null());
    if geteuid().is_root() {
        let user = ["postgres", "nobody"].into_iter().find_map(|name| User::from_name(name).unwrap()).unwrap();
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    let mut orphan = command.spawn().unwrap();
    wait_until("the orphan has its socket", || home.join("socket/.s.PGSQL.5432").exists());
    let waiter = std::thread::spawn(move || orphan.wait().unwrap());
    let postgres = ManagedPostgres::start(options(folder.path())).await.unwrap();
    assert!(postgres.notes().iter().any(|note| note.contains("left behind")), "{:?}", postgres.notes());
    assert_eq!(insert(&postgres).await, 2);
    postgres.stop().await.unwrap();
    waiter.join().unwrap();
}

#[tokio::test]
async fn as_root_data_that_the_unprivileged_user_cannot_reach_goes_elsewhere_and_says_so() {
    let folder = folder();
    let closed = folder.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
    let data = closed.join("data");
    let fallback = folder.path().join("fallback");
    for run in 1..=2 {
        let options = PostgresOptions { fallback: fallback.clone(), ..options(&data) };
        let postgres = ManagedPostgres::start(options).await.unwrap();
        assert_eq!(insert(&postgres).await, run);
        let elsewhere = postgres.notes().iter().any(|note| note.contains(&fallback.display().to_string()));
        assert_eq!(elsewhere, geteuid().is_root(), "{:?}", postgres.notes());
        postgres.stop().await.unwrap();
    }
    if geteuid().is_root() {
        // Data that is there stays where it is, even when it could now be reached where it was asked for.
        std::fs::set_permissions(&closed, Permissions::from_mode(0o711)).unwrap();
        let options = PostgresOptions { fallback, ..options(&data) };
        let postgres = ManagedPostgres::start(options).await.unwrap();
        assert_eq!(insert(&postgres).await, 3);
        postgres.stop().await.unwrap();
    }
}

#[test]
fn this_machine_has_programs_in_the_folders_that_are_searched() {
    let found = Programs::find();
    assert!(!found.is_empty());
    assert!(found.iter().all(|programs| programs.folder.join("initdb").is_file()), "{found:?}");
}
