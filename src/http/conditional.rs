//! Conditional calls (RFC 9110, section 13). A task's version is `last_seq`, because every change of it writes an
//! event, so a representation that follows from the task and its log alone is tagged with it. What changes without an
//! event has no tag (sessions: heartbeats; relations: what the other task does) or says so in its tag.

use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, ETAG, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::problem::Problem;
use crate::domain::digest::Digest;
use crate::domain::refusal::{Checked, Refusal};

/// The version of a representation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag(String);

impl Tag {
    /// The version of what follows from the log up to `last_seq`.
    pub fn of(last_seq: i64) -> Self {
        Self(last_seq.to_string())
    }

    /// The same beside something that changes without an event.
    pub fn beside(last_seq: i64, other: &str) -> Self {
        Self(if other.is_empty() { last_seq.to_string() } else { format!("{last_seq}-{other}") })
    }

    /// The version of what is named by its content.
    pub fn of_content(digest: Digest) -> Self {
        Self(digest.to_string())
    }

    /// Whether the caller has this version already.
    pub fn is_known(&self, headers: &HeaderMap) -> bool {
        // A list that cannot be read is ignored: the caller is answered as if it had asked for nothing special.
        match tags(headers, &IF_NONE_MATCH) {
            Ok(Some(Named::Any)) => true,
            Ok(Some(Named::These(tags))) => tags.iter().any(|(_, tag)| *tag == self.0),
            Ok(None) | Err(()) => false,
        }
    }

    /// Answers 304 when the caller has this version already, else what `view` makes, tagged.
    pub fn answer(
        self,
        headers: &HeaderMap,
        view: impl FnOnce() -> Result<Response, Problem>,
    ) -> Result<Response, Problem> {
        let mut response = if self.is_known(headers) { StatusCode::NOT_MODIFIED.into_response() } else { view()? };
        if let Ok(tag) = HeaderValue::from_str(&format!("\"{}\"", self.0)) {
            response.headers_mut().insert(ETAG, tag);
            // To be asked again each time, and by nobody else: who may read is judged at every call.
            response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
        }
        Ok(response)
    }
}

/// The tags that a header names.
enum Named {
    /// `*`: whichever there is.
    Any,
    /// Each with whether it is weak.
    These(Vec<(bool, String)>),
}

/// Reads the header's list, which may be spread over several lines; `Err` when it is none.
fn tags(headers: &HeaderMap, name: &http::HeaderName) -> Result<Option<Named>, ()> {
    if !headers.contains_key(name) {
        return Ok(None);
    }
    let mut found = Vec::new();
    let mut any = false;
    for line in headers.get_all(name) {
        // Elements of a list may be empty (RFC 9110, section 5.6.1.2).
        let mut rest = line.to_str().map_err(|_| ())?.trim().trim_start_matches([',', ' ', '\t']);
        while !rest.is_empty() {
            rest = if let Some(after) = rest.strip_prefix('*').filter(|_| !any) {
                any = true;
                after
            } else {
                let (weak, quoted) = match rest.strip_prefix("W/") {
                    Some(quoted) => (true, quoted),
                    None => (false, rest),
                };
                let (tag, after) = quoted.strip_prefix('"').and_then(|text| text.split_once('"')).ok_or(())?;
                found.push((weak, tag.to_owned()));
                after
            };
            rest = rest.trim_start();
            match rest.strip_prefix(',') {
                Some(after) => rest = after.trim_start_matches([',', ' ', '\t']),
                None if rest.is_empty() => {}
                None => return Err(()),
            }
        }
    }
    match (any, found.is_empty()) {
        (true, true) => Ok(Some(Named::Any)),
        (false, false) => Ok(Some(Named::These(found))),
        _ => Err(()),
    }
}

