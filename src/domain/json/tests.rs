use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use serde::de::IgnoredAny;

use super::*;

fn parsed(text: &str) -> Value<'_> {
    let scanned = scan(text.as_bytes()).unwrap();
    assert_eq!(scanned.violations, [], "{text}");
    scanned.value
}

/// The violations of a document as (pointer, kind).
fn violations(bytes: &[u8]) -> Vec<(String, ViolationKind)> {
    scan(bytes).unwrap().violations.into_iter().map(|v| (v.pointer, v.kind)).collect()
}

fn one(pointer: &str, kind: ViolationKind) -> Vec<(String, ViolationKind)> {
    vec![(pointer.to_owned(), kind)]
}

#[test]
fn digits_keys_and_tokens_stay_as_they_were_sent() {
    let text = r#"{"n":10,"big":9007199254740993,"d":0.10,"e":1E400,"-0":-0.0e-0,"a\u00e9\/":"\u00e9\/é"}"#;
    assert_eq!(parsed(text).to_text(), text);
    let spaced = "\n{ \"n\" : [ 10 ,\t1.50 ] ,\r\n \"s\" : \" a b \" }\n ";
    assert_eq!(parsed(spaced).to_text(), r#"{"n":[10,1.50],"s":" a b "}"#);
}

#[test]
fn a_text_is_escaped_no_more_than_needed() {
    let text = "\u{1}\u{8}\t\n\u{b}\u{c}\r\u{1f}\"\\/ é\u{7f}\u{2028}";
    let token = "\"\\u0001\\b\\t\\n\\u000b\\f\\r\\u001f\\\"\\\\/ é\u{7f}\u{2028}\"";
    assert_eq!(Text::new(text).raw(), token);
    assert_eq!(parsed(token).canonical(), token);
}

#[test]
fn every_fault_of_content_is_listed_with_its_place() {
    use ViolationKind::{DuplicateKey, InvalidUtf8, LoneSurrogate, NullCharacter};
    assert_eq!(violations(br#"{"a":{"b":1,"c":2,"b":3}}"#), one("/a/b", DuplicateKey));
    assert_eq!(violations(br#"{"a":1,"\u0061":2}"#), one("/a", DuplicateKey));
    assert_eq!(violations(br#"{"a":["x",{"b":"y\u0000"}]}"#), one("/a/1/b", NullCharacter));
    assert_eq!(violations(br#"{"x":{"a\u0000":1}}"#), one("/x/a\u{fffd}", NullCharacter));
    assert_eq!(violations(br#"["\ud800"]"#), one("/0", LoneSurrogate));
    assert_eq!(violations(br#"["","\udc00\ud800"]"#), one("/1", LoneSurrogate));
    assert_eq!(violations(br#""\ud800\u0041""#), one("", LoneSurrogate));
    assert_eq!(violations(br#"{"\udfff":1}"#), one("/\u{fffd}", LoneSurrogate));
    assert_eq!(violations(b"[\"a\xff\"]"), one("/0", InvalidUtf8));
    assert_eq!(violations(b"[\"\\n\xe2\x82\"]"), one("/0", InvalidUtf8));
    assert_eq!(violations(b"{\"k\xc0\xaf\":0}"), one("/k\u{fffd}\u{fffd}", InvalidUtf8));
    assert_eq!(violations(br#"{"a/b~":{"":"\u0000"}}"#), one("/a~1b~0/", NullCharacter));
    let many = violations(b"{\"a\":\"\\u0000\xff\\ud800\",\"b\":[0,\"\\u0000\"]}");
    let expected = [("/a", NullCharacter), ("/a", LoneSurrogate), ("/a", InvalidUtf8), ("/b/1", NullCharacter)];
    assert_eq!(many, expected.map(|(pointer, kind)| (pointer.to_owned(), kind)));
    let shown = scan(br#"["\u0000"]"#).unwrap().violations.remove(0).to_string();
    assert_eq!(shown, "the character U+0000 at /0");
}

#[test]
fn a_fault_of_content_leaves_a_stand_in() {
    let scanned = scan(b"{\"a\":1,\"a\":2,\"b\":\"x\\u0000y\",\"c\":\"\\ud800\",\"d\":\"\xff\"}").unwrap();
    assert_eq!(scanned.value.to_text(), "{\"a\":1,\"b\":\"x\u{fffd}y\",\"c\":\"\u{fffd}\",\"d\":\"\u{fffd}\"}");
    assert_eq!(parsed(r#""\ud83d\ude00""#).as_str(), Some("😀"));
}

#[test]
fn nesting_ends_at_the_limit() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(violations(nested(NESTING_MAX).as_bytes()), []);
    let place = "/0".repeat(NESTING_MAX);
    for depth in [NESTING_MAX + 1, NESTING_MAX + 2, 100_000] {
        assert_eq!(violations(nested(depth).as_bytes()), one(&place, ViolationKind::TooDeep), "{depth}");
    }
    let within = |levels: usize, depth: usize| {
        let scanned = scan_enveloped(nested(depth).as_bytes(), levels).map(|scanned| scanned.violations.len());
        scanned.unwrap()
    };
    assert_eq!((within(3, NESTING_MAX + 3), within(3, NESTING_MAX + 4)), (0, 1));
    let objects = format!("{}[1,{{\"b\":\"\\u0000\"}}]{}", "{\"a\":".repeat(NESTING_MAX), "}".repeat(NESTING_MAX));
    let scanned = scan(objects.as_bytes()).unwrap();
    assert_eq!(scanned.violations.len(), 1);
    assert_eq!(scanned.violations[0].pointer, "/a".repeat(NESTING_MAX));
    assert_eq!(scanned.value.pointer(&scanned.violations[0].pointer), Some(&Value::Null));
    // What is skipped is still checked for its syntax.
    for inner in ["[1,]", "{\"a\"}", "{1:2}", "[\"\\x\"]", "[[}", "{\"a\":1]"] {
        let text = format!("{}{inner}{}", "[".repeat(NESTING_MAX), "]".repeat(NESTING_MAX));
        assert!(scan(text.as_bytes()).is_err(), "{inner}");
    }
}

#[test]
fn what_is_no_json_is_refused_with_its_place() {
    use SyntaxFault::*;
    let cases: [(&[u8], usize, SyntaxFault); 36] = [
        (b"", 0, Empty),
        (b" \n", 2, Empty),
        (b"\xef\xbb\xbf{}", 0, ByteOrderMark),
        (b"{} x", 3, TrailingText),
        (b"1 2", 2, TrailingText),
        (b"{", 1, UnexpectedEnd),
        (b"[1", 2, UnexpectedEnd),
        (b"[1,", 3, UnexpectedEnd),
        (b"{\"a\"", 4, UnexpectedEnd),
        (b"\"abc", 4, UnexpectedEnd),
        (b"\"abc\\", 5, UnexpectedEnd),
        (b"-", 1, UnexpectedEnd),
        (b"1.", 2, UnexpectedEnd),
        (b"[1,]", 3, ExpectedValue),
        (b"{\"a\":1,}", 7, ExpectedKey),
        (b"{a:1}", 1, ExpectedKey),
        (b"{\"a\" 1}", 5, ExpectedColon),
        (b"[1 2]", 3, ExpectedCommaOrEnd),
        (b"{\"a\":1]", 6, ExpectedCommaOrEnd),
        (b"[1}", 2, ExpectedCommaOrEnd),
        (b"NaN", 0, ExpectedValue),
        (b"Infinity", 0, ExpectedValue),
        (b"'a'", 0, ExpectedValue),
        (b"nul", 0, ExpectedValue),
        (b"truth", 0, ExpectedValue),
        (b"\xff", 0, ExpectedValue),
        (b"[\xff]", 1, ExpectedValue),
        (b"[01]", 2, LeadingZero),
        (b"-01", 2, LeadingZero),
        (b"+1", 0, ExpectedValue),
        (b".5", 0, ExpectedValue),
        (b"[1.e3]", 3, Number),
        (b"[1e]", 3, Number),
        (b"\"a\nb\"", 2, ControlCharacter),
        (b"\"\\x41\"", 1, Escape),
        (b"\"\\u00g0\"", 1, Escape),
    ];
    for (bytes, offset, fault) in cases {
        let error = scan(bytes).unwrap_err();
        let shown = String::from_utf8_lossy(bytes);
        assert_eq!((error.offset, error.fault), (offset, fault), "{shown}");
    }
    let error = scan(b"{\n  \"a\": 1,\n  b\n}").unwrap_err();
    assert_eq!((error.offset, error.line, error.column), (14, 3, 3));
    assert_eq!(error.to_string(), "expected a key in quotes at line 3, column 3");
}

#[test]
fn hostile_documents_are_answered_quickly() {
    let started = Instant::now();
    let mega = 1_000_000;
    assert_eq!(scan("[".repeat(mega).as_bytes()).unwrap_err().fault, SyntaxFault::UnexpectedEnd);
    assert_eq!(scan("{\"a\":".repeat(mega / 5).as_bytes()).unwrap_err().fault, SyntaxFault::UnexpectedEnd);
    let keys: Vec<_> = (0..100_000).map(|n| format!("\"k{n}\":{n}")).collect();
    assert_eq!(
        violations(format!("{{{},\"k7\":0}}", keys.join(",")).as_bytes()),
        one("/k7", ViolationKind::DuplicateKey)
    );
    let same = vec!["\"k\":0"; 100_000].join(",");
    assert_eq!(violations(format!("{{{same}}}").as_bytes()).len(), VIOLATIONS_MAX);
    // A long key above many violations does not multiply.
    let bad = vec!["\"\\u0000\""; 100_000].join(",");
    let long = format!("{{\"{}\":[{bad}]}}", "k".repeat(VIOLATION_POINTER_BYTES_MAX));
    assert_eq!(violations(long.as_bytes()).len(), 1);
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[test]
fn the_list_of_violations_ends_at_a_hundred_and_where_their_pointers_fill_its_room() {
    let listed = |key: usize, bad: usize| {
        let bad = vec!["\"\\u0000\""; bad].join(",");
        violations(format!("{{\"{}\":[{bad}]}}", "k".repeat(key)).as_bytes())
    };
    assert_eq!([99, 100, 101].map(|bad| listed(1, bad).len()), [99, 100, 100]);
    for key in [1_000, 5_000] {
        let (pointers, room) = (listed(key, 100), 65_536);
        let bytes: Vec<usize> = pointers.iter().map(|(pointer, _)| pointer.len()).collect();
        let (all, but_the_last) = (bytes.iter().sum::<usize>(), bytes[..bytes.len() - 1].iter().sum::<usize>());
        assert!(but_the_last < room && room <= all, "{but_the_last} {all}");
    }
}

#[test]
fn duplicates_are_found_among_few_keys_and_among_many() {
    for count in [1_usize, 15, 16, 17, 40] {
        for again in [0, count - 1] {
            let mut keys: Vec<_> = (0..count).map(|n| format!("\"k\\u00e9{n}\":{n}")).collect();
            keys.push(format!("\"ké{again}\":true"));
            let text = format!("{{{}}}", keys.join(","));
            let scanned = scan(text.as_bytes()).unwrap();
            assert_eq!(scanned.violations.len(), 1, "{text}");
            assert_eq!(scanned.violations[0].pointer, format!("/ké{again}"));
            assert_eq!(scanned.value.as_object().unwrap().len(), count);
        }
    }
}

#[test]
fn pointers_and_getters_find_their_value() {
    let value = parsed(r#"{"a":[10,{"b/c~d":"x"}],"":null,"t":true}"#);
    assert_eq!(value.pointer(""), Some(&value));
    assert_eq!(value.pointer("/a/0").map(Value::to_text).as_deref(), Some("10"));
    assert_eq!(value.pointer("/a/1/b~1c~0d").and_then(Value::as_str), Some("x"));
    assert_eq!(value.pointer("/"), Some(&Value::Null));
    for absent in ["a", "/a/2", "/a/00", "/a/-", "/a/+0", "/a/0/x", "/b", "/a/1/b~2", "/a/1/~", "/a/1/~é"] {
        assert_eq!(value.pointer(absent), None, "{absent}");
    }
    assert_eq!(escape_pointer_token("a~1/b"), "a~01~1b");
    assert_eq!(value.get("a").map(Value::kind_name), Some("array"));
    assert_eq!(value.get("a").and_then(Value::as_array).map(<[_]>::len), Some(2));
    assert_eq!(value.get("t"), Some(&Value::Bool(true)));
    assert_eq!(value.get("nothing"), None);
    assert_eq!(value.clone().into_owned(), value);
}

#[test]
fn the_canonical_text_forgets_order_space_and_spelling_only() {
    let one = parsed(r#"{"b":[1.0,"\u00e9\/\u001F\u000a"],"a":{"z":1,"\u0061":2}}"#);
    let other = parsed("{ \"a\": {\"a\":2, \"z\":1}, \"b\": [1.0, \"é/\\u001f\\n\"] }");
    assert_eq!(one.canonical(), other.canonical());
    assert_eq!(one.canonical(), "{\"a\":{\"a\":2,\"z\":1},\"b\":[1.0,\"é/\\u001f\\n\"]}");
    for different in [r#"{"a":1.0}"#, r#"{"a":1}"#, r#"{"a":[1,2]}"#, r#"{"a":[2,1]}"#, r#"{"a":"1"}"#] {
        assert_ne!(parsed(different).canonical(), one.canonical());
    }
    assert_ne!(parsed("[1,2]").canonical(), parsed("[2,1]").canonical());
    assert_ne!(parsed("1.0").canonical(), parsed("1").canonical());
}

/// Any value that can be kept.
fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let kept = |text: String| text.replace('\0', "0");
    let scalar = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        any::<String>().prop_map(move |text| kept(text).into()),
    ];
    scalar.prop_recursive(5, 60, 6, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Into::into),
            vec((".{0,3}".prop_map(kept), inner), 0..6)
                .prop_map(|members| members.into_iter().collect::<serde_json::Value>()),
        ]
    })
}

/// Bytes that look like JSON more often than arbitrary ones.
fn jsonish() -> impl Strategy<Value = Vec<u8>> {
    let fragments: Vec<&[u8]> = vec![
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\"",
        b"\\",
        b"\"a\"",
        b"\"b\":",
        b"\"a\":1",
        b"\\u0000",
        b"\\ud800",
        b"\\udc00",
        b"\\u0061",
        b"u",
        b"0",
        b"1",
        b"-",
        b"+",
        b".",
        b"e",
        b"E9",
        b"12",
        b"null",
        b"true",
        b"false",
        b" ",
        b"\n",
        b"\t",
        b"\x00",
        b"\x1f",
        b"\xff",
        b"\xc3\xa9",
        b"\xe2\x82",
        b"\xef\xbb\xbf",
        b"[1,2]",
        b"{}",
        b"[]",
        b"\"\"",
    ];
    vec(proptest::sample::select(fragments), 0..24).prop_map(|parts| parts.concat())
}

/// A valid document with one byte changed, removed or put in.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    (any_json(), any::<prop::sample::Index>(), any::<u8>(), 0..3).prop_map(|(value, at, byte, how)| {
        let mut bytes = value.to_string().into_bytes();
        let at = at.index(bytes.len());
        match how {
            0 => bytes[at] = byte,
            1 => drop(bytes.remove(at)),
            _ => bytes.insert(at, byte),
        }
        bytes
    })
}

/// Writes `value` with its members turned around, other spelling and much white space.
fn disguise(value: &Value<'_>, out: &mut String) {
    let spell = |text: &str| -> String {
        let units = text.encode_utf16().map(|unit| format!("\\u{unit:04X}"));
        format!("\"{}\"", units.collect::<String>())
    };
    out.push_str(" \n");
    match value {
        Value::String(text) => out.push_str(&spell(text.as_str())),
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                disguise(item, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            out.push('{');
            for (at, (key, item)) in members.iter().rev().enumerate() {
                out.push_str(if at > 0 { "\t,\t" } else { "" });
                out.push_str(&spell(key.as_str()));
                out.push_str(" :");
                disguise(item, out);
            }
            out.push('}');
        }
        scalar => out.push_str(&scalar.to_text()),
    }
    out.push('\t');
}

/// What must hold between this scanner and `serde_json`, whatever the bytes are.
fn agree(bytes: &[u8]) {
    let ours = scan(bytes);
    // Passing over a document, serde_json checks the grammar and nothing else: so do our syntax errors.
    assert_eq!(ours.is_ok(), serde_json::from_slice::<IgnoredAny>(bytes).is_ok(), "{bytes:?}");
    let Ok(scanned) = ours else { return };
    assert!(serde_json::from_str::<IgnoredAny>(&scanned.value.to_text()).is_ok());
    let content = |kind: ViolationKind| scanned.violations.iter().any(|v| v.kind == kind);
    match serde_json::from_slice::<serde_json::Value>(bytes) {
        // It keeps the last of two members, and U+0000; both are violations here.
        Ok(_) => assert!(!content(ViolationKind::LoneSurrogate) && !content(ViolationKind::InvalidUtf8)),
        // It refuses numbers beyond f64 and the 128th level, which are kept here.
        Err(error) => {
            let beyond = error.to_string();
            let kept = beyond.contains("number out of range") || beyond.contains("recursion limit");
            assert!(kept || !scanned.violations.is_empty(), "{error}: {bytes:?}");
        }
    }
}

proptest! {
    #[test]
    fn what_serde_json_writes_goes_round(value in any_json(), pretty in any::<bool>()) {
        let text = value.to_string();
        let sent = if pretty { serde_json::to_string_pretty(&value).unwrap() } else { text.clone() };
        let scanned = scan(sent.as_bytes()).unwrap();
        prop_assert_eq!(&scanned.violations, &[]);
        prop_assert_eq!(scanned.value.to_text(), text.clone());
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        prop_assert_eq!(read(&scanned.value.canonical()), read(&text));
    }

    #[test]
    fn to_text_and_canonical_are_their_own_fixed_points(value in any_json()) {
        let text = value.to_string();
        let scanned = scan(text.as_bytes()).unwrap().value;
        for again in [scanned.to_text(), scanned.canonical()] {
            prop_assert_eq!(scan(again.as_bytes()).unwrap().value.to_text(), again);
        }
        let canonical = scanned.canonical();
        prop_assert_eq!(scan(canonical.as_bytes()).unwrap().value.canonical(), canonical);
    }

    #[test]
    fn canonical_is_equal_under_every_disguise(value in any_json()) {
        let text = value.to_string();
        let plain = scan(text.as_bytes()).unwrap().value;
        let mut disguised = String::new();
        disguise(&plain, &mut disguised);
        let other = scan(disguised.as_bytes()).unwrap();
        prop_assert_eq!(&other.violations, &[]);
        prop_assert_eq!(plain.canonical(), other.value.canonical());
    }

    #[test]
    fn arbitrary_bytes_agree_with_serde_json(bytes in vec(any::<u8>(), 0..64)) {
        agree(&bytes);
    }

    #[test]
    fn jsonish_bytes_agree_with_serde_json(bytes in jsonish()) {
        agree(&bytes);
    }

    #[test]
    fn damaged_documents_agree_with_serde_json(bytes in damaged()) {
        agree(&bytes);
    }

    #[test]
    fn a_new_text_means_what_it_was_made_of(text in any::<String>()) {
        let made = Text::new(&text);
        prop_assert_eq!(made.as_str(), text.as_str());
        prop_assert_eq!(serde_json::from_str::<String>(made.raw()).unwrap(), text.clone());
    }
}
