//! Artifacts in a bucket: over S3's own protocol, signed, with a server that speaks it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use mandate::config::{Role, Secret, SecretUrl, Settings};
use reqwest::Method;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s::validation::NameValidation;
use s3s_fs::FileSystem;
use serde_json::json;
use tokio::net::TcpListener;

use crate::support::{World, digest_of};

const KEY_ID: &str = "AKIAEXAMPLE";
const KEY: &str = "the-key-of-the-tests";
/// The server makes names of files of the names of objects, so bucket and prefix are short.
const BUCKET: &str = "b";

struct AnyName;

impl NameValidation for AnyName {
    fn validate_bucket_name(&self, _: &str) -> bool {
        true
    }
}

/// A server with one bucket, in a temporary folder, for as long as the test's runtime lives.
struct S3 {
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl S3 {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(BUCKET)).unwrap();
        let mut builder = S3ServiceBuilder::new(FileSystem::new(folder.path()).unwrap());
        builder.set_auth(SimpleAuth::from_single(KEY_ID, KEY));
        builder.set_validation(AnyName);
        let service = builder.build();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(socket), service.clone()));
            }
        });
        Self { address, folder }
    }

    /// Keeps artifacts there, below a prefix.
    fn settle(&self, settings: &mut Settings) {
        settings.workers.roles.retain(|role| *role != Role::Expiry);
        settings.artifacts.store_url = Some(SecretUrl::new(format!("s3://{BUCKET}/p")));
        settings.artifacts.s3_endpoint = Some(format!("http://{}", self.address));
        settings.artifacts.s3_access_key_id = Some(Secret::new(KEY_ID));
        settings.artifacts.s3_secret_access_key = Some(Secret::new(KEY));
    }

    /// The names of the objects.
    fn objects(&self) -> Vec<PathBuf> {
        let bucket = self.folder.path().join(BUCKET);
        let (mut found, mut folders) = (Vec::new(), vec![bucket.clone()]);
        while let Some(next) = folders.pop() {
            for entry in std::fs::read_dir(next).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    found.push(path.strip_prefix(&bucket).unwrap().to_owned());
                }
            }
        }
        found
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn artifacts_live_in_a_bucket_as_in_a_folder() {
    let s3 = S3::start().await;
    let world = World::with(|settings| s3.settle(settings)).await;
    let agent = world.agent().await;
    // In one request, in several, and of nothing.
    let large: Vec<u8> = (0..20_000_000_u32).map(|n| b'a' + (n % 26) as u8).collect();
    for bytes in [b"Hello.".to_vec(), large.clone(), Vec::new()] {
        let (digest, sent) = agent.send_artifact(bytes.clone(), "text/plain").await;
        assert_eq!(sent.expect(201)["size"], bytes.len());
        let read = agent.artifact(&digest).await;
        assert_eq!(read.status, 200);
        assert!(read.text.as_bytes() == bytes);
        agent.send_artifact(bytes, "text/plain").await.1.expect(200);
    }
    let objects = s3.objects();
    assert_eq!(objects.len(), 3);
    let tenant = Path::new("p").join(world.seed.organization_id.simple().to_string());
    assert!(objects.iter().all(|object| object.starts_with(&tenant)), "{objects:?}");
    let range = agent.request(Method::GET, &format!("/artifacts/{}", digest_of(&large)));
    let part = agent.send(range.header("range", "bytes=15000000-15000009")).await;
    assert_eq!((part.status, part.text.as_bytes()), (206, &large[15_000_000..15_000_010]));
    // What is not what it is called is not kept, whether it fits one request or not.
    for bytes in [b"Hello!".to_vec(), large.clone()] {
        let wrong = agent.request(Method::PUT, &format!("/artifacts/{}", digest_of(b"other"))).body(bytes);
        agent.send(wrong).await.refused(422, "digest_mismatch");
    }
    assert_eq!(s3.objects().len(), 3);
    // A large payload goes there too, and stays when all else goes.
    let task = world.task().await;
    let payload = json!({"body": "x".repeat(100_000)});
    agent.append(&task, json!([{"type": "turn", "payload": payload}])).await.expect(201);
    while world.service.sweep_artifacts(Duration::ZERO, 100).await.unwrap().cleared > 0 {}
    assert_eq!(s3.objects().len(), 1);
    let whole = world.person("vera").artifact(&digest_of(payload.to_string().as_bytes())).await;
    assert_eq!(whole.expect(200), &payload);
    world.prove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_refuses_keeps_nothing_out_but_artifacts() {
    let s3 = S3::start().await;
    let world = World::with(|settings| {
        s3.settle(settings);
        settings.artifacts.s3_secret_access_key = Some(Secret::new("another key"));
    })
    .await;
    let agent = world.agent().await;
    let (_, sent) = agent.send_artifact("Hello.", "text/plain").await;
    sent.refused(503, "unavailable");
    let task = world.task().await;
    let before = world.log(&task).await;
    let large = json!([{"type": "turn", "payload": {"body": "x".repeat(100_000)}}]);
    agent.append(&task, large).await.refused(503, "unavailable");
    assert_eq!(world.log(&task).await, before);
    agent.append(&task, json!([{"type": "turn", "payload": {"body": "small"}}])).await.expect(201);
    assert_eq!(s3.objects(), Vec::<PathBuf>::new());
    world.prove().await;
}