/// The versions of the task that `If-Match` allows; absent: any. Weak tags never match, nor do those of an archived
/// task. A list that cannot be read is refused: ignored, it would let a change through that was not meant.
pub fn expected(headers: &HeaderMap) -> Checked<Option<Vec<i64>>> {
    match tags(headers, &IF_MATCH) {
        Ok(None | Some(Named::Any)) => Ok(None),
        Ok(Some(Named::These(tags))) => {
            let strong = tags.iter().filter(|(weak, _)| !weak);
            let plain = strong.filter_map(|(_, tag)| tag.parse().ok().filter(|seq: &i64| seq.to_string() == *tag));
            Ok(Some(plain.collect()))
        }
        Err(()) => Err(Refusal::invalid_header("If-Match", "must be * or a list of entity tags such as \"17\"")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::domain::refusal::Place;

    fn with(name: &http::HeaderName, lines: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(name, HeaderValue::from_static(line));
        }
        headers
    }

    #[test]
    fn a_version_is_known_when_a_list_names_it() {
        let known = |lines: &[&'static str]| Tag::of(17).is_known(&with(&IF_NONE_MATCH, lines));
        for lines in [
            &["\"17\""] as &[_],
            &["W/\"17\""],
            &["*"],
            &["\"1\", \"17\""],
            &["\"1\",W/\"17\",\"2\""],
            &["\"1\"", "\"17\""],
            &["\"a,b\" , , \"17\""],
            &[", \"17\" ,"],
        ] {
            assert!(known(lines), "{lines:?}");
        }
        for lines in [
            &[] as &[_],
            &[""],
            &["17"],
            &["\"17"],
            &["\"16\""],
            &["\"17-archived\""],
            &["\"1 17\""],
            &["w/\"17\""],
            &["\"16\" \"17\""],
            &["*, \"16\""],
            &["*,*"],
            &["*", "*"],
        ] {
            assert!(!known(lines), "{lines:?}");
        }
        assert!(!Tag::beside(17, "archived").is_known(&with(&IF_NONE_MATCH, &["\"17\""])));
        assert_eq!(Tag::beside(17, ""), Tag::of(17));
    }

    #[test]
    fn a_precondition_names_versions_or_is_refused() {
        let read = |lines: &[&'static str]| expected(&with(&IF_MATCH, lines));
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&["*"]), Ok(None));
        assert_eq!(read(&["\"17\""]), Ok(Some(vec![17])));
        assert_eq!(read(&["\"17\", \"18\"", "\"19\""]), Ok(Some(vec![17, 18, 19])));
        for never in ["W/\"17\"", "\"017\"", "\"+17\"", "\"17-archived\"", "\"\""] {
            assert_eq!(read(&[never]), Ok(Some(Vec::new())), "{never}");
        }
        for bad in ["", ",", "17", "\"17", "\"17\" x", "*, \"17\"", "**", "*,*"] {
            assert!(read(&[bad]).is_err(), "{bad}");
        }
    }

    /// A list as a header may have it, and the tags in it with whether each is weak.
    fn lists() -> impl Strategy<Value = (String, Vec<(bool, String)>)> {
        let tag = (any::<bool>(), prop_oneof![2 => "[0-9]{1,3}", 1 => "[!#-~]{0,8}"]);
        (vec((tag, "[ \t]{0,2},[ \t,]{0,3}"), 1..5), ",{0,2}").prop_map(|(items, before)| {
            let mut text = before;
            for ((weak, tag), after) in &items {
                let weak = if *weak { "W/" } else { "" };
                text.extend([weak, "\"", tag, "\"", after]);
            }
            (text, items.into_iter().map(|(tag, _)| tag).collect())
        })
    }

    fn headers(name: &http::HeaderName, text: &str) -> Option<HeaderMap> {
        let value = HeaderValue::from_bytes(text.as_bytes()).ok()?;
        Some(HeaderMap::from_iter([(name.clone(), value)]))
    }

    proptest! {
        #[test]
        fn any_list_names_its_tags((text, tags) in lists(), seq in 0..1_000_i64) {
            let known = Tag::of(seq).is_known(&headers(&IF_NONE_MATCH, &text).unwrap());
            prop_assert_eq!(known, tags.iter().any(|(_, tag)| *tag == seq.to_string()), "{}", text);
            let expected: Vec<i64> = tags
                .iter()
                .filter(|(weak, _)| !weak)
                .filter_map(|(_, tag)| tag.parse().ok().filter(|seq: &i64| seq.to_string() == *tag))
                .collect();
            prop_assert_eq!(super::expected(&headers(&IF_MATCH, &text).unwrap()), Ok(Some(expected)));
        }

        #[test]
        fn what_is_no_list_changes_nothing(text in prop_oneof!["[W/\"*, 0-9]{0,20}", any::<String>()]) {
            let Some(none_match) = headers(&IF_NONE_MATCH, &text) else { return Ok(()) };
            let known = Tag::of(17).is_known(&none_match);
            prop_assert!(!known || text.contains("\"17\"") || text.trim_matches([',', ' ', '\t']) == "*", "{}", text);
            match super::expected(&headers(&IF_MATCH, &text).unwrap()) {
                Ok(Some(versions)) => {
                    let named = versions.iter().all(|seq| text.contains(&format!("\"{seq}\"")));
                    prop_assert!(named, "{}", text);
                }
                Ok(None) => prop_assert_eq!(text.trim_matches([',', ' ', '\t']), "*"),
                Err(Refusal::Invalid(faults)) => prop_assert_eq!(&faults[0].place, &Place::Header("If-Match")),
                Err(other) => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
