//! Artifacts: bytes by their digest.

use std::ops::Range;
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_RANGE, RANGE, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_range_header::{EndPosition, StartPosition, parse_range_header};
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::auth::Authenticated;
use super::conditional::Tag;
use super::problem::Problem;
use super::respond::{Answer, json};
use crate::domain::artifact::media_type;
use crate::domain::digest::Digest;
use crate::domain::refusal::{Fault, Refusal};
use crate::service::artifacts::StoredArtifact;

/// An artifact of the store.
#[derive(Debug, Serialize, ToSchema)]
pub struct StoredArtifactView {
    /// `sha256:` and 64 lower-case hexadecimal digits.
    digest: String,
    /// Its size in bytes.
    size: u64,
    /// Its media type, as whoever sent it first named it.
    media_type: String,
    /// When it came.
    #[schema(format = DateTime)]
    created_at: String,
}

impl From<&StoredArtifact> for StoredArtifactView {
    fn from(artifact: &StoredArtifact) -> Self {
        Self {
            digest: artifact.digest.to_string(),
            size: artifact.size,
            media_type: artifact.media_type.clone(),
            created_at: artifact.created_at.to_string(),
        }
    }
}

/// How much longer than others the request may take, because it sends an artifact.
pub fn allowance(app: &App, request: &Request) -> Duration {
    let sends = request.method() == Method::PUT && request.uri().path().contains("/artifacts/");
    if sends { app.settings().upload_timeout } else { Duration::ZERO }
}

/// Send an artifact.
///
/// By the accounts of agents, and by people who may create tasks. The body is the bytes themselves; their digest is
/// verified while they come, and nothing is kept when it is another one. The same artifact again is fine.
///
/// Until a task's log refers to it only who sent it may read it, and it is removed a day (or what is set) after it was
/// last sent. A log refers to what a request names in `artifacts` or `artifact_digests`, an outcome in
/// `result.artifacts`, and an event in `artifact`.
#[utoipa::path(put, path = "/organizations/{org}/artifacts/{digest}", operation_id = "send_artifact", tag = "artifacts",
    params(("org" = String, Path, description = "The organization's slug"),
        ("digest" = String, Path, description = "`sha256:` and 64 lower-case hexadecimal digits")),
    request_body(content = String, content_type = "application/octet-stream",
        description = "The bytes; the Content-Type is kept, with a charset at most"),
    responses((status = 201, description = "It is kept", body = StoredArtifactView),
        (status = 200, description = "It was there already", body = StoredArtifactView)))]
pub async fn send(State(app): State<App>, auth: Authenticated, request: Request) -> Answer {
    auth.caller.may_send_artifacts()?;
    let digest = Digest::parse(auth.param("digest"));
    let digest = digest.ok_or_else(|| {
        Refusal::Invalid(vec![Fault::path("digest", "must be sha256: and 64 lower-case hexadecimal digits")])
    })?;
    let (parts, body) = request.into_parts();
    // The digest would be of something else than what is read again.
    if parts.headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        let detail = "an artifact is sent without Content-Encoding";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail));
    }
    let media_type = media_type(text(&parts.headers, &CONTENT_TYPE));
    let declared = body.size_hint().lower();
    let sent =
        app.service().send_artifact(&auth.caller, digest, &media_type, declared, body.into_data_stream()).await?;
    let status = if sent.repeated { StatusCode::OK } else { StatusCode::CREATED };
    json(status, &StoredArtifactView::from(&sent.artifact))
}

/// Read an artifact.
///
/// For whoever may read a task whose log refers to it, and for who sent it. For all others it is not there.
/// One range of bytes can be asked for; several are answered with the whole.
#[utoipa::path(get, path = "/organizations/{org}/artifacts/{digest}", operation_id = "read_artifact", tag = "artifacts",
    params(("org" = String, Path, description = "The organization's slug"),
        ("digest" = String, Path, description = "`sha256:` and 64 lower-case hexadecimal digits"),
        ("Range" = Option<String>, Header, description = "`bytes=0-499`, `bytes=500-` or `bytes=-500`")),
    responses((status = 200, description = "The bytes, in the media type that they came with",
            content_type = "*/*", body = String),
        (status = 206, description = "The range of them that was asked for", content_type = "*/*", body = String),
        (status = 304, description = "It is what If-None-Match names")))]
pub async fn read(State(app): State<App>, auth: Authenticated, method: Method, headers: HeaderMap) -> Answer {
    let artifact = app.service().artifact(&auth.caller, auth.param("digest")).await?;
    let etag = format!("\"{}\"", artifact.digest);
    if Tag::of_content(artifact.digest).is_known(&headers) {
        return described(StatusCode::NOT_MODIFIED.into_response(), &artifact, &etag);
    }
    let whole = 0..artifact.size;
    let conditional = text(&headers, &IF_RANGE);
    let asked = if conditional.is_empty() || conditional == etag { text(&headers, &RANGE) } else { "" };
    let (status, range) = match range(asked, artifact.size) {
        Asked::Whole => (StatusCode::OK, whole),
        Asked::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
        Asked::Unsatisfiable => return unsatisfiable(artifact.size),
    };
    let body = if method == Method::HEAD {
        Body::empty()
    } else {
        Body::from_stream(app.service().artifact_bytes(auth.caller.organization, &artifact, range.clone()).await?)
    };
    let mut response = described(body.into_response(), &artifact, &etag)?;
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, HeaderValue::from(range.end - range.start));
    if status == StatusCode::PARTIAL_CONTENT {
        let part = format!("bytes {}-{}/{}", range.start, range.end.saturating_sub(1), artifact.size);
        headers.insert(CONTENT_RANGE, value(&part)?);
    }
    Ok(response)
}

