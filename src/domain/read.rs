//! Reading typed fields out of JSON. Every fault is collected with its pointer, so that one answer names them all.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::str::FromStr;

use uuid::Uuid;

use super::digest::Digest;
use super::json::{Value, escape_pointer_token};
use super::limits::KEY_MAX;
use super::money::{Money, MoneyError, Price};
use super::redaction;
use super::refusal::{Checked, Fault, Refusal};
use super::time::Timestamp;

/// Why a key is refused that holds a token.
pub const KEY_SECRET: &str = "holds what looks like a secret; keys are kept as they are, so it must not";

/// The members of one object. Unknown ones are ignored; null means absent.
pub struct Fields<'a> {
    value: &'a Value<'a>,
    pointer: String,
    faults: Vec<Fault>,
}

impl<'a> Fields<'a> {
    /// Reads the object `value`, which stands at `pointer` in the body. An absent body has no members.
    pub fn new(value: &'a Value<'a>, pointer: impl Into<String>) -> Self {
        let mut fields = Self { value, pointer: pointer.into(), faults: Vec::new() };
        if !matches!(value, Value::Object(_) | Value::Null) {
            fields
                .faults
                .push(Fault::new(fields.pointer.clone(), format!("must be an object, not {}", value.kind_name())));
        }
        fields
    }

    /// Adds faults that were found elsewhere in the same body.
    #[must_use]
    pub fn with_faults(mut self, faults: &[Fault]) -> Self {
        self.faults.extend_from_slice(faults);
        self
    }

    /// The member, unless it is absent or null.
    pub fn member(&self, name: &str) -> Option<&'a Value<'a>> {
        self.value.get(name).filter(|value| !matches!(value, Value::Null))
    }

    /// The pointer of a member.
    pub fn at(&self, name: &str) -> String {
        format!("{}/{}", self.pointer, escape_pointer_token(name))
    }

    /// Records a fault of a member.
    pub fn fault(&mut self, name: &str, detail: impl Into<String>) {
        let pointer = self.at(name);
        self.faults.push(Fault::new(pointer, detail));
    }

    /// Records faults that have their pointers already.
    pub fn extend(&mut self, faults: impl IntoIterator<Item = Fault>) {
        self.faults.extend(faults);
    }

    fn missing(&mut self, name: &str) {
        self.fault(name, "is required");
    }

    /// An optional text of `length` characters that is not blank.
    pub fn text_opt(&mut self, name: &str, length: RangeInclusive<usize>) -> Option<String> {
        let value = self.member(name)?;
        let Some(text) = value.as_str() else {
            self.fault(name, format!("must be a string, not {}", value.kind_name()));
            return None;
        };
        if !length.contains(&text.chars().count()) {
            self.fault(name, format!("must have {} to {} characters", length.start(), length.end()));
            return None;
        }
        if *length.start() > 0 && text.trim().is_empty() {
            self.fault(name, "must not be blank");
            return None;
        }
        Some(text.to_owned())
    }

    /// A required text; empty after a fault.
    pub fn text(&mut self, name: &str, length: RangeInclusive<usize>) -> String {
        if self.member(name).is_none() {
            self.missing(name);
        }
        self.text_opt(name, length).unwrap_or_default()
    }

    /// An optional key: kept as it is, so that it may hold no secret.
    pub fn key_opt(&mut self, name: &str) -> Option<String> {
        let key = self.text_opt(name, 1..=KEY_MAX)?;
        if redaction::holds_token(&key) {
            self.fault(name, KEY_SECRET);
        }
        Some(key)
    }

    /// A key: kept as it is, so that it may hold no secret.
    pub fn key(&mut self, name: &str) -> String {
        if self.member(name).is_none() {
            self.missing(name);
        }
        self.key_opt(name).unwrap_or_default()
    }

    /// An optional text that is parsed.
    pub fn parsed_opt<T>(&mut self, name: &str) -> Option<T>
    where
        T: FromStr,
        T::Err: std::fmt::Display,
    {
        let value = self.member(name)?;
        let Some(text) = value.as_str() else {
            self.fault(name, format!("must be a string, not {}", value.kind_name()));
            return None;
        };
        match text.parse() {
            Ok(parsed) => Some(parsed),
            Err(fault) => {
                self.fault(name, fault.to_string());
                None
            }
        }
    }

