//! A key server on this machine that counts what it is asked.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::extract::State as Shared;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse as _;
use tokio::sync::Semaphore;

/// What the server answers.
#[derive(Clone)]
pub(super) enum Answer {
    Body(Vec<u8>),
    Status(StatusCode),
    Redirect(String),
    /// Headers, and then a body that never ends.
    Endless,
}

struct Inner {
    answer: Mutex<Answer>,
    asked: AtomicUsize,
    elsewhere: AtomicUsize,
    /// One permit for every request that arrived.
    arrived: Semaphore,
    /// One permit for every answer that may be given.
    gate: Semaphore,
}

/// The server; it ends with the test's runtime.
#[derive(Clone)]
pub(super) struct KeyServer {
    inner: Arc<Inner>,
    pub(super) url: String,
}

impl KeyServer {
    /// A server that answers at once.
    pub(super) async fn start(answer: impl Into<Answer>) -> Self {
        let server = Self::start_gated(answer).await;
        server.open();
        server
    }

    /// A server that answers when it is opened.
    pub(super) async fn start_gated(answer: impl Into<Answer>) -> Self {
        let inner = Arc::new(Inner {
            answer: Mutex::new(answer.into()),
            asked: AtomicUsize::new(0),
            elsewhere: AtomicUsize::new(0),
            arrived: Semaphore::new(0),
            gate: Semaphore::new(0),
        });
        let routes = axum::Router::new()
            .route("/jwks.json", axum::routing::get(answer_keys))
            .route("/elsewhere", axum::routing::get(answer_elsewhere))
            .with_state(Arc::clone(&inner));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/jwks.json", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { inner, url }
    }

    pub(super) fn answer(&self, answer: impl Into<Answer>) {
        *self.inner.answer.lock().unwrap() = answer.into();
    }

    pub(super) fn open(&self) {
        self.inner.gate.add_permits(Semaphore::MAX_PERMITS / 2);
    }

    /// Lets one answer through.
    pub(super) fn open_once(&self) {
        self.inner.gate.add_permits(1);
    }

    /// Waits until a request has arrived.
    pub(super) async fn until_asked(&self) {
        self.inner.arrived.acquire().await.unwrap().forget();
    }

    pub(super) fn asked(&self) -> usize {
        self.inner.asked.load(Ordering::SeqCst)
    }

    pub(super) fn asked_elsewhere(&self) -> usize {
        self.inner.elsewhere.load(Ordering::SeqCst)
    }
}

impl From<serde_json::Value> for Answer {
    fn from(body: serde_json::Value) -> Self {
        Self::Body(body.to_string().into_bytes())
    }
}

async fn answer_keys(Shared(inner): Shared<Arc<Inner>>) -> axum::response::Response {
    inner.asked.fetch_add(1, Ordering::SeqCst);
    inner.arrived.add_permits(1);
    inner.gate.acquire().await.unwrap().forget();
    let answer = inner.answer.lock().unwrap().clone();
    match answer {
        Answer::Body(body) => body.into_response(),
        Answer::Status(status) => status.into_response(),
        Answer::Redirect(to) => (StatusCode::FOUND, [(header::LOCATION, to)]).into_response(),
        Answer::Endless => {
            let chunks = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 64 * 1024]));
            axum::body::Body::from_stream(chunks).into_response()
        }
    }
}

async fn answer_elsewhere(Shared(inner): Shared<Arc<Inner>>) -> axum::response::Response {
    inner.elsewhere.fetch_add(1, Ordering::SeqCst);
    let answer = inner.answer.lock().unwrap().clone();
    match answer {
        Answer::Body(body) => body.into_response(),
        _ => r#"{"keys":[]}"#.into_response(),
    }
}
