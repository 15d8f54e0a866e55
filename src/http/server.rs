//! The accept loop: a bounded number of connections, limits on the time that headers may take and that a connection may
//! be idle, and an end that lets requests in flight finish.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::connection::{self, Stop};
use crate::shutdown::Shutdown;

/// How long the loop waits after the system refused a connection (too many open files, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Settings of the accept loop.
#[derive(Debug, Clone, Copy)]
pub struct ServerSettings {
    /// How long a client may take to send a request's headers.
    pub header_timeout: Duration,
    /// How long a client may be silent between two requests of one connection, or take nothing of an answer.
    pub idle_timeout: Duration,
    /// The most connections that are open at once.
    pub max_connections: usize,
}

/// Serves `router` until the shutdown begins, then until every request in flight has its answer or the grace is over.
pub async fn serve(listener: TcpListener, router: Router, settings: ServerSettings, shutdown: Shutdown) {
    let places = Arc::new(Semaphore::new(settings.max_connections));
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.soft().cancelled() => break,
            accepted = accept(&listener, &places) => accepted,
        };
        let (stream, place) = accepted;
        let stop = Stop { soft: shutdown.soft().clone(), hard: shutdown.hard().clone() };
        let connection = connection::serve(stream, router.clone(), settings, stop);
        connections.spawn(async move {
            connection.await;
            drop(place);
        });
    }
    drop(listener);
    connections.close();
    connections.wait().await;
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
