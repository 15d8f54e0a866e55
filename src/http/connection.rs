//! One connection. While it is idle, hyper's state and its buffers (16 KiB and more) are given back: of ten thousand
//! harnesses that send a sign of life every half minute, a handful call at any moment.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::patience::Patience;
use super::server::ServerSettings;

/// The most bytes that are read before a request's headers are complete; larger ones are refused with 431. It is what
/// each of the connections may hold without having said who calls.
const BUFFER_MAX: usize = 64 * 1024;

/// The two signs of the end.
pub(super) struct Stop {
    /// What is in flight has its answer first.
    pub soft: CancellationToken,
    /// Nothing is waited for any more.
    pub hard: CancellationToken,
}

/// Why hyper has no more to do.
enum Left {
    Ended(Result<(), hyper::Error>),
    Idle,
}

/// Serves one connection until the client or one of the limits ends it. The soft stop lets a
/// request in flight have its answer.
pub(super) async fn serve(mut stream: TcpStream, router: Router, settings: ServerSettings, stop: Stop) {
    let ServerSettings { header_timeout, idle_timeout, .. } = settings;
    let (mut hard, mut soft) = (pin!(stop.hard.cancelled()), pin!(stop.soft.cancelled()));
    let (mut begun, mut silence) = (Bytes::new(), header_timeout);
    loop {
        tokio::select! {
            biased;
            () = soft.as_mut() => return,
            comes = timeout(silence, stream.readable()) => if !matches!(comes, Ok(Ok(()))) { return },
        }
        let patience = Patience::new(header_timeout, idle_timeout);
        let mut builder = http1::Builder::new();
        builder.timer(patience.clone()).header_read_timeout(header_timeout).max_buf_size(BUFFER_MAX);
        let watched = patience.watch(begun, TokioIo::new(stream));
        let service = TowerToHyperService::new(router.clone());
        let mut connection = Box::new(builder.serve_connection(watched, service));
        let mut stopping = false;
        let left = loop {
            tokio::select! {
                biased;
                () = hard.as_mut() => return,
                () = soft.as_mut(), if !stopping => {
                    stopping = true;
                    Pin::new(&mut *connection).graceful_shutdown();
                }
                left = poll_fn(|context| match Pin::new(&mut *connection).poll(context) {
                    Poll::Ready(ended) => Poll::Ready(Left::Ended(ended)),
                    Poll::Pending if patience.is_idle() => Poll::Ready(Left::Idle),
                    Poll::Pending => Poll::Pending,
                }) => break left,
            }
        };
        if let Left::Ended(ended) = left {
            if let Err(fault) = ended {
                tracing::debug!(%fault, "the connection ended early");
            }
            return;
        }
        let parts = connection.into_parts();
        // The beginning of a request may have come together with the last one.
        silence = if parts.read_buf.is_empty() { idle_rest(idle_timeout) } else { header_timeout };
        (begun, stream) = (parts.read_buf, parts.io.into_inner().into_inner());
    }
}

/// What is left of the time that a connection may be idle.
fn idle_rest(idle_timeout: Duration) -> Duration {
    idle_timeout.saturating_sub(super::patience::IDLE_AFTER)
}
