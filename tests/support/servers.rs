//! Real servers of a test's own, for tests of what happens when they stop, hang or lose their data: a Kafka broker and
//! a ClickHouse server, each in a temporary folder and on ports of its own.
//!
//! `tests/run` says where the programs are. Nothing here needs an async runtime; whoever waits in one may call these
//! functions all the same, because they take some seconds at most.

#![allow(dead_code, reason = "each test uses its part")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::{Deref, DerefMut};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// How long a server may take to start or to stop.
const PATIENCE: Duration = Duration::from_mins(1);
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
const PROBE_PATIENCE: Duration = Duration::from_secs(2);
const STARTS: usize = 3;

/// A Kafka broker of one node. What it can be made to do: [`Server`].
pub struct KafkaServer(Server);

impl KafkaServer {
    /// Starts one that has no topics, and waits until it answers.
    pub fn start() -> Self {
        Self(Server::start(broker_command, broker_answers, "UTC"))
    }

    /// Where it listens: `host:port`.
    pub fn address(&self) -> String {
        self.0.socket().to_string()
    }
}

impl Deref for KafkaServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl DerefMut for KafkaServer {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.0
    }
}

/// A ClickHouse server. What it can be made to do: [`Server`].
pub struct ClickHouseServer(Server);

impl ClickHouseServer {
    /// Starts one that has no tables, and waits until it answers.
    pub fn start() -> Self {
        Self::start_in("UTC")
    }

    /// Starts one in a time zone.
    pub fn start_in(zone: &'static str) -> Self {
        Self(Server::start(clickhouse_command, clickhouse_answers, zone))
    }

    /// The URL of its HTTP interface, with its user, who has no password.
    pub fn url(&self) -> String {
        format!("http://default@{}", self.0.socket())
    }
}

impl Deref for ClickHouseServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl DerefMut for ClickHouseServer {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.0
    }
}

/// What a server is run with.
struct Place {
    folder: tempfile::TempDir,
    port: u16,
    second_port: u16,
    zone: &'static str,
}

impl Place {
    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }
}

/// One process, and how to start it and to tell that it answers.
pub struct Server {
    place: Place,
    command: fn(&Place) -> Command,
    answers: fn(SocketAddr) -> std::io::Result<bool>,
    child: Option<Child>,
}

impl Server {
    fn start(
        command: fn(&Place) -> Command,
        answers: fn(SocketAddr) -> std::io::Result<bool>,
        zone: &'static str,
    ) -> Self {
        let mut failures = String::new();
        for _ in 0..STARTS {
            let (port, second_port) = free_ports();
            let place = Place { folder: tempfile::tempdir().unwrap(), port, second_port, zone };
            let mut server = Self { place, command, answers, child: None };
            // Another program may have taken a port since.
            match server.try_start() {
                Ok(()) => return server,
                Err(failure) => failures.push_str(&failure),
            }
        }
        panic!("a server did not start:{failures}");
    }

