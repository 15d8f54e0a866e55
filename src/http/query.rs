//! Query parameters. Unknown ones are ignored; faults are collected like those of a body.

use std::str::FromStr;

use axum::extract::FromRequestParts;
use http::Uri;
use http::request::Parts;
use url::form_urlencoded;
use uuid::Uuid;

use super::App;
use crate::domain::refusal::{Checked, Fault, Refusal};
use crate::domain::time::Timestamp;

/// The query of a request, judged when the handler asks.
pub struct Query {
    pairs: Vec<(String, String)>,
    path: String,
}

impl FromRequestParts<App> for Query {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self, Self::Rejection> {
        Ok(Self::of(&parts.uri))
    }
}

/// A reader that collects faults.
pub struct Parameters<'q> {
    query: &'q Query,
    faults: Vec<Fault>,
}

impl Query {
    /// The query of `uri`.
    pub fn of(uri: &Uri) -> Self {
        let query = uri.query().unwrap_or_default();
        let pairs = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        Self { pairs, path: uri.path().to_owned() }
    }

    /// A reader of the parameters.
    pub fn parameters(&self) -> Parameters<'_> {
        Parameters { query: self, faults: Vec::new() }
    }

    /// The values of a parameter. An empty one is absent.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &str> {
        let pairs = self.pairs.iter().filter(move |(key, value)| key == name && !value.is_empty());
        pairs.map(|(_, value)| value.as_str())
    }

    /// Every parameter but `cursor` and `limit`, in a fixed order: what a cursor binds to.
    pub fn fingerprint(&self) -> String {
        let mut pairs: Vec<_> =
            self.pairs.iter().filter(|(key, _)| !matches!(key.as_str(), "cursor" | "limit")).collect();
        pairs.sort();
        let mut text = form_urlencoded::Serializer::new(String::new());
        text.extend_pairs(pairs.iter().map(|(key, value)| (key, value)));
        format!("{}?{}", self.path, text.finish())
    }

    /// This request's path and query with some parameters replaced, for a `Link` header.
    pub fn with(&self, replaced: &[(&str, String)]) -> String {
        let mut text = form_urlencoded::Serializer::new(String::new());
        let kept = |key: &str| replaced.iter().all(|(name, _)| *name != key);
        text.extend_pairs(self.pairs.iter().filter(|(key, _)| kept(key)));
        text.extend_pairs(replaced);
        format!("{}?{}", self.path, text.finish())
    }
}

