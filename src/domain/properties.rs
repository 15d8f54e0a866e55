//! What holds for every parser of this room, whatever it is given: it never panics, it reads what it prints, and what
//! it takes in another spelling it prints in its own.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::TestCaseError;
use uuid::Uuid;

use super::artifact::media_type;
use super::digest::Digest;
use super::export::{ExportFault, Proving};
use super::harness_event::{BatchLimits, read_batch};
use super::ids::{PERSON_ID_MAX, PersonId, ShortId, Slug, TaskId};
use super::json::{Text, Value, escape_pointer_token, scan};
use super::money::{MONEY_DECIMALS, MONEY_MAGNITUDE, Money, MoneyError, PRICE_DECIMALS, PRICE_MAX, Price};
use super::read::Fields;
use super::refusal::{Fault, Place, Refusal};
use super::time::{Timestamp, TimestampError};

/// One character more, less or instead.
fn damaged(text: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    let character = prop_oneof![
        3 => any::<char>(),
        2 => select("+- 09aAfFzZ.:/_~%\"\\\0\u{660}".chars().collect::<Vec<_>>()),
    ];
    (text, any::<Index>(), 0..3_u8, character).prop_map(|(text, at, how, character)| {
        let mut all: Vec<char> = text.chars().collect();
        let at = at.index(all.len() + 1);
        match how {
            0 if at < all.len() => drop(all.remove(at)),
            1 if at < all.len() => all[at] = character,
            _ => all.insert(at, character),
        }
        all.into_iter().collect()
    })
}

/// What a parser may be given: what it prints, that damaged, and anything.
fn given(printed: impl Strategy<Value = String> + Clone + 'static) -> impl Strategy<Value = String> {
    prop_oneof![4 => damaged(printed.clone()), 2 => printed, 1 => any::<String>()]
}

/// What is read is printed in a spelling that reads as the same; answers that spelling.
fn canonical<T>(text: &str) -> Result<Option<String>, TestCaseError>
where
    T: FromStr + Display + PartialEq + Debug,
    T::Err: Debug,
{
    let Ok(read) = text.parse::<T>() else { return Ok(None) };
    let printed = read.to_string();
    let again = printed.parse::<T>();
    prop_assert_eq!(again.as_ref().ok(), Some(&read), "{:?}", printed);
    Ok(Some(printed))
}

/// Where in the body something is wrong.
fn place(fault: &Fault) -> String {
    match &fault.place {
        Place::Body(pointer) => pointer.clone(),
        other => panic!("no place in the body: {other:?}"),
    }
}

fn uuids() -> impl Strategy<Value = String> + Clone {
    any::<u128>().prop_map(|id| Uuid::from_u128(id).to_string())
}

fn digests() -> impl Strategy<Value = String> + Clone {
    any::<[u8; 32]>().prop_map(|bytes| Digest(bytes).to_string())
}

/// A decimal number as JSON and people write it, with its digits and how many of them are decimals.
fn decimals() -> impl Strategy<Value = (String, String, i64)> {
    let exponent = prop_oneof![2 => Just(None), 1 => (-20..20_i64).prop_map(Some)];
    ("0{0,2}[0-9]{1,18}0{0,12}", "[0-9]{0,14}0{0,4}", exponent, select(vec!["e", "E"]), any::<bool>()).prop_map(
        |(whole, fraction, exponent, mark, plus)| {
            let point = if fraction.is_empty() { "" } else { "." };
            let plus = if plus && exponent.is_some_and(|exponent| exponent >= 0) { "+" } else { "" };
            let power = exponent.map(|exponent| format!("{mark}{plus}{exponent}")).unwrap_or_default();
            let decimals = i64::try_from(fraction.len()).unwrap() - exponent.unwrap_or_default();
            (format!("{whole}{point}{fraction}{power}"), format!("{whole}{fraction}"), decimals)
        },
    )
}

/// The plain spelling of `digits` of which the last `decimals` are decimals, with both counts of its digits.
fn plain(digits: &str, decimals: i64) -> (String, i64, i64) {
    let significant = digits.trim_start_matches('0').trim_end_matches('0');
    if significant.is_empty() {
        return ("0".to_owned(), 0, 0);
    }
    let dropped = digits.len() - digits.trim_end_matches('0').len();
    let decimals = decimals - i64::try_from(dropped).unwrap();
    let length = i64::try_from(significant.len()).unwrap();
    let count = |count: i64| usize::try_from(count).unwrap();
    let text = if decimals <= 0 {
        format!("{significant}{}", "0".repeat(count(-decimals)))
    } else if decimals < length {
        let (whole, fraction) = significant.split_at(count(length - decimals));
        format!("{whole}.{fraction}")
    } else {
        format!("0.{}{significant}", "0".repeat(count(decimals - length)))
    };
    (text, (length - decimals).max(0), decimals.max(0))
}

