//! How long a connection is waited for. Between two requests a client may be silent for long (a harness sends a sign of
//! life every half minute); a request that has begun must bring its headers soon. hyper has one timer for both, which
//! runs from the end of one request on; it is given a clock here that tells the two apart.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::rt::{Read, ReadBufCursor, Sleep, Timer, Write};

/// What one connection's timer and its stream know together.
#[derive(Debug, Default)]
struct Seen {
    /// How often something came.
    reads: AtomicU64,
    /// Whether a request was waited for before.
    waited: AtomicBool,
    /// Whether the client has not yet taken all of an answer.
    blocked: AtomicBool,
    /// Whether a request is waited for of which nothing has come for [`IDLE_AFTER`].
    idle: AtomicBool,
}

/// How long a client is silent between two requests before its connection counts as idle. It is short, because many
/// clients that come at once would each hold their buffers for so long.
pub(super) const IDLE_AFTER: Duration = Duration::from_millis(100);

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

    /// The stream of the connection, of which `begun` was read before.
    pub fn watch<T>(&self, begun: Bytes, stream: T) -> Watched<T> {
        Watched { begun, stream, seen: Arc::clone(&self.seen), patience: self.idle_timeout, stalled: None }
    }

    /// Whether the connection waits for a request of which nothing has come for a while, and every answer is taken.
    pub fn is_idle(&self) -> bool {
        self.seen.idle.load(Ordering::Relaxed) && !self.seen.blocked.load(Ordering::Relaxed)
    }
}

impl Timer for Patience {
    /// hyper asks for nothing else than when the next request's headers are due.
    fn sleep(&self, _: Duration) -> Pin<Box<dyn Sleep>> {
        let fresh = !self.seen.waited.swap(true, Ordering::Relaxed);
        let (patience, rest) = if fresh {
            (self.header_timeout, Duration::ZERO)
        } else {
            let soon = IDLE_AFTER.min(self.idle_timeout);
            (soon, self.idle_timeout.saturating_sub(soon))
        };
        Box::pin(Wait {
            seen: Arc::clone(&self.seen),
            reads: self.seen.reads.load(Ordering::Relaxed),
            begun: fresh,
            header_timeout: self.header_timeout,
            rest,
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
    /// How long the client may be silent once the connection is idle.
    rest: Duration,
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
        ready!(self.timer.as_mut().poll(context));
        if self.begun || self.rest.is_zero() {
            return Poll::Ready(());
        }
        let due = tokio::time::Instant::now() + std::mem::take(&mut self.rest);
        self.timer.as_mut().reset(due);
        self.seen.idle.store(true, Ordering::Relaxed);
        self.timer.as_mut().poll(context)
    }
}

/// A stream that notes when something comes and when nothing more can be sent, and fails when the client takes nothing
/// for too long: hyper would wait for it without end, with all that the answer holds.
#[derive(Debug)]
pub(super) struct Watched<T> {
    begun: Bytes,
    stream: T,
    seen: Arc<Seen>,
    /// How long nothing may be taken.
    patience: Duration,
    /// Runs while nothing is taken.
    stalled: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl<T> Watched<T> {
    /// The stream itself.
    pub fn into_inner(self) -> T {
        self.stream
    }

    fn sent<R>(&mut self, context: &mut Context<'_>, sent: Poll<std::io::Result<R>>) -> Poll<std::io::Result<R>> {
        self.seen.blocked.store(sent.is_pending(), Ordering::Relaxed);
        if sent.is_ready() {
            self.stalled = None;
            return sent;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(std::io::ErrorKind::TimedOut.into()))
    }
}

impl<T: Read + Unpin> Read for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.begun.is_empty() {
            ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        } else {
            let length = self.begun.len().min(buffer.remaining());
            buffer.put_slice(&self.begun.split_to(length));
        }
        self.seen.reads.fetch_add(1, Ordering::Relaxed);
        self.seen.idle.store(false, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<T: Write + Unpin> Write for Watched<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.sent(context, sent)
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
        let sent = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.sent(context, sent)
    }
}
