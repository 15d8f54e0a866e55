//! How long a connection is waited for. Between two requests a client may be silent for long (a harness sends a sign of
//! life every half minute); a request that has begun must bring its headers soon. hyper has one timer for both, which
//! runs from the end of one request on; it is given a clock here that tells the two apart, and that also tells when a
//! connection has been idle for long enough to be put aside: hyper keeps some 16 KB of buffers for each that it serves.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes};
use hyper::rt::{Read, ReadBufCursor, Sleep, Timer, Write};

/// After how long without a request a connection is put aside.
pub(super) const TIRED_AFTER: Duration = Duration::from_secs(1);

/// What one connection's timer and its stream know together.
#[derive(Debug, Default)]
struct Seen {
    /// How often something came.
    reads: AtomicU64,
    /// Whether a request was waited for before.
    waited: AtomicBool,
    /// Whether nothing has come for long enough.
    is_tired: AtomicBool,
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

    /// The stream of the connection, of which these bytes have come already.
    pub fn watch<T>(&self, stream: T, come: Bytes) -> Watched<T> {
        Watched { stream, come, seen: Arc::clone(&self.seen) }
    }

    /// Whether nothing has come for so long that the connection may be put aside.
    pub fn is_tired(&self) -> bool {
        self.seen.is_tired.load(Ordering::Relaxed)
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
            stage: if fresh { Stage::Headers } else { Stage::Fresh },
            header_timeout: self.header_timeout,
            ends: tokio::time::Instant::now() + patience,
            timer: Box::pin(tokio::time::sleep(if fresh { patience } else { patience.min(TIRED_AFTER) })),
        })
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        self.sleep(deadline.saturating_duration_since(self.now()))
    }
}

/// How far the waiting is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing has come, and the connection is not tired yet.
    Fresh,
    /// Nothing has come for longer.
    Idle,
    /// The headers' time runs.
    Headers,
}

/// Waits for a request. hyper polls it after each look at the stream that did not complete the headers.
struct Wait {
    seen: Arc<Seen>,
    /// How often something had come when it began.
    reads: u64,
    stage: Stage,
    header_timeout: Duration,
    /// When a client that sends nothing has been waited for long enough.
    ends: tokio::time::Instant,
    timer: Pin<Box<tokio::time::Sleep>>,
}

impl Sleep for Wait {}

impl Future for Wait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.stage != Stage::Headers && self.seen.reads.load(Ordering::Relaxed) != self.reads {
            self.stage = Stage::Headers;
            let due = tokio::time::Instant::now() + self.header_timeout;
            self.timer.as_mut().reset(due);
        }
        ready!(self.timer.as_mut().poll(context));
        if self.stage != Stage::Fresh || tokio::time::Instant::now() >= self.ends {
            return Poll::Ready(());
        }
        // All that was written is out: before that, hyper does not wait for a request.
        self.seen.is_tired.store(true, Ordering::Relaxed);
        self.stage = Stage::Idle;
        let ends = self.ends;
        self.timer.as_mut().reset(ends);
        self.timer.as_mut().poll(context)
    }
}

/// A stream that notes when something comes.
#[derive(Debug)]
pub(super) struct Watched<T> {
    stream: T,
    come: Bytes,
    seen: Arc<Seen>,
}

impl<T> Watched<T> {
    /// The stream alone.
    pub fn into_inner(self) -> T {
        self.stream
    }
}

impl<T: Read + Unpin> Read for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        if !self.come.is_empty() {
            let length = self.come.len().min(buffer.remaining());
            buffer.put_slice(&self.come[..length]);
            self.come.advance(length);
            return Poll::Ready(Ok(()));
        }
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