/// What looks like an instant.
const INSTANT: &str =
    "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{1,12})?(Z|z|[+-][0-9]{2}:[0-9]{2})";

/// Days since 1970 of a day of our calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let months = [31, if is_leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let before = |year: i64| 365 * (year - 1) + (year - 1) / 4 - (year - 1) / 100 + (year - 1) / 400;
    let of_months: i64 = months.iter().take(usize::try_from(month - 1).unwrap()).sum();
    before(year) - before(1970) + of_months + day - 1
}

proptest! {
    #[test]
    fn a_short_id_has_one_name_in_either_case(text in given((1..=i64::MAX).prop_map(|id| ShortId(id).to_string()))) {
        if let Some(printed) = canonical::<ShortId>(&text)? {
            prop_assert_eq!(printed, text.replacen('t', "T", 1));
        }
    }

    #[test]
    fn every_number_from_1_on_is_a_short_id(number in prop_oneof![1..100_i64, 1..=i64::MAX]) {
        prop_assert_eq!(format!("T-{number}").parse(), Ok(ShortId(number)));
        prop_assert_eq!(format!("t-{number}").parse(), Ok(ShortId(number)));
        for text in [format!("T-0{number}"), format!("T-+{number}"), format!("T--{number}"), number.to_string()] {
            prop_assert!(text.parse::<ShortId>().is_err(), "{}", text);
        }
    }

    #[test]
    fn a_slug_is_its_text_and_no_id(text in given("[a-z0-9][a-z0-9._-]{0,99}")) {
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
        let starts = text.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
        let fits = text.len() <= 100 && starts && text.chars().all(legal);
        let expected = fits && Uuid::parse_str(&text).is_err();
        prop_assert_eq!(canonical::<Slug>(&text)?, expected.then_some(text));
    }

    #[test]
    fn an_id_is_never_a_slug(text in uuids()) {
        prop_assert!(text.parse::<Slug>().is_err());
        prop_assert!(text.replace('-', "").parse::<Slug>().is_err());
    }

    #[test]
    fn an_id_prints_in_one_spelling(text in given(uuids())) {
        if let Some(printed) = canonical::<TaskId>(&text)? {
            let digits = |text: &str| text.trim_start_matches("urn:uuid:").replace(['-', '{', '}'], "").to_lowercase();
            prop_assert_eq!(digits(&printed), digits(&text));
        }
    }

    #[test]
    fn a_person_is_the_same_in_any_case(text in given("[A-Za-z0-9@._ßéİΣς-]{1,200}")) {
        let Ok(person) = PersonId::parse(&text) else {
            let folded = text.to_lowercase();
            let bad = |c: char| c.is_whitespace() || c.is_control();
            prop_assert!(folded.is_empty() || folded.chars().count() > PERSON_ID_MAX || folded.contains(bad));
            return Ok(());
        };
        prop_assert_eq!(PersonId::parse(person.as_str()), Ok(person.clone()));
        prop_assert_eq!(PersonId::parse(&text.to_lowercase()), Ok(person));
    }

    #[test]
    fn a_digest_has_one_spelling(text in given(digests())) {
        let fits = text.strip_prefix("sha256:").is_some_and(|digits| {
            digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'))
        });
        let read = Digest::parse(&text);
        prop_assert_eq!(read.map(|digest| format!("{digest:?}")), fits.then(|| text.clone()));
        prop_assert_eq!(read.map(|digest| digest.to_string()), fits.then_some(text));
    }

    #[test]
    fn a_list_of_digests_names_each_entry_that_is_none(
        texts in vec(prop_oneof![3 => digests(), 1 => given(digests()), 1 => Just(Digest::ZERO.to_string())], 0..6),
    ) {
        let list = Value::Array(texts.iter().map(|text| Value::String(Text::new(text))).collect());
        let body = Value::Object(vec![(Text::new("artifact_digests"), list)]);
        let mut fields = Fields::new(&body, "");
        let read = fields.digests_opt("artifact_digests", 5);
        let mut known = Vec::new();
        let mut bad = Vec::new();
        for (at, text) in texts.iter().enumerate() {
            match Digest::parse(text) {
                Some(digest) if !known.contains(&digest) => known.push(digest),
                _ => bad.push(format!("/artifact_digests/{at}")),
            }
        }
        if texts.len() > 5 {
            (known, bad) = (Vec::new(), vec!["/artifact_digests".to_owned()]);
        }
        prop_assert_eq!(read, Some(known));
        let named: Vec<_> = fields.into_faults().into_iter().map(|fault| place(&fault)).collect();
        prop_assert_eq!(named, bad);
    }

    #[test]
    fn money_is_exact_or_refused((text, digits, decimals) in decimals(), negative: bool) {
        let (shown, whole, fraction) = plain(&digits, decimals);
        let fits = whole <= i64::from(MONEY_MAGNITUDE) && fraction <= i64::from(MONEY_DECIMALS);
        let sign = if negative { "-" } else { "" };
        let read = format!("{sign}{text}").parse::<Money>();
        prop_assert_eq!(read.is_ok(), fits, "{} {:?}", text, read);
        if let Ok(money) = read {
            let sign = if shown == "0" { "" } else { sign };
            prop_assert_eq!(money.to_string(), format!("{sign}{shown}"));
            prop_assert_eq!(money.is_negative(), negative && shown != "0");
            let amount = Money::parse_amount(&format!("{sign}{text}"));
            prop_assert_eq!(amount, if money.is_negative() { Err(MoneyError::Negative) } else { Ok(money) });
        }
    }

    #[test]
    fn a_price_is_exact_or_refused((text, digits, decimals) in decimals()) {
        let (shown, whole, fraction) = plain(&digits, decimals);
        let most = PRICE_MAX.to_string();
        let low = whole < i64::try_from(most.len()).unwrap() || shown == most;
        let read = text.parse::<Price>();
        prop_assert_eq!(read.is_ok(), low && fraction <= i64::from(PRICE_DECIMALS), "{} {:?}", text, read);
        if let Ok(price) = read {
            prop_assert_eq!(price.to_string(), shown.clone());
            prop_assert_eq!(Money::new(price.decimal()).unwrap().to_string(), shown.clone());
            let below = format!("-{text}").parse::<Price>();
            prop_assert_eq!(below.is_err(), shown != "0", "{:?}", below);
        }
    }

    #[test]
    fn any_text_is_an_amount_in_its_own_spelling_or_none(
        text in given("-?[0-9]{1,18}(\\.[0-9]{1,14})?([eE][+-]?[0-9]{1,3})?"),
    ) {
        for printed in [canonical::<Money>(&text)?, canonical::<Price>(&text)?].into_iter().flatten() {
            prop_assert!(printed.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'-' | b'.')), "{}", printed);
            prop_assert!(!printed.contains('.') || !printed.ends_with(['0', '.']), "{}", printed);
            prop_assert!(text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b)), "{}", text);
        }
    }

    #[test]
    fn an_instant_goes_round(micros in -62_135_596_800_000_000..253_402_300_800_000_000_i64) {
        let at = Timestamp::from_micros(micros).unwrap();
        let printed = at.to_string();
        prop_assert_eq!(printed.len(), "2026-01-31T09:30:00.000001Z".len());
        prop_assert_eq!(Timestamp::parse(&printed), Ok(at));
        let json = serde_json::to_string(&at).unwrap();
        prop_assert_eq!(serde_json::from_str::<Timestamp>(&json).unwrap(), at);
    }

    #[test]
    fn an_instant_is_the_same_whatever_its_offset(
        (year, month, day) in (0..=9_999_i64, 1..=12_i64, 1..=28_i64),
        (hour, minute, second) in (0..24_i64, 0..60_i64, 0..60_i64),
        fraction in "[0-9]{0,9}",
        (hours, minutes) in (-23..=23_i64, 0..60_i64),
    ) {
        let point = if fraction.is_empty() { "" } else { "." };
        let sign = if hours < 0 { '-' } else { '+' };
        let offset = format!("{sign}{:02}:{minutes:02}", hours.abs());
        let text = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{point}{fraction}{offset}");
        let ahead = hours.signum() * (hours.abs() * 60 + minutes) + if hours == 0 { minutes } else { 0 };
        let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - ahead * 60;
        let below: i64 = format!("{fraction:0<6}")[..6].parse().unwrap();
        let expected = Timestamp::from_micros(seconds * 1_000_000 + below).ok_or(TimestampError::Range);
        prop_assert_eq!(Timestamp::parse(&text), expected, "{}", text);
    }

    #[test]
    fn any_text_is_an_instant_or_none(
        text in given(INSTANT),
    ) {
        if let Ok(at) = Timestamp::parse(&text) {
            prop_assert_eq!(Timestamp::parse(&at.to_string()), Ok(at));
            // Without an offset nobody knows when it is.
            prop_assert!(text.ends_with(['Z', 'z']) || text[19..].contains(['+', '-']), "{}", text);
        }
    }

    #[test]
    fn a_media_type_is_safe_to_serve(
        sent in given("[a-zA-Z]{1,12}/[a-zA-Z0-9.+-]{1,20}( ?; ?[a-z]{1,8}=\"?[A-Za-z0-9-]{1,12}\"?){0,2}"),
    ) {
        let kept = media_type(&sent);
        prop_assert_eq!(media_type(&kept), kept.clone());
        prop_assert!(kept.len() <= 220 && kept.contains('/'), "{}", kept);
        let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"!#$&-^_.+/;= ".contains(&b);
        prop_assert!(kept.bytes().all(legal), "{}", kept);
    }

    #[test]
    fn a_pointer_leads_to_its_member(keys in vec(any::<String>(), 1..4)) {
        let inner = Value::Number("7".into());
        let tree = keys.iter().rev().fold(inner.clone(), |value, key| Value::Object(vec![(Text::new(key), value)]));
        let pointer = keys.iter().fold(String::new(), |pointer, key| pointer + "/" + &escape_pointer_token(key));
        prop_assert_eq!(tree.pointer(&pointer), Some(&inner));
        prop_assert_eq!(tree.pointer(&format!("{pointer}/more")), None);
    }

    #[test]
    fn any_pointer_leads_somewhere_or_nowhere(pointer in "(/([0-9]{0,3}|~|~0|~1|~2|[a-z]|.)){0,4}") {
        let tree = scan(br#"{"a":[1,[2,{"~":3,"/":4,"":5}]],"0":6}"#).unwrap().value;
        prop_assert!(tree.pointer(&pointer).is_none() || pointer.is_empty() || pointer.starts_with('/'));
    }

    #[test]
    fn no_line_that_was_not_exported_is_proven(line in given(Just(exported()))) {
        let mut proving = Proving::new(None);
        // White space, the case of ids and the list of redactions are nobody's.
        if proving.line(&line).is_ok() {
            let mut whole = Proving::new(None);
            whole.line(&exported()).unwrap();
            prop_assert_eq!((proving.head(), proving.task(), proving.entries()), (whole.head(), whole.task(), 1));
        } else {
            prop_assert_eq!((proving.head(), proving.entries()), (Digest::ZERO, 0));
        }
    }
}

