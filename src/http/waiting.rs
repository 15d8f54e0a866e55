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

/// The `wait` of the query, which must be right, else that of a `Prefer` header, which is bounded; or what is wrong. 0
/// asks for none, in either.
pub fn asked(query: &Query, headers: &HeaderMap) -> Result<Option<Wait>, String> {
    let Some(text) = query.values("wait").next() else { return Ok(preferred(headers)) };
    let seconds = text.parse().ok().filter(|seconds| *seconds <= WAIT_MAX);
    let seconds = seconds.ok_or_else(|| format!("must be a whole number of seconds, up to {WAIT_MAX}"))?;
    Ok((seconds > 0).then_some(Wait { seconds, preferred: false }))
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
    use proptest::prelude::*;

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
            ("/x/events?wait=0", 0),
            ("/x/events", 0),
            ("/x/requests?wait=20", 0),
        ] {
            assert_eq!(allowance(&of(path, &[])), Duration::from_secs(seconds), "{path}");
        }
        assert_eq!(allowance(&of("/x/events", &["wait=5"])), Duration::from_secs(5));
        assert_eq!(allowance(&of("/x/events?wait=9", &["wait=5"])), Duration::from_secs(9));
    }

    proptest! {
        #[test]
        fn a_wait_is_bounded_whatever_asks_for_it(
            wait in prop_oneof!["[0-9]{1,22}", "[+-]?[0-9]{1,2}", "[a-z0-9.]{0,4}"],
            prefer in prop_oneof!["(wait ?= ?\"?[0-9]{0,22}\"?|[a-z=;, 0-9]{0,20})(, ?wait=[0-9]{1,3})?", any::<String>()]
        ) {
            let query = Query::of(&format!("/x/events?wait={}", wait.replace('+', "%2B")).parse().unwrap());
            match asked(&query, &HeaderMap::new()) {
                Ok(Some(Wait { seconds, preferred: false })) => {
                    prop_assert!((1..=WAIT_MAX).contains(&seconds));
                    prop_assert_eq!(wait.trim_start_matches(['+', '0']), seconds.to_string());
                }
                Ok(other) => {
                    let none = wait.trim_start_matches('+').chars().all(|digit| digit == '0');
                    prop_assert!(other.is_none() && none, "{:?}", other);
                }
                Err(detail) => prop_assert!(detail.contains("up to 55")),
            }
            let Ok(value) = http::HeaderValue::from_bytes(prefer.as_bytes()) else { return Ok(()) };
            let headers = HeaderMap::from_iter([(http::HeaderName::from_static("prefer"), value)]);
            let preferred = asked(&Query::of(&http::Uri::from_static("/x/events")), &headers);
            let preferred = preferred.expect("a preference is never a fault");
            prop_assert!(preferred.is_none_or(|wait| wait.preferred && (1..=WAIT_MAX).contains(&wait.seconds)));
        }
    }
}