    /// A required text that is parsed.
    pub fn parsed<T>(&mut self, name: &str) -> Option<T>
    where
        T: FromStr,
        T::Err: std::fmt::Display,
    {
        if self.member(name).is_none() {
            self.missing(name);
        }
        self.parsed_opt(name)
    }

    /// An optional UUID.
    pub fn id_opt<T: From<Uuid>>(&mut self, name: &str) -> Option<T> {
        let value = self.member(name)?;
        let parsed = value.as_str().and_then(|text| Uuid::try_parse(text).ok());
        if parsed.is_none() {
            self.fault(name, "must be a UUID");
        }
        parsed.map(T::from)
    }

    /// An optional truth value.
    pub fn bool_opt(&mut self, name: &str) -> Option<bool> {
        match self.member(name)? {
            Value::Bool(value) => Some(*value),
            other => {
                let kind = other.kind_name();
                self.fault(name, format!("must be true or false, not {kind}"));
                None
            }
        }
    }

    /// A required truth value; false after a fault.
    pub fn bool(&mut self, name: &str) -> bool {
        if self.member(name).is_none() {
            self.missing(name);
        }
        self.bool_opt(name).unwrap_or_default()
    }

    /// An optional whole number in `range`, written without point or exponent.
    pub fn integer_opt(&mut self, name: &str, range: RangeInclusive<i64>) -> Option<i64> {
        let value = self.member(name)?;
        let number = match value {
            Value::Number(text) => text.parse::<i64>().ok().filter(|number| range.contains(number)),
            _ => None,
        };
        if number.is_none() {
            self.fault(name, format!("must be a whole number from {} to {}", range.start(), range.end()));
        }
        number
    }

    /// An optional amount of money that is not negative: a JSON number or a decimal string, kept exactly.
    pub fn money_opt(&mut self, name: &str) -> Option<Money> {
        self.decimal_opt(name, Money::parse_amount)
    }

    /// An optional price per million tokens: a JSON number or a decimal string, kept exactly.
    pub fn price_opt(&mut self, name: &str) -> Option<Price> {
        self.decimal_opt(name, str::parse)
    }

    fn decimal_opt<T>(&mut self, name: &str, parse: fn(&str) -> Result<T, MoneyError>) -> Option<T> {
        let value = self.member(name)?;
        let text = match value {
            Value::Number(text) => text.as_ref(),
            Value::String(text) => text.as_str(),
            other => {
                let kind = other.kind_name();
                self.fault(name, format!("must be a decimal number or string, not {kind}"));
                return None;
            }
        };
        match parse(text) {
            Ok(decimal) => Some(decimal),
            Err(fault) => {
                self.fault(name, fault.to_string());
                None
            }
        }
    }

    /// An optional instant.
    pub fn time_opt(&mut self, name: &str) -> Option<Timestamp> {
        let value = self.member(name)?;
        let Some(text) = value.as_str() else {
            self.fault(name, "must be an RFC 3339 time");
            return None;
        };
        match Timestamp::parse(text) {
            Ok(at) => Some(at),
            Err(fault) => {
                self.fault(name, fault.to_string());
                None
            }
        }
    }

