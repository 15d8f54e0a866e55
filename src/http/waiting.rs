//! How long a read asks to wait.

use std::time::Duration;

use http::{HeaderMap, Method, Request};

use super::query::Query;

/// The longest wait, in seconds.
pub const WAIT_MAX: u64 = 55;

/// What a caller asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// In seconds.
    pub seconds: u64,
    /// Whether it is a preference (RFC 7240), which the answer says was honoured.
    pub preferred: bool,
}

/// The `wait` of the query, which must be right, else that of a `Prefer` header, which is bounded; or what is wrong.
pub fn asked(query: &Query, headers: &HeaderMap) -> Result<Option<Wait>, String> {
    let Some(text) = query.values("wait").next() else { return Ok(preferred(headers)) };
    let seconds = text.parse().ok().filter(|seconds| (1..=WAIT_MAX).contains(seconds));
    let seconds = seconds.ok_or_else(|| format!("must be a whole number of seconds from 1 to {WAIT_MAX}"))?;
    Ok(Some(Wait { seconds, preferred: false }))
}

fn preferred(headers: &HeaderMap) -> Option<Wait> {
    let lines = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let mut preferences = lines.flat_map(|line| line.split(','));
    let wait = preferences.find_map(|preference| {
        let (name, value) = preference.split(';').next()?.split_once('=')?;
        name.trim().eq_ignore_ascii_case("wait").then(|| value.trim().trim_matches('"').to_owned())
    })?;
    let seconds = wait.parse::<u64>().ok().filter(|seconds| *seconds > 0)?.min(WAIT_MAX);
    Some(Wait { seconds, preferred: true })
}

/// How much longer than others the request may take, because it asks to wait.
pub fn allowance<B>(request: &Request<B>) -> Duration {
    let path = request.uri().path();
    if request.method() != Method::GET || !(path.ends_with("/events") || path.ends_with("/agent-events")) {
        return Duration::ZERO;
    }
    let wait = asked(&Query::of(request.uri()), request.headers()).ok().flatten();
    Duration::from_secs(wait.map_or(0, |wait| wait.seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str, prefer: &[&str]) -> Request<()> {
        let mut request = Request::get(path);
        for line in prefer {
            request = request.header("prefer", *line);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn a_preference_is_read_leniently() {
        for (lines, seconds) in [
            (vec!["wait=20"], Some(20)),
            (vec!["respond-async, WAIT = \"7\" ; x=y"], Some(7)),
            (vec!["return=minimal", "wait=3", "wait=9"], Some(3)),
            (vec!["wait=900"], Some(55)),
            (vec!["wait=0"], None),
            (vec!["wait=soon"], None),
            (vec!["wait"], None),
            (vec![], None),
        ] {
            let request = of("/x/events", &lines);
            let asked = asked(&Query::of(request.uri()), request.headers()).unwrap();
            assert_eq!(asked, seconds.map(|seconds| Wait { seconds, preferred: true }), "{lines:?}");
        }
    }

    #[test]
    fn only_a_wait_that_is_granted_gives_more_time() {
        for (path, seconds) in [
            ("/x/events?wait=20", 20),
            ("/x/agent-events?wait=20", 20),
            ("/x/events?wait=&wait=55", 55),
            ("/x/events?wait=56", 0),
            ("/x/events", 0),
            ("/x/requests?wait=20", 0),
        ] {
            assert_eq!(allowance(&of(path, &[])), Duration::from_secs(seconds), "{path}");
        }
        assert_eq!(allowance(&of("/x/events", &["wait=5"])), Duration::from_secs(5));
        assert_eq!(allowance(&of("/x/events?wait=9", &["wait=5"])), Duration::from_secs(9));
    }
}