/// An entry as the events route exports it.
fn exported() -> String {
    let line = r#"{"task_id":"01890a5d-ac96-774b-bcce-b302099a8057","seq":1,
        "event_id":"9b2f3c1e-8f3a-4a55-9f0e-2c8a6d7c1b11",
        "type":"turn","schema_version":1,"actor_kind":"agent","actor_id":"reviewer","channel":"api",
        "session_id":null,
        "at":"2026-01-31T09:30:00.000001Z","recorded_at":"2026-01-31T09:30:00.000002Z","payload":{"body":"Hi."},
        "redacted":[],"digest":"DIGEST"}"#
        .replace("\n        ", "");
    match Proving::new(None).line(&line.replace("DIGEST", &Digest::ZERO.to_string())) {
        Err(ExportFault::Digest { computed, .. }) => line.replace("DIGEST", &computed.to_string()),
        other => panic!("an entry with another digest: {other:?}"),
    }
}

/// Trees that look like a batch of events, more or less.
fn batches() -> impl Strategy<Value = Value<'static>> {
    let text = |text: String| Value::String(Text::new(&text));
    let names = [
        "events",
        "event_id",
        "type",
        "payload",
        "schema_version",
        "actor_kind",
        "actor_id",
        "at",
        "body",
        "tool",
        "mutating",
        "phase",
        "furthest_milestone",
        "todos",
        "name",
        "verdict",
        "artifact",
        "digest",
        "x~/",
    ];
    let texts = prop_oneof![
        select(vec![
            "turn",
            "tool.called",
            "phase.changed",
            "todos.updated",
            "check.reported",
            "outcome.set",
            "agent",
            "human",
            "subagent",
            "",
            " ",
            "password=hunter2hunter2",
            "2026-01-31T09:30:00Z",
            "2099-01-31T09:30:00Z",
        ])
        .prop_map(str::to_owned),
        uuids(),
        digests(),
        ".{0,40}",
    ];
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        select(vec!["0", "1", "-1", "1.0", "1e2", "1E400", "9007199254740993"])
            .prop_map(|digits| Value::Number(digits.into())),
        texts.prop_map(text),
    ];
    let tree = scalar.prop_recursive(4, 40, 6, move |inner| {
        let member = (select(names.to_vec()), inner.clone());
        prop_oneof![
            vec(inner, 0..5).prop_map(Value::Array),
            vec(member, 0..6).prop_map(|members| {
                let mut kept: Vec<(Text<'static>, Value<'static>)> = Vec::new();
                for (name, value) in members {
                    if kept.iter().all(|(known, _)| known.as_str() != name) {
                        kept.push((Text::new(name), value));
                    }
                }
                Value::Object(kept)
            }),
        ]
    });
    let events =
        vec(tree.clone(), 0..4).prop_map(|events| Value::Object(vec![(Text::new("events"), Value::Array(events))]));
    prop_oneof![1 => tree, 2 => events]
}

