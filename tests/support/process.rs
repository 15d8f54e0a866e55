//! A real `mandate serve`.

#![allow(dead_code, reason = "several test programs share it, and not each uses all of it")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{World, program};

/// A child process that serves the database of a world, with the keys of that world.
pub struct Process {
    pub base: String,
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Process {
    pub async fn start(world: &World, settings: &[(&str, &str)]) -> Self {
        let mut command = Command::new(program());
        command
            .arg("serve")
            .current_dir(&world.settings.auth.data_folder)
            .env("MANDATE_SERVER__LISTEN", "127.0.0.1:0")
            .env("MANDATE_DATABASE__URL", &world.database_url)
            .env("MANDATE_DATABASE__MAX_CONNECTIONS", "8")
            .env("MANDATE_AUTH__DATA_FOLDER", &world.settings.auth.data_folder)
            .env("MANDATE_AUTH__AUDIENCE", &world.settings.auth.audience)
            .envs(settings.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let (read, written) = (BufReader::new(child.stderr.take().unwrap()), Arc::clone(&lines));
        std::thread::spawn(move || {
            for line in read.lines().map_while(Result::ok) {
                written.lock().unwrap().push(line);
            }
        });
        let mut process = Self { base: String::new(), child, lines };
        process.wait_for("serving address=").await;
        let address = process.line("serving address=").unwrap();
        let address = address.split("serving address=").nth(1).unwrap().split_whitespace().next().unwrap();
        process.base = format!("http://{address}");
        process
    }

    fn line(&self, words: &str) -> Option<String> {
        self.lines.lock().unwrap().iter().find(|line| line.contains(words)).cloned()
    }

    /// Waits until the process has logged these words.
    pub async fn wait_for(&self, words: &str) {
        for _ in 0..2_000 {
            if self.line(words).is_some() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the server never said {words}:\n{}", self.log());
    }

    /// The process's own log, for messages.
    pub fn log(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Whether the process listens no more.
    pub async fn refuses_connections(&self) -> bool {
        tokio::net::TcpStream::connect(self.base.strip_prefix("http://").unwrap()).await.is_err()
    }

    /// Waits for the end, at most so long, and tells the exit code; `None` when a signal ended it.
    pub async fn exit_code(&mut self, within: Duration) -> Option<i32> {
        let deadline = tokio::time::Instant::now() + within;
        while tokio::time::Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("still running after {within:?}:\n{}", self.log());
    }

    /// Ends it without a chance to do anything.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
