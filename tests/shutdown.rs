//! The first stop signal drains, the second ends at once.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use mandate::shutdown::{Ended, Shutdown};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Set in the processes that these tests start from their own program: how long their one task takes to drain.
const DRAIN_MS: &str = "MANDATE_TEST_DRAIN_MS";

/// What such a process does: it waits for a signal, then drains a task.
fn serve(drain: Duration) -> ! {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let ended = runtime.block_on(async {
        let shutdown = Shutdown::listen(Duration::from_secs(30)).unwrap();
        let soft = shutdown.soft().clone();
        shutdown.tasks().spawn(async move {
            soft.cancelled().await;
            println!("draining");
            tokio::time::sleep(drain).await;
        });
        println!("listening");
        shutdown.finish().await
    });
    std::process::exit(if ended == Ended::Drained { 0 } else { 9 });
}

struct Server {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Server {
    /// Runs `test` of this program again, as a server whose task takes `drain`.
    fn start(test: &str, drain: Duration) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(DRAIN_MS, drain.as_millis().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut server = Self { child, lines };
        server.wait_for("listening");
        server
    }

    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            assert_ne!(self.lines.read_line(&mut line).unwrap(), 0, "ended before it said {word}");
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    fn exit_code(mut self) -> Option<i32> {
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.child.kill().unwrap();
        panic!("still running after 20 s");
    }
}

/// Becomes the server when this process was started as one.
fn be_the_server_if_asked() {
    if let Ok(drain) = std::env::var(DRAIN_MS) {
        serve(Duration::from_millis(drain.parse().unwrap()));
    }
}

#[test]
fn the_first_signal_drains() {
    be_the_server_if_asked();
    let mut server = Server::start("the_first_signal_drains", Duration::from_millis(200));
    server.signal(Signal::SIGTERM);
    server.wait_for("draining");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn a_second_signal_ends_at_once_with_its_own_exit_code() {
    be_the_server_if_asked();
    for (second, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let test = "a_second_signal_ends_at_once_with_its_own_exit_code";
        let mut server = Server::start(test, Duration::from_secs(25));
        server.signal(Signal::SIGINT);
        server.wait_for("draining");
        server.signal(second);
        assert_eq!(server.exit_code(), Some(code), "{second}");
    }
}
