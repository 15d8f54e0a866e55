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

/// Whether the caller prefers lines, or likes them as well as an array. Who names them not gets an array.
pub fn is_wanted(headers: &HeaderMap) -> bool {
    is_preferred(headers, NDJSON)
}

/// Whether the caller names this media type and likes it no less than JSON.
pub fn is_preferred(headers: &HeaderMap, media_type: &str) -> bool {
    let accept = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let ranges: Vec<(String, f32)> = accept.flat_map(|text| text.split(',')).map(range).collect();
    let quality = |kind: &str| ranges.iter().find(|(range, _)| range == kind).map(|(_, quality)| *quality);
    let array = ["application/json", "application/*", "*/*"].iter().find_map(|kind| quality(kind)).unwrap_or_default();
    quality(media_type).is_some_and(|this| this > 0.0 && this >= array)
}

/// A media range and its quality (RFC 9110, 12.4.2).
fn range(text: &str) -> (String, f32) {
    let mut parts = text.split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
    let quality = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    (kind, quality.and_then(|quality| quality.parse().ok()).unwrap_or(1.0))
}

/// The part of the log that `wanted` names, to its end unless it is `bounded`. The first part is read before the answer
/// begins, so that a refusal has its status; later the connection is cut where the log cannot be read, which no reader
/// takes for its end. Answers where a bounded part goes on, too.
pub async fn lines(
    app: App,
    located: Located,
    mut wanted: EventPage,
    bounded: bool,
) -> Result<(Response, Option<i64>), Problem> {
    if wanted.is_backwards() && !bounded {
        wanted.after_seq = Some(0);
    }
    let first = read(&app, &located, &mut wanted).await?;
    let ends = bounded || first.1.is_none();
    let next = first.1.filter(|_| bounded);
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
    Ok((response, next))
}

/// One part as lines, and `wanted` moved on behind it; the seq to go on from, if there is more.
async fn read(app: &App, located: &Located, wanted: &mut EventPage) -> Result<(Bytes, Option<i64>), Problem> {
    let (events, more) = app.service().events(located, wanted).await?;
    let mut text = Vec::new();
    for event in &events {
        line(located.id, event, &mut text)?;
    }
    let edge = if wanted.is_backwards() { events.first() } else { events.last() };
    let edge = edge.map(|event| event.seq).filter(|_| more);
    if edge.is_some() && !wanted.is_backwards() {
        wanted.after_seq = edge;
    }
    Ok((text.into(), edge))
}

/// An entry with the id of its task, which is part of every digest.
fn line(task: TaskId, event: &Event, text: &mut Vec<u8>) -> Result<(), Problem> {
    let entry = json_text(&EventView::from(event))?;
    text.extend_from_slice(format!("{{\"task_id\":\"{task}\",").as_bytes());
    text.extend_from_slice(entry.get(1..).unwrap_or_default());
    text.push(b'\n');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_for_those_who_prefer_them() {
        for (accept, wanted) in [
            ("application/x-ndjson", true),
            ("Application/X-NDJSON; charset=utf-8", true),
            ("application/x-ndjson, application/json", true),
            ("application/json;q=0.5, application/x-ndjson", true),
            ("application/x-ndjson, */*;q=0.1", true),
            ("", false),
            ("*/*", false),
            ("application/json", false),
            ("application/x-ndjson;q=0", false),
            ("application/x-ndjson;q=0.1, application/json", false),
            ("*/*, application/x-ndjson;q=0.5", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(is_wanted(&headers), wanted, "{accept}");
        }
        assert!(!is_wanted(&HeaderMap::new()));
    }
}
