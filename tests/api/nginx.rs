//! A stream through a proxy that buffers by default (case 31).

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{Block, Sse, World, eventually};

/// An nginx in front of a world, whose settings are the defaults.
struct Nginx {
    child: Child,
    base: String,
    _folder: tempfile::TempDir,
}

impl Nginx {
    async fn before(upstream: &str) -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let at = folder.path().display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {at}/{name};\n"))
            .concat();
        let text = format!(
            "daemon off;\nworker_processes 1;\npid {at}/pid;\nerror_log stderr warn;\n\
             events {{ worker_connections 64; }}\n\
             http {{\naccess_log off;\n{temporary}\
             server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {upstream}; }} }}\n}}\n"
        );
        let file = folder.path().join("nginx.conf");
        std::fs::write(&file, text).unwrap();
        let path = format!("{}:/usr/sbin:/usr/local/sbin", std::env::var("PATH").unwrap());
        let child = Command::new("nginx")
            .args(["-e", "stderr", "-p"])
            .arg(folder.path())
            .arg("-c")
            .arg(&file)
            .env("PATH", path)
            .stdout(Stdio::null())
            .spawn();
        let child = child.expect("nginx is installed by tests/run");
        eventually("nginx listens", async || tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()).await;
        Self { child, base: format!("http://127.0.0.1:{port}"), _folder: folder }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // So that the master ends its worker too.
        let _ = kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn a_proxy_that_buffers_holds_nothing_of_a_stream_back() {
    let second = Duration::from_secs(1);
    let world = World::with(|settings| settings.waiting.comment_ms = 1_500).await;
    let nginx = Nginx::before(&world.base).await;
    let (vera, agent) = (world.person("vera").at(&nginx.base), world.agent().await);
    let (task, session) = world.working(&agent).await;
    let head = world.log(&task).await.len().to_string();
    let begun = Instant::now();
    // There is no event to send.
    let mut stream = Sse::open(&vera, &task, "", Some(&head)).await;
    assert!(stream.response.headers()["server"].to_str().unwrap().contains("nginx"));
    assert_eq!(stream.block().await, Some(Block::Comment));
    assert!(begun.elapsed() < second, "the first byte came after {:?}", begun.elapsed());
    for n in 0..3 {
        let begun = Instant::now();
        agent.say(&task, &session, &n.to_string()).await.expect(201);
        assert_eq!(stream.event().await.unwrap().1, "turn");
        assert!(begun.elapsed() < second, "an event came after {:?}", begun.elapsed());
    }
    for _ in 0..2 {
        let begun = Instant::now();
        assert_eq!(stream.block().await, Some(Block::Comment));
        assert!(begun.elapsed() < second * 3, "a comment came after {:?}", begun.elapsed());
    }
    agent.finish(&task).await.expect(200);
    assert!(!stream.rest().await.is_empty());
}
