//! A log as server-sent events: what is there, then what comes.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use futures::TryFutureExt as _;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::App;
use super::auth::Authenticated;
use super::export::is_preferred;
use super::problem::Problem;
use super::query::Parameters;
use super::views::{EventView, json_text};
use crate::domain::event::Event;
use crate::service::EventPage;
use crate::service::caller::Located;
use crate::service::waiting::Following;

/// The media type.
pub const EVENT_STREAM: &str = "text/event-stream";
/// The most events of one chunk.
pub(super) const CHUNK: u32 = 100;
/// A line that readers pass over.
pub(super) const COMMENT: &[u8] = b":\n\n";

/// Whether the caller asks for a stream.
pub fn is_wanted(headers: &HeaderMap) -> bool {
    is_preferred(headers, EVENT_STREAM)
}

/// The seq behind which a reader goes on that comes again.
pub fn last_event_id(headers: &HeaderMap, parameters: &mut Parameters<'_>) -> Option<i64> {
    let value = headers.get("last-event-id").filter(|value| !value.is_empty())?;
    let seq = value.to_str().ok().and_then(|text| text.trim().parse().ok()).filter(|seq: &i64| *seq >= 0);
    if seq.is_none() {
        parameters.header_fault("Last-Event-ID", "must be the id of an event of this stream");
    }
    seq
}

/// A reader of a log.
struct Reader {
    app: App,
    auth: Authenticated,
    located: Located,
    following: Following,
    expires: Instant,
    beat: Interval,
}

/// Streams the log from where `wanted` says. The first look comes before the answer, so that a refusal has its status
/// and a reader who has all of a closed task's log is told to stay away (204).
pub async fn follow(
    app: App,
    auth: Authenticated,
    located: Located,
    mut wanted: EventPage,
) -> Result<Response, Problem> {
    wanted.limit = wanted.limit.min(CHUNK);
    let mut following = app.service().follow(located, wanted)?;
    let first = app.service().next_events(&mut following).await?;
    if first.is_empty() && following.is_closed() && !following.has_more() {
        return Ok((StatusCode::NO_CONTENT, [(CACHE_CONTROL, "no-store")]).into_response());
    }
    // At once, so that everybody on the way sees that an answer has begun.
    let first = chunk(COMMENT, &first)?;
    let (expires, beat) = (expiry(&app, &auth), beat(&app));
    let reader = Reader { app, auth, located, following, expires, beat };
    Ok(respond(first, reader, async |mut reader: Reader| Ok(reader.next().await?.map(|chunk| (chunk, reader)))))
}

/// When the caller's token ends.
pub(super) fn expiry(app: &App, auth: &Authenticated) -> Instant {
    let left = auth.expires_at().micros().saturating_sub(app.service().clock().now().micros());
    Instant::now() + Duration::from_micros(left.max(0).unsigned_abs())
}

/// When comments are due.
pub(super) fn beat(app: &App) -> Interval {
    let every = app.settings().comment_interval;
    let mut beat = interval_at(Instant::now() + every, every);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beat
}

/// Answers `first`, and then what `next` makes of `reader`, until it makes nothing.
pub(super) fn respond<R, F>(first: Bytes, reader: R, next: impl Fn(R) -> F + Send + 'static) -> Response
where
    R: Send + 'static,
    F: Future<Output = Result<Option<(Bytes, R)>, Problem>> + Send + 'static,
{
    let rest = futures::stream::try_unfold(reader, move |reader| next(reader).map_err(|fault| fault.detail));
    let first = futures::stream::once(async move { Ok(first) });
    let mut response = Body::from_stream(futures::StreamExt::chain(first, rest)).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl Reader {
    /// The next chunk, as soon as there is one; none at the end of a closed task's log, and when the token, the
    /// permission or the process ends. A reader who comes again goes on where it was.
    async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        while self.following.has_more() || !self.following.is_closed() {
            let news = tokio::select! {
                biased;
                () = tokio::time::sleep_until(self.expires) => false,
                _ = self.beat.tick() => {
                    return Ok(self.may_still_read().await.then(|| Bytes::from_static(COMMENT)));
                }
                () = std::future::ready(()), if self.following.has_more() => true,
                news = self.following.news() => news,
            };
            if !news {
                return Ok(None);
            }
            let events = self.app.service().next_events(&mut self.following).await?;
            if !events.is_empty() {
                if !self.may_still_read().await {
                    return Ok(None);
                }
                return chunk(b"", &events).map(Some);
            }
        }
        Ok(None)
    }

    /// A directory that is away takes nothing from anybody.
    async fn may_still_read(&self) -> bool {
        let still = Box::pin(self.auth.still_reads(&self.app, &self.located)).await;
        still.map_or_else(|problem| problem.status.is_server_error(), |()| true)
    }
}

fn chunk(begin: &[u8], events: &[Event]) -> Result<Bytes, Problem> {
    let mut text = begin.to_vec();
    for event in events {
        push_event(&mut text, &event.seq.to_string(), &event.event_type, &json_text(&EventView::from(event))?);
    }
    Ok(text.into())
}

/// One event as fields. JSON has line breaks as white space only, which may stand in a field each.
pub(super) fn push_event(text: &mut Vec<u8>, id: &str, event_type: &str, json: &[u8]) {
    text.extend_from_slice(format!("id: {id}\nevent: {event_type}\n").as_bytes());
    for line in json.split(|byte| matches!(byte, b'\n' | b'\r')) {
        text.extend_from_slice(b"data: ");
        text.extend_from_slice(line);
        text.push(b'\n');
    }
    text.push(b'\n');
}
