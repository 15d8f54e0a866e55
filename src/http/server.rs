//! The accept loop: a bounded number of connections, limits on the time that headers may take and that a connection may
//! be idle, and an end that lets requests in flight finish.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::patience::{Patience, TIRED_AFTER};
use crate::shutdown::Shutdown;

/// How long the loop waits after the system refused a connection (too many open files, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Settings of the accept loop.
#[derive(Debug, Clone, Copy)]
pub struct ServerSettings {
    /// How long a client may take to send a request's headers.
    pub header_timeout: Duration,
    /// How long a client may be silent between two requests of one connection.
    pub idle_timeout: Duration,
    /// The most connections that are open at once.
    pub max_connections: usize,
}

/// Serves `router` until the shutdown begins, then until every request in flight has its answer or the grace is over.
pub async fn serve(listener: TcpListener, router: Router, settings: ServerSettings, shutdown: Shutdown) {
    let places = Arc::new(Semaphore::new(settings.max_connections));
    let connections = TaskTracker::new();
    loop {
        let (stream, place) = tokio::select! {
            () = shutdown.soft().cancelled() => break,
            accepted = accept(&listener, &places) => accepted,
        };
        let (router, soft, hard) = (router.clone(), shutdown.soft().clone(), shutdown.hard().clone());
        connections.spawn(async move {
            tokio::select! {
                () = hard.cancelled() => {}
                () = keep(stream, router, settings, soft) => {}
            }
            drop(place);
        });
    }
    drop(listener);
    connections.close();
    tokio::select! {
        () = shutdown.hard().cancelled() => {}
        () = connections.wait() => {}
    }
}

/// Serves a connection to its end. While it is idle nothing is kept of it but the stream.
async fn keep(mut stream: TcpStream, router: Router, settings: ServerSettings, soft: CancellationToken) {
    let mut come = Bytes::new();
    loop {
        // Boxed: what is only needed while it is served is gone while it is idle.
        let served = Box::pin(talk(stream, come, router.clone(), settings, &soft)).await;
        (stream, come) = match served {
            Ok(Some(put_aside)) => put_aside,
            Ok(None) => return,
            Err(fault) => {
                tracing::debug!(%fault, "the connection ended early");
                return;
            }
        };
        if !come.is_empty() {
            continue;
        }
        let patience = settings.idle_timeout.saturating_sub(TIRED_AFTER);
        tokio::select! {
            () = soft.cancelled() => return,
            readable = timeout(patience, stream.readable()) => match readable {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return,
            },
        }
    }
}

/// Serves a connection until it ends, or is idle: then the stream comes back, with what has come of the next request.
async fn talk(
    stream: TcpStream,
    come: Bytes,
    router: Router,
    settings: ServerSettings,
    soft: &CancellationToken,
) -> hyper::Result<Option<(TcpStream, Bytes)>> {
    let patience = Patience::new(settings.header_timeout, settings.idle_timeout);
    let stream = patience.watch(TokioIo::new(stream), come);
    let service = TowerToHyperService::new(router);
    let mut connection = http1::Builder::new()
        .timer(patience.clone())
        .header_read_timeout(settings.header_timeout)
        .serve_connection(stream, service_fn(|request| Box::pin(service.call(request))));
    let (mut stopped, mut stop) = (false, pin!(soft.cancelled()));
    let put_aside = poll_fn(|context| {
        if !stopped && stop.as_mut().poll(context).is_ready() {
            stopped = true;
            Pin::new(&mut connection).graceful_shutdown();
        }
        let ended = connection.poll_without_shutdown(context);
        if ended.is_pending() && !stopped && patience.is_tired() {
            // It is idle, so this ends it at once. Should it not, it ends with the next answer.
            stopped = true;
            Pin::new(&mut connection).graceful_shutdown();
            return connection.poll_without_shutdown(context).map_ok(|()| true);
        }
        ended.map_ok(|()| false)
    })
    .await?;
    let parts = connection.into_parts();
    let mut stream = parts.io.into_inner().into_inner();
    if put_aside {
        return Ok(Some((stream, parts.read_buf)));
    }
    // A client that is gone needs no good-bye.
    let _ = stream.shutdown().await;
    Ok(None)
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> (TcpStream, Option<tokio::sync::OwnedSemaphorePermit>) {
    // The semaphore is never closed; without a place nothing is accepted, and clients wait in the system's queue.
    let place = Arc::clone(places).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Answers are small and written whole.
                let _ = stream.set_nodelay(true);
                return (stream, place);
            }
            Err(fault) => {
                tracing::warn!(%fault, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