proptest! {
    #[test]
    fn any_batch_is_read_or_refused_by_what_is_wrong_with_it(mut body in batches()) {
        let now = Timestamp::parse("2026-01-31T09:30:00Z").unwrap();
        let limits = BatchLimits { events: 3, payload_bytes: 200, spill_bytes: None };
        let mut next = 0_u128;
        let mut new_id = || {
            next += 1;
            Uuid::from_u128(next)
        };
        let batch = read_batch(&mut body, &[], limits, now, &mut new_id);
        match batch.events {
            Ok(events) => {
                prop_assert!((1..=3).contains(&events.len()));
                for event in events {
                    prop_assert!(event.payload.len() <= 200);
                    let payload = scan(event.payload.as_bytes()).unwrap();
                    prop_assert!(matches!(payload.value, Value::Object(_)), "{}", event.payload);
                    prop_assert_eq!(payload.value.to_text(), event.payload);
                    prop_assert!(event.at.is_none_or(|at| at <= now.plus(std::time::Duration::from_mins(5))));
                }
            }
            Err(Refusal::Invalid(faults)) => {
                prop_assert!(!faults.is_empty());
                for fault in faults {
                    let place = place(&fault);
                    let items = body.get("events").and_then(Value::as_array).unwrap_or_default();
                    let within = |at: usize| format!("{place}/").starts_with(&format!("/events/{at}/"));
                    let names = ["", "/events"].contains(&place.as_str()) || (0..items.len()).any(within);
                    prop_assert!(names && !fault.detail.is_empty(), "{:?}", fault);
                }
            }
            Err(Refusal::EventIdConflict(id)) => prop_assert!(batch.named_ids.contains(&id)),
            Err(Refusal::EventTypeReserved(fault)) => prop_assert!(place(&fault).ends_with("/type"), "{:?}", fault),
            Err(Refusal::PayloadTooLarge { what, limit }) => {
                prop_assert!(what.ends_with("/payload") && limit == 200, "{}", what);
            }
            Err(other) => prop_assert!(false, "{:?}", other),
        }
    }
}

