//! A log as lines of JSON, whole, for keeping and for `mandate verify`.

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};

use super::App;
use super::problem::Problem;
use super::views::{EventView, json_text};
use crate::domain::event::Event;
use crate::domain::ids::TaskId;
use crate::service::EventPage;
use crate::service::caller::Located;

/// The media type.
pub const NDJSON: &str = "application/x-ndjson";

/// Whether the caller asks for lines.
pub fn is_wanted(headers: &HeaderMap) -> bool {
    accepts(headers, NDJSON)
}

/// Whether the caller names this media type among those that it accepts.
pub fn accepts(headers: &HeaderMap, media_type: &str) -> bool {
    headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).any(|accept| {
        accept
            .split(',')
            .any(|kind| kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(media_type)))
    })
}

/// The part of the log that `wanted` names, to its end unless it is `bounded`. The first part is read before the answer
/// begins, so that a refusal has its status; later the connection is cut where the log cannot be read, which no reader
/// takes for its end.
pub async fn lines(app: App, located: Located, mut wanted: EventPage, bounded: bool) -> Result<Response, Problem> {
    if wanted.is_backwards() {
        wanted.after_seq = Some(0);
    }
    let first = read(&app, &located, &mut wanted).await?;
    let ends = bounded || first.1.is_none();
    let rest = futures::stream::try_unfold((!ends).then_some(wanted), move |wanted| {
        let app = app.clone();
        async move {
            let Some(mut wanted) = wanted else { return Ok(None) };
            let (text, next) = read(&app, &located, &mut wanted).await.map_err(|fault| fault.detail)?;
            Ok::<_, String>(Some((text, next.map(|_| wanted))))
        }
    });
    let first = futures::stream::once(async move { Ok(first.0) });
    let mut response = Body::from_stream(futures::StreamExt::chain(first, rest)).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(NDJSON));
    Ok(response)
}

/// One part as lines, and `wanted` moved on behind it; the seq to go on from, if there is more.
async fn read(app: &App, located: &Located, wanted: &mut EventPage) -> Result<(Bytes, Option<i64>), Problem> {
    let (events, more) = app.service().events(located, wanted).await?;
    let mut text = Vec::new();
    for event in &events {
        line(located.id, event, &mut text)?;
    }
    let last = events.last().map(|event| event.seq).filter(|_| more);
    if last.is_some() {
        wanted.after_seq = last;
    }
    Ok((text.into(), last))
}

/// An entry with the id of its task, which is part of every digest.
fn line(task: TaskId, event: &Event, text: &mut Vec<u8>) -> Result<(), Problem> {
    let entry = json_text(&EventView::from(event))?;
    text.extend_from_slice(format!("{{\"task_id\":\"{task}\",").as_bytes());
    text.extend_from_slice(entry.get(1..).unwrap_or_default());
    text.push(b'\n');
    Ok(())
}
