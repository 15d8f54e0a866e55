//! How long a connection is waited for. Between two requests a client may be silent for long (a harness sends a sign of
//! life every half minute); a request that has begun must bring its headers soon. hyper has one timer for both, which
//! runs from the end of one request on; it is given a clock here that tells the two apart.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt::{Read, ReadBufCursor, Sleep, Timer, Write};

/// What one connection's timer and its stream know together.
#[derive(Debug, Default)]
struct Seen {
    /// How often something came.
    reads: AtomicU64,
    /// Whether a request was waited for before.
    waited: AtomicBool,
}

/// The timer of one connection.
#[derive(Debug, Clone)]
pub(super) struct Patience {
    seen: Arc<Seen>,
    header_timeout: Duration,
    idle_timeout: Duration,
}

impl Patience {
    /// One for a fresh connection, whose first request must come as soon as any other's headers.
    pub fn new(header_timeout: Duration, idle_timeout: Duration) -> Self {
        Self { seen: Arc::default(), header_timeout, idle_timeout }
    }

    /// The stream of the connection.
    pub fn watch<T>(&self, stream: T) -> Watched<T> {
        Watched { stream, seen: Arc::clone(&self.seen) }
    }
}

impl Timer for Patience {
    /// hyper asks for nothing else than when the next request's headers are due.
    fn sleep(&self, _: Duration) -> Pin<Box<dyn Sleep>> {
        let fresh = !self.seen.waited.swap(true, Ordering::Relaxed);
        let patience = if fresh { self.header_timeout } else { self.idle_timeout };
        Box::pin(Wait {
            seen: Arc::clone(&self.seen),
            reads: self.seen.reads.load(Ordering::Relaxed),
            begun: fresh,
            header_timeout: self.header_timeout,
            timer: Box::pin(tokio::time::sleep(patience)),
        })
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        self.sleep(deadline.saturating_duration_since(self.now()))
    }
}

/// Waits for a request. hyper polls it after each look at the stream that did not complete the headers.
struct Wait {
    seen: Arc<Seen>,
    /// How often something had come when it began.
    reads: u64,
    /// Whether the headers' time runs.
    begun: bool,
    header_timeout: Duration,
    timer: Pin<Box<tokio::time::Sleep>>,
}

impl Sleep for Wait {}

impl Future for Wait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if !self.begun && self.seen.reads.load(Ordering::Relaxed) != self.reads {
            self.begun = true;
            let due = tokio::time::Instant::now() + self.header_timeout;
            self.timer.as_mut().reset(due);
        }
        self.timer.as_mut().poll(context)
    }
}

/// A stream that notes when something comes.
#[derive(Debug)]
pub(super) struct Watched<T> {
    stream: T,
    seen: Arc<Seen>,
}

impl<T: Read + Unpin> Read for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.seen.reads.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<T: Write + Unpin> Write for Watched<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }
}