    /// An optional list of at most `max` members; empty after a fault.
    pub fn list(&mut self, name: &str, max: usize) -> &'a [Value<'a>] {
        let Some(value) = self.member(name) else { return &[] };
        match value.as_array() {
            Some(items) if items.len() <= max => items,
            Some(_) => {
                self.fault(name, format!("must have at most {max} entries"));
                &[]
            }
            None => {
                self.fault(name, format!("must be an array, not {}", value.kind_name()));
                &[]
            }
        }
    }

    /// An optional list of texts.
    pub fn texts(&mut self, name: &str, max: usize, length: RangeInclusive<usize>) -> Vec<String> {
        let mut texts = Vec::new();
        for (index, item) in self.list(name, max).iter().enumerate() {
            match item.as_str() {
                Some(text) if length.contains(&text.chars().count()) => texts.push(text.to_owned()),
                Some(_) | None => {
                    let detail = format!("must be a string of {} to {} characters", length.start(), length.end());
                    self.fault_in(name, index, detail);
                }
            }
        }
        texts
    }

    /// An optional list of distinct digests.
    pub fn digests_opt(&mut self, name: &str, max: usize) -> Option<Vec<Digest>> {
        self.member(name)?;
        let mut digests: Vec<Digest> = Vec::new();
        for (index, item) in self.list(name, max).iter().enumerate() {
            match item.as_str().and_then(Digest::parse) {
                Some(digest) if digests.contains(&digest) => self.fault_in(name, index, "repeats a digest"),
                Some(digest) => digests.push(digest),
                None => self.fault_in(name, index, "must be sha256: and 64 lower-case hexadecimal digits"),
            }
        }
        Some(digests)
    }

    /// An optional map of texts.
    pub fn labels(&mut self, name: &str, max: usize, key_max: usize, value_max: usize) -> BTreeMap<String, String> {
        let Some(value) = self.member(name) else { return BTreeMap::new() };
        let Some(members) = value.as_object() else {
            self.fault(name, format!("must be an object of strings, not {}", value.kind_name()));
            return BTreeMap::new();
        };
        if members.len() > max {
            self.fault(name, format!("must have at most {max} entries"));
            return BTreeMap::new();
        }
        let mut labels = BTreeMap::new();
        for (key, value) in members {
            let pointer = format!("{}/{}", self.at(name), escape_pointer_token(key.as_str()));
            let fits = |text: &str, max: usize| text.chars().count() <= max;
            match value.as_str() {
                _ if key.as_str().is_empty() || !fits(key.as_str(), key_max) => {
                    self.faults.push(Fault::new(pointer, format!("a label's key has 1 to {key_max} characters")));
                }
                Some(text) if fits(text, value_max) => {
                    labels.insert(key.as_str().to_owned(), text.to_owned());
                }
                Some(_) | None => self.faults.push(Fault::new(
                    pointer,
                    format!("a label's value is a string of at most {value_max} characters"),
                )),
            }
        }
        labels
    }

    fn fault_in(&mut self, name: &str, index: usize, detail: impl Into<String>) {
        let pointer = format!("{}/{index}", self.at(name));
        self.faults.push(Fault::new(pointer, detail));
    }

    /// Whether no fault was found so far.
    pub fn is_faultless(&self) -> bool {
        self.faults.is_empty()
    }

    /// The faults found.
    pub fn into_faults(self) -> Vec<Fault> {
        self.faults
    }

    /// `value`, or the faults found.
    pub fn finish<T>(self, value: T) -> Checked<T> {
        if self.faults.is_empty() { Ok(value) } else { Err(Refusal::Invalid(self.faults)) }
    }
}

