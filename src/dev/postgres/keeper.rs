//! The thread that starts child processes and lives as long as they do.
//!
//! Linux ties a parent-death signal to the *thread* that started the child, and a thread of an async runtime may end
//! at any time. So one thread starts each child and then does nothing but wait for it.
//!
//! Where `setpriv` cannot ask for that signal (macOS, Alpine), a shell stands watch: its standard input is a pipe whose
//! other end only this process holds, so it reads the end of the pipe when this process is gone, however it went, and
//! then sends the child SIGQUIT itself.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::{oneshot, watch};

/// What stands watch: ends in peace when it is told so, else ends the child.
const WATCHDOG: &str = r#"read -r done || kill -QUIT "$1" 2>/dev/null"#;

struct Order {
    command: Command,
    watched: bool,
    started: oneshot::Sender<io::Result<i32>>,
    ended: watch::Sender<Option<ExitStatus>>,
}

/// Starts children, one after the other, from one thread.
#[derive(Debug)]
pub(super) struct Keeper {
    orders: mpsc::Sender<Order>,
    watchdog: bool,
}

/// A child that was started.
#[derive(Debug)]
pub(super) struct Kept {
    pid: i32,
    ended: watch::Receiver<Option<ExitStatus>>,
}

impl Keeper {
    /// Starts the thread. `watchdog` asks for the shell even where `setpriv` would do.
    pub fn start(watchdog: bool) -> io::Result<Self> {
        let (orders, received) = mpsc::channel();
        std::thread::Builder::new().name("postgres-keeper".to_owned()).spawn(move || keep(&received))?;
        Ok(Self { orders, watchdog: watchdog || !setpriv_can_tie() })
    }

    /// A command that runs `program` as a child which ends, by SIGQUIT, when this process does.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = if self.watchdog {
            Command::new(program)
        } else {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "QUIT", "--"]).arg(program);
            command
        };
        // A group of its own: a ^C at the terminal is for the parent, which stops its child when it is ready to.
        command.process_group(0).stdin(Stdio::null());
        command
    }

    /// Starts `command`, after the one before it has ended.
    pub async fn run(&self, command: Command) -> io::Result<Kept> {
        let (started, start) = oneshot::channel();
        let (ended, end) = watch::channel(None);
        let gone = || io::Error::other("the thread that starts PostgreSQL is gone");
        let order = Order { command, watched: self.watchdog, started, ended };
        self.orders.send(order).map_err(|_| gone())?;
        let pid = start.await.map_err(|_| gone())??;
        Ok(Kept { pid, ended: end })
    }
}

impl Kept {
    /// The child's process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether the child has ended.
    pub fn has_ended(&self) -> bool {
        self.ended.borrow().is_some() || self.ended.has_changed().is_err()
    }

    /// Waits until the child has ended; `None` when how is not known.
    pub async fn ended(&self) -> Option<ExitStatus> {
        self.ended.clone().wait_for(Option::is_some).await.ok().and_then(|status| *status)
    }

    /// Sends the child `signal`, unless it has ended.
    pub fn signal(&self, signal: Signal) {
        if !self.has_ended() {
            // It may end in this very moment, which is what every signal here is for.
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
    }
}

fn keep(orders: &mpsc::Receiver<Order>) {
    while let Ok(mut order) = orders.recv() {
        match order.command.spawn() {
            Ok(mut child) => {
                let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
                let watchdog = if order.watched { watch_over(pid).ok() } else { None };
                // Nobody may be listening any more; the child is waited for all the same.
                let _ = order.started.send(Ok(pid));
                let status = child.wait().ok();
                if let Some(watchdog) = watchdog {
                    dismiss(watchdog);
                }
                order.ended.send_replace(status);
            }
            Err(error) => drop(order.started.send(Err(error))),
        }
    }
}

fn watch_over(pid: i32) -> io::Result<Child> {
    let mut command = Command::new("sh");
    command.args(["-c", WATCHDOG, "mandate-watchdog", &pid.to_string()]);
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

fn dismiss(mut watchdog: Child) {
    if let Some(mut stdin) = watchdog.stdin.take() {
        // When it is gone already there is nobody to tell.
        let _ = stdin.write_all(b"done\n");
    }
    let _ = watchdog.wait();
}

/// Whether this system's `setpriv` can ask for a parent-death signal.
fn setpriv_can_tie() -> bool {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "QUIT", "--", "true"]);
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