/// A header's text; empty when there is none.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn value(text: &str) -> Result<HeaderValue, Problem> {
    HeaderValue::from_str(text).map_err(|_| Problem::internal("a header that is none"))
}

/// Bytes of strangers are for saving, never for showing: no browser may take them for a page of this server.
fn described(mut response: Response, artifact: &StoredArtifact, etag: &str) -> Answer {
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, value(&artifact.media_type)?);
    headers.insert(ETAG, value(etag)?);
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; sandbox"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private"));
    Ok(response)
}

fn unsatisfiable(size: u64) -> Answer {
    let detail = format!("the artifact has {size} bytes");
    let problem = Problem::new(StatusCode::RANGE_NOT_SATISFIABLE, "range_not_satisfiable", detail).with("size", size);
    let mut response = problem.into_response();
    response.headers_mut().insert(CONTENT_RANGE, value(&format!("bytes */{size}"))?);
    Ok(response)
}

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Whole,
    Part(Range<u64>),
    Unsatisfiable,
}

/// What a `Range` header asks for. One that is not understood, or names several ranges, is as good as none (RFC 9110).
fn range(header: &str, size: u64) -> Asked {
    let Ok(parsed) = parse_range_header(header) else { return Asked::Whole };
    let [range] = parsed.ranges.as_slice() else { return Asked::Whole };
    let start = match range.start {
        StartPosition::Index(start) => start,
        StartPosition::FromLast(length) => size.saturating_sub(length),
    };
    let end = match range.end {
        EndPosition::Index(last) if last < start => return Asked::Whole,
        EndPosition::Index(last) => last.saturating_add(1).min(size),
        EndPosition::LastByte => size,
    };
    if start < end { Asked::Part(start..end) } else { Asked::Unsatisfiable }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_range_is_read_and_all_else_is_the_whole() {
        let cases = [
            ("bytes=0-0", Asked::Part(0..1)),
            ("bytes=2-4", Asked::Part(2..5)),
            ("bytes=2-", Asked::Part(2..10)),
            ("bytes=-3", Asked::Part(7..10)),
            ("bytes=-30", Asked::Part(0..10)),
            ("bytes=9-18446744073709551615", Asked::Part(9..10)),
            ("bytes=10-", Asked::Unsatisfiable),
            ("bytes=12-14", Asked::Unsatisfiable),
            ("", Asked::Whole),
            ("bytes=4-2", Asked::Whole),
            ("bytes=-0", Asked::Whole),
            ("bytes=0-1,4-5", Asked::Whole),
            ("bytes=x-y", Asked::Whole),
            ("bytes=", Asked::Whole),
            ("lines=0-1", Asked::Whole),
        ];
        for (header, asked) in cases {
            assert_eq!(range(header, 10), asked, "{header}");
        }
        for header in ["bytes=0-", "bytes=0-5", "bytes=-5"] {
            assert_eq!(range(header, 0), Asked::Unsatisfiable, "{header} of nothing");
        }
    }

    proptest! {
        #[test]
        fn a_range_lies_within_the_artifact(
            header in prop_oneof!["bytes=[0-9]{0,3}-[0-9]{0,21}(,[0-9]{0,2}-[0-9]{0,2})?", any::<String>()],
            size in prop_oneof![0..200_u64, any::<u64>()],
        ) {
            match range(&header, size) {
                Asked::Whole => {}
                Asked::Part(part) => {
                    prop_assert!(part.start < part.end && part.end <= size, "{:?}", part);
                    // Asked for in its own words it is the same.
                    prop_assert_eq!(range(&format!("bytes={}-{}", part.start, part.end - 1), size), Asked::Part(part));
                }
                Asked::Unsatisfiable => prop_assert!(header.starts_with("bytes="), "{}", header),
            }
        }

        #[test]
        fn a_range_is_what_it_says(first in 0..300_u64, length in 1..300_u64, size in 0..300_u64) {
            let last = first + length - 1;
            let expected = if first < size { Asked::Part(first..size.min(last + 1)) } else { Asked::Unsatisfiable };
            prop_assert_eq!(range(&format!("bytes={first}-{last}"), size), expected);
            let end = Asked::Part(size.saturating_sub(length)..size);
            let expected = if size == 0 { Asked::Unsatisfiable } else { end };
            prop_assert_eq!(range(&format!("bytes=-{length}"), size), expected);
        }
    }
}