impl<'q> Parameters<'q> {
    /// The parameter, if it is there and not empty.
    pub fn text(&mut self, name: &'static str) -> Option<&'q str> {
        self.all(name).first().copied()
    }

    /// All values of a parameter that may be repeated.
    pub fn all(&mut self, name: &'static str) -> Vec<&'q str> {
        let (kept, refused): (Vec<_>, Vec<_>) = self.query.values(name).partition(|value| !value.contains('\0'));
        if !refused.is_empty() {
            // Nothing that is kept has the character, and Postgres takes no text with it.
            self.fault(name, "must not have the character U+0000");
        }
        kept
    }

    /// The cursor, whatever it holds: a damaged one is told as such.
    pub fn cursor(&self) -> Option<String> {
        self.query.values("cursor").next().map(str::to_owned)
    }

    /// Records a fault of a header.
    pub fn header_fault(&mut self, name: &'static str, detail: impl Into<String>) {
        self.faults.push(Fault::header(name, detail));
    }

    /// Records a fault.
    pub fn fault(&mut self, name: &'static str, detail: impl Into<String>) {
        self.faults.push(Fault::query(name, detail));
    }

    /// Whether no fault was found so far.
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty()
    }

    /// A parameter that is parsed.
    pub fn parsed<T>(&mut self, name: &'static str) -> Option<T>
    where
        T: FromStr,
        T::Err: std::fmt::Display,
    {
        match self.text(name)?.parse() {
            Ok(value) => Some(value),
            Err(fault) => {
                self.fault(name, fault.to_string());
                None
            }
        }
    }

    /// All values of a repeated parameter, parsed.
    pub fn all_parsed<T>(&mut self, name: &'static str) -> Vec<T>
    where
        T: FromStr,
        T::Err: std::fmt::Display,
    {
        let mut values = Vec::new();
        for text in self.all(name) {
            match text.parse::<T>() {
                Ok(value) => values.push(value),
                Err(fault) => self.fault(name, fault.to_string()),
            }
        }
        values
    }

    /// A day (its beginning, UTC) or a time with an offset.
    pub fn day_or_time(&mut self, name: &'static str) -> Option<Timestamp> {
        let text = self.text(name)?;
        let at = Timestamp::parse(text).or_else(|_| Timestamp::parse(&format!("{text}T00:00:00Z")));
        if at.is_err() {
            self.fault(name, "must be a day such as 2026-01-31, or RFC 3339 with an offset (a plus is written %2B)");
        }
        at.ok()
    }

    /// A UUID.
    pub fn id<T: From<Uuid>>(&mut self, name: &'static str) -> Option<T> {
        let id = Uuid::try_parse(self.text(name)?).ok();
        if id.is_none() {
            self.fault(name, "must be a UUID");
        }
        id.map(T::from)
    }

    /// A truth value.
    pub fn bool(&mut self, name: &'static str) -> Option<bool> {
        match self.text(name)? {
            "true" | "1" => Some(true),
            "false" | "0" => Some(false),
            _ => {
                self.fault(name, "must be true or false");
                None
            }
        }
    }

    /// A whole number of at least zero.
    pub fn number(&mut self, name: &'static str) -> Option<i64> {
        match self.text(name)?.parse::<i64>() {
            Ok(number) if number >= 0 => Some(number),
            Ok(_) | Err(_) => {
                self.fault(name, "must be a whole number of at least 0");
                None
            }
        }
    }

    /// The size of a page.
    pub fn limit(&mut self, default: u32, max: u32) -> u32 {
        let Some(text) = self.text("limit") else { return default.min(max) };
        match text.parse::<u32>() {
            Ok(limit) if (1..=max).contains(&limit) => limit,
            Ok(_) | Err(_) => {
                self.fault("limit", format!("must be a whole number from 1 to {max}"));
                default
            }
        }
    }

    /// `value`, or the faults found.
    pub fn finish<T>(self, value: T) -> Checked<T> {
        if self.faults.is_empty() { Ok(value) } else { Err(Refusal::Invalid(self.faults)) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::domain::refusal::Place;

    fn query(pairs: &[(String, String)]) -> Query {
        let mut text = form_urlencoded::Serializer::new(String::new());
        text.extend_pairs(pairs);
        Query::of(&format!("/list?{}", text.finish()).parse().unwrap())
    }

    fn pairs() -> impl Strategy<Value = Vec<(String, String)>> {
        let name = prop_oneof!["limit|cursor|status|q|label|after_seq", any::<String>()];
        vec((name, prop_oneof!["[0-9+-]{0,12}", any::<String>()]), 0..6)
    }

    proptest! {
        #[test]
        fn any_query_is_read(text in "[!-;=?-~]{0,60}") {
            let Ok(uri) = format!("/list?{text}").parse::<Uri>() else { return Ok(()) };
            let query = Query::of(&uri);
            prop_assert!(query.fingerprint().starts_with("/list?"));
            let mut parameters = query.parameters();
            parameters.all("status");
            parameters.cursor();
            prop_assert!(parameters.finish(()).is_ok());
        }

        #[test]
        fn a_fingerprint_is_of_the_filter_alone(pairs in pairs(), limit in 1..100_u32, cursor: String) {
            let one = query(&pairs);
            let reversed: Vec<_> = pairs.iter().rev().cloned().collect();
            prop_assert_eq!(query(&reversed).fingerprint(), one.fingerprint());
            let next = one.with(&[("cursor", cursor), ("limit", limit.to_string())]);
            prop_assert_eq!(Query::of(&next.parse().unwrap()).fingerprint(), one.fingerprint());
            let other = one.with(&[("filter", "of another list".to_owned())]);
            prop_assert_ne!(Query::of(&other.parse().unwrap()).fingerprint(), one.fingerprint());
        }

        #[test]
        fn what_is_replaced_is_there_once(pairs in pairs(), value: String) {
            let next = Query::of(&query(&pairs).with(&[("cursor", value.clone())]).parse().unwrap());
            let kept = |query: &Query| -> Vec<_> {
                query.pairs.iter().filter(|(name, _)| name != "cursor").cloned().collect()
            };
            prop_assert_eq!(kept(&next), kept(&query(&pairs)));
            prop_assert_eq!(next.pairs.iter().filter(|pair| pair.0 == "cursor").count(), 1);
            prop_assert_eq!(next.parameters().cursor(), Some(value).filter(|value| !value.is_empty()));
        }

        #[test]
        fn a_parameter_is_right_or_refused_by_its_name(
            text in prop_oneof!["[+-]?[0-9]{1,21}", "true|false|0|1", "[0-9]{4}-[0-9]{2}-[0-9]{2}", any::<String>()],
        ) {
            let all = ["limit", "after_seq", "mine", "start", "agent_id"];
            let query = query(&all.map(|name| (name.to_owned(), text.clone())));
            let mut parameters = query.parameters();
            let limit = parameters.limit(50, 100);
            let number = parameters.number("after_seq");
            let truth = parameters.bool("mine");
            let start = parameters.day_or_time("start");
            let id = parameters.id::<Uuid>("agent_id");
            let right = [
                text.is_empty() || text.parse::<u32>().ok() == Some(limit),
                text.is_empty() || number.is_some_and(|number| number >= 0 && text.parse() == Ok(number)),
                text.is_empty() || truth.is_some(),
                text.is_empty() || start.is_some(),
                text.is_empty() || id.is_some(),
            ];
            prop_assert!((1..=100).contains(&limit));
            let named = match parameters.finish(()) {
                Ok(()) => Vec::new(),
                Err(Refusal::Invalid(faults)) => faults.into_iter().map(|fault| fault.place).collect(),
                Err(other) => panic!("another refusal: {other:?}"),
            };
            for (name, right) in all.into_iter().zip(right) {
                prop_assert_eq!(named.contains(&Place::Query(name)), !right, "{} {:?}", name, text);
            }
        }
    }
}