    fn socket(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.place.port).into()
    }

    /// Starts it again at the same address with its data, and waits until it answers.
    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "the server runs: stop or kill it first");
        if let Err(failure) = self.try_start() {
            panic!("a server did not start again:{failure}");
        }
    }

    /// Starts it again at the same address without its data, and waits until it answers.
    pub fn start_empty(&mut self) {
        assert!(self.child.is_none(), "the server runs: stop or kill it first");
        std::fs::remove_dir_all(self.place.data()).unwrap();
        self.start_again();
    }

    fn try_start(&mut self) -> Result<(), String> {
        std::fs::create_dir_all(self.place.data()).unwrap();
        let log = File::options().create(true).append(true).open(self.place.log()).unwrap();
        let mut command = (self.command)(&self.place);
        command.env("TZ", self.place.zone).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(spawn(command));
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            // Whoever answers at its port is another one when it has ended.
            if let Some(status) = self.child.as_mut().unwrap().try_wait().unwrap() {
                self.child = None;
                return Err(format!("\nit ended with {status}:\n{}", self.log()));
            }
            if (self.answers)(self.socket()).unwrap_or(false) {
                return Ok(());
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        self.kill();
        Err(format!("\nit did not answer within {PATIENCE:?}:\n{}", self.log()))
    }

    fn log(&self) -> String {
        std::fs::read(self.place.log()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Makes it hang (SIGSTOP): its connections stay, and nothing answers.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
        // The signal only asks: some of its threads run on for a moment.
        let status = waitpid(self.pid(), Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert!(matches!(status, WaitStatus::Stopped(..)), "the server ended: {status:?}");
    }

    /// Lets it go on (SIGCONT). A broker that hung for longer than its session, 3 s, leads no partition for a moment
    /// more, as one that starts again: clients get errors that pass.
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Its process.
    pub fn pid(&self) -> Pid {
        let child = self.child.as_ref().expect("the server runs");
        Pid::from_raw(i32::try_from(child.id()).unwrap())
    }

    /// Asks it to end (SIGTERM), and waits until it has.
    pub fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.as_mut().unwrap().try_wait().unwrap() {
                self.child = None;
                assert!(asked_to_end(status), "the server ended with {status}:\n{}", self.log());
                return;
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        self.kill();
        panic!("the server did not end within {PATIENCE:?}:\n{}", self.log());
    }

    /// Ends it at once (SIGKILL).
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Java ends with 128 and the signal's number once it has shut down.
fn asked_to_end(status: ExitStatus) -> bool {
    let sigterm = Signal::SIGTERM as i32;
    status.success() || status.code() == Some(128 + sigterm) || status.signal() == Some(sigterm)
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is set by tests/run"))
}

fn broker_command(place: &Place) -> Command {
    let mut command = tied(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/services/kafka/broker")));
    command
        .arg(place.data())
        .args([place.port.to_string(), place.second_port.to_string()])
        .env("MANDATE_TEST_KAFKA_LIBS", variable("MANDATE_TEST_KAFKA_LIBS"));
    command
}

fn clickhouse_command(place: &Place) -> Command {
    let mut command = tied(Path::new(&variable("MANDATE_TEST_CLICKHOUSE_SERVER")));
    command.arg(variable("MANDATE_TEST_CLICKHOUSE_LIB")).arg(place.data()).arg(place.port.to_string());
    command
}

/// A command that ends with this process, even when that is killed, where `setpriv` can see to it.
fn tied(program: &Path) -> Command {
    static TIES: OnceLock<bool> = OnceLock::new();
    let mut probe = Command::new("setpriv");
    probe.args(["--pdeathsig", "KILL", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !TIES.get_or_init(|| probe.status().is_ok_and(|status| status.success())) {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

/// Spawns from a thread that lives as long as this process: the tie is to the thread that spawns, and the one of a
/// test may end while the server is still needed.
fn spawn(command: Command) -> Child {
    type Order = (Command, Sender<std::io::Result<Child>>);
    static SPAWNER: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, taken) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in taken {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(orders)
    });
    let (answer, child) = channel();
    spawner.lock().unwrap().send((command, answer)).unwrap();
    child.recv().unwrap().unwrap()
}

/// Two ports below the range from which systems take ports for clients, so that nobody gets one by chance while a
/// server that is to start again is down.
fn free_ports() -> (u16, u16) {
    let mut listeners = Vec::new();
    for _ in 0..1_000 {
        let mut random = [0; 2];
        File::open("/dev/urandom").unwrap().read_exact(&mut random).unwrap();
        let port = 10_000 + u16::from_ne_bytes(random) % 10_000;
        listeners.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
        if let [one, other] = listeners.as_slice() {
            return (one.local_addr().unwrap().port(), other.local_addr().unwrap().port());
        }
    }
    panic!("found no free ports");
}

fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PROBE_PATIENCE)?;
    stream.set_read_timeout(Some(PROBE_PATIENCE))?;
    stream.set_write_timeout(Some(PROBE_PATIENCE))?;
    Ok(stream)
}

/// Asks for the versions of the protocol (`ApiVersions`, version 0) and reads the head of the answer.
fn broker_answers(address: SocketAddr) -> std::io::Result<bool> {
    let mut stream = connect(address)?;
    stream.write_all(b"\0\0\0\x0a\0\x12\0\0\0\0\0\x01\xff\xff")?;
    let mut head = [0; 10];
    stream.read_exact(&mut head)?;
    Ok(head[4..] == *b"\0\0\0\x01\0\0")
}

fn clickhouse_answers(address: SocketAddr) -> std::io::Result<bool> {
    let mut stream = connect(address)?;
    stream.write_all(b"GET /ping HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.starts_with("HTTP/1.0 200 ") || answer.starts_with("HTTP/1.1 200 "))
}