/// Redacts the named members of `body` and returns the pointers of what went.
pub fn redact_members(body: &mut Value<'_>, names: &[&str]) -> Vec<String> {
    let Value::Object(members) = body else { return Vec::new() };
    let mut pointers = Vec::new();
    for (key, value) in members.iter_mut().filter(|(key, _)| names.contains(&key.as_str())) {
        let prefix = format!("/{}", escape_pointer_token(key.as_str()));
        pointers.extend(redaction::redact(value).into_iter().map(|pointer| format!("{prefix}{pointer}")));
    }
    pointers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::event::Channel;
    use crate::domain::json::scan;
    use crate::domain::refusal::Place;

    /// What `read` makes of `body`, and the places of the faults.
    fn read<T>(body: &str, read: impl FnOnce(&mut Fields<'_>) -> T) -> (T, Vec<String>) {
        let value = scan(body.as_bytes()).unwrap().value;
        let mut fields = Fields::new(&value, "/in");
        let found = read(&mut fields);
        let place = |fault: Fault| match fault.place {
            Place::Body(pointer) => pointer,
            other => panic!("no place in the body: {other:?}"),
        };
        (found, fields.into_faults().into_iter().map(place).collect())
    }

    fn at(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| format!("/in{name}")).collect()
    }

    #[test]
    fn only_an_object_or_nothing_has_members() {
        for body in ["{}", "null"] {
            assert_eq!(read(body, |fields| fields.is_faultless()), (true, vec![]), "{body}");
        }
        for body in ["[]", "1", "\"x\"", "true"] {
            assert_eq!(read(body, |fields| fields.is_faultless()), (false, at(&[""])), "{body}");
        }
        let absent = read(r#"{"a": null}"#, |fields| fields.member("a").is_none() && fields.member("b").is_none());
        assert_eq!(absent, (true, vec![]));
        assert_eq!(read("{}", |fields| fields.at("a/b~")), ("/in/a~1b~0".to_owned(), vec![]));
    }

    #[test]
    fn a_text_has_its_length_and_is_not_blank() {
        let text = |body: &str| read(body, |fields| fields.text("a", 2..=3));
        assert_eq!(text(r#"{"a": "éé"}"#), ("éé".to_owned(), vec![]));
        assert_eq!(text(r#"{"a": "abc"}"#), ("abc".to_owned(), vec![]));
        for bad in ["{}", r#"{"a": null}"#, r#"{"a": "a"}"#, r#"{"a": "abcd"}"#, r#"{"a": "  "}"#, r#"{"a": 12}"#] {
            assert_eq!(text(bad), (String::new(), at(&["/a"])), "{bad}");
        }
        assert_eq!(read(r#"{"a": "  "}"#, |fields| fields.text_opt("a", 0..=3)), (Some("  ".to_owned()), vec![]));
        assert_eq!(read(r#"{"a": " \n"}"#, |fields| fields.text_opt("a", 1..=3)), (None, at(&["/a"])));
        assert_eq!(read("{}", |fields| fields.text_opt("a", 1..=3)), (None, vec![]));
    }

    #[test]
    fn what_is_parsed_is_a_text_that_is_one() {
        let parsed = |body: &str| read(body, |fields| fields.parsed::<Channel>("a"));
        assert_eq!(parsed(r#"{"a": "web"}"#), (Some(Channel::Web), vec![]));
        for bad in ["{}", r#"{"a": "fax"}"#, r#"{"a": 1}"#] {
            assert_eq!(parsed(bad), (None, at(&["/a"])), "{bad}");
        }
        assert_eq!(read("{}", |fields| fields.parsed_opt::<Channel>("a")), (None, vec![]));
        let id = |body: &str| read(body, |fields| fields.id_opt::<Uuid>("a"));
        assert_eq!(id(r#"{"a": "00000000-0000-0000-0000-000000000007"}"#), (Some(Uuid::from_u128(7)), vec![]));
        assert_eq!(id("{}"), (None, vec![]));
        for bad in [r#"{"a": "7"}"#, r#"{"a": 7}"#] {
            assert_eq!(id(bad), (None, at(&["/a"])), "{bad}");
        }
    }

    #[test]
    fn truths_and_numbers_are_what_they_are() {
        let truth = |body: &str| read(body, |fields| fields.bool("a"));
        assert_eq!(truth(r#"{"a": true}"#), (true, vec![]));
        assert_eq!(truth(r#"{"a": false}"#), (false, vec![]));
        for bad in ["{}", r#"{"a": "true"}"#, r#"{"a": 1}"#] {
            assert_eq!(truth(bad), (false, at(&["/a"])), "{bad}");
        }
        assert_eq!(read("{}", |fields| fields.bool_opt("a")), (None, vec![]));
        let whole = |body: &str| read(body, |fields| fields.integer_opt("a", -1..=5));
        for (body, expected) in [("{}", None), (r#"{"a": -1}"#, Some(-1)), (r#"{"a": 5}"#, Some(5))] {
            assert_eq!(whole(body), (expected, vec![]), "{body}");
        }
        for bad in [r#"{"a": 6}"#, r#"{"a": -2}"#, r#"{"a": 1.0}"#, r#"{"a": 1e0}"#, r#"{"a": "1"}"#] {
            assert_eq!(whole(bad), (None, at(&["/a"])), "{bad}");
        }
    }

    #[test]
    fn money_prices_and_times_say_what_is_wrong_with_them() {
        let shown = |money: Option<Money>| money.map(|money| money.to_string());
        for body in [r#"{"a": 0.50}"#, r#"{"a": "0.5"}"#, r#"{"a": 5e-1}"#] {
            assert_eq!(read(body, |fields| shown(fields.money_opt("a"))), (Some("0.5".to_owned()), vec![]), "{body}");
            let price = read(body, |fields| fields.price_opt("a").map(|price| price.to_string()));
            assert_eq!(price, (Some("0.5".to_owned()), vec![]), "{body}");
        }
        assert_eq!(read("{}", |fields| shown(fields.money_opt("a"))), (None, vec![]));
        for bad in [r#"{"a": -1}"#, r#"{"a": true}"#, r#"{"a": "1,5"}"#] {
            assert_eq!(read(bad, |fields| shown(fields.money_opt("a"))), (None, at(&["/a"])), "{bad}");
        }
        let time = |body: &str| read(body, |fields| fields.time_opt("a").map(Timestamp::micros));
        assert_eq!(time(r#"{"a": "1970-01-01T00:00:01Z"}"#), (Some(1_000_000), vec![]));
        assert_eq!(time("{}"), (None, vec![]));
        for bad in [r#"{"a": 1}"#, r#"{"a": "yesterday"}"#] {
            assert_eq!(time(bad), (None, at(&["/a"])), "{bad}");
        }
    }

    #[test]
    fn lists_are_bounded_and_name_the_entry_that_is_wrong() {
        let length = |body: &str| read(body, |fields| fields.list("a", 2).len());
        assert_eq!(length(r#"{"a": [1, 2]}"#), (2, vec![]));
        assert_eq!(length("{}"), (0, vec![]));
        for bad in [r#"{"a": [1, 2, 3]}"#, r#"{"a": {}}"#] {
            assert_eq!(length(bad), (0, at(&["/a"])), "{bad}");
        }
        let texts = |body: &str| read(body, |fields| fields.texts("a", 4, 1..=2));
        let (kept, faults) = texts(r#"{"a": ["x", "", "yz", 3]}"#);
        assert_eq!((kept, faults), (vec!["x".to_owned(), "yz".to_owned()], at(&["/a/1", "/a/3"])));
        assert_eq!(read("{}", |fields| fields.digests_opt("a", 2)), (None, vec![]));
    }

    #[test]
    fn a_key_holds_no_token() {
        let key = |body: &str| read(body, |fields| fields.key("a"));
        assert_eq!(key(r#"{"a": "nightly"}"#), ("nightly".to_owned(), vec![]));
        let token = format!("{{\"a\": \"ghp_{}\"}}", "a1B2c3D4e5".repeat(4));
        for bad in ["{}", r#"{"a": ""}"#, r#"{"a": 7}"#, token.as_str()] {
            assert_eq!(key(bad).1, at(&["/a"]), "{bad}");
        }
    }

    #[test]
    fn labels_are_a_bounded_map_of_bounded_texts() {
        let labels = |body: &str| {
            let (labels, faults) = read(body, |fields| fields.labels("a", 3, 2, 3));
            (labels.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>(), faults)
        };
        let all = vec!["ab=xyz".to_owned(), "c=".to_owned()];
        assert_eq!(labels(r#"{"a": {"ab": "xyz", "c": ""}}"#), (all, vec![]));
        assert_eq!(labels("{}"), (vec![], vec![]));
        for bad in [r#"{"a": []}"#, r#"{"a": {"a": "", "b": "", "c": "", "d": ""}}"#] {
            assert_eq!(labels(bad), (vec![], at(&["/a"])), "{bad}");
        }
        let some = labels(r#"{"a": {"": "x", "abc": "x", "~": "wxyz"}}"#);
        assert_eq!(some, (vec![], at(&["/a/", "/a/abc", "/a/~0"])));
        assert_eq!(labels(r#"{"a": {"a": 1, "b": "y"}}"#), (vec!["b=y".to_owned()], at(&["/a/a"])));
    }

    #[test]
    fn faults_from_elsewhere_count_and_what_is_redacted_is_named() {
        let nothing = Value::Null;
        let fields = Fields::new(&nothing, "").with_faults(&[Fault::new("/x", "is wrong")]);
        assert!(matches!(fields.finish(7), Err(Refusal::Invalid(faults)) if faults.len() == 1));
        assert_eq!(Fields::new(&nothing, "").finish(7), Ok(7));
        let mut body = scan(br#"{"title": {"password": "hunter2"}, "other": {"password": "hunter2"}}"#).unwrap().value;
        assert_eq!(redact_members(&mut body, &["title"]), ["/title/password"]);
        assert_eq!(body.to_text(), r#"{"title":{"password":"[redacted]"},"other":{"password":"hunter2"}}"#);
        assert_eq!(redact_members(&mut Value::Null, &["title"]), [""; 0]);
    }
}