/// Every closed set: its names are distinct, each is read as its value, and nothing else is.
macro_rules! closed_sets {
    ($($name:ident: $set:path;)+) => {$(
        proptest! {
            #[test]
            fn $name(text in given(select(<$set>::NAMES.to_vec()).prop_map(str::to_owned))) {
                prop_assert_eq!(<$set>::ALL.len(), <$set>::NAMES.len());
                let nth = <$set>::NAMES.iter().position(|name| *name == text);
                prop_assert_eq!(text.parse::<$set>().ok(), nth.map(|nth| <$set>::ALL[nth]));
                if let Some(nth) = nth {
                    prop_assert_eq!(<$set>::ALL[nth].to_string(), text.clone());
                    let json = serde_json::to_string(&<$set>::ALL[nth]).unwrap();
                    prop_assert_eq!(serde_json::from_str::<$set>(&json).ok(), Some(<$set>::ALL[nth]));
                } else {
                    // A refusal says what it could be.
                    let fault = text.parse::<$set>().unwrap_err().to_string();
                    prop_assert!(<$set>::NAMES.iter().all(|name| fault.contains(name)), "{}", fault);
                }
            }
        }
    )+};
}

closed_sets! {
    actor_kinds_are_a_closed_set: super::event::ActorKind;
    channels_are_a_closed_set: super::event::Channel;
    event_types_are_a_closed_set: super::event::EventType;
    outcomes_are_a_closed_set: super::outcome::Outcome;
    outcome_reasons_are_a_closed_set: super::outcome::OutcomeReason;
    roles_are_a_closed_set: super::principal::Role;
    request_kinds_are_a_closed_set: super::request::RequestKind;
    request_statuses_are_a_closed_set: super::request::RequestStatus;
    statuses_are_a_closed_set: super::status::Status;
    controls_are_a_closed_set: super::status::Control;
    state_reasons_are_a_closed_set: super::status::StateReason;
    cap_warnings_are_a_closed_set: super::usage::CapWarning;
}
