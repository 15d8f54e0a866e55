use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;

use super::tests::{redacted, tokens};
use super::*;
use crate::domain::json::{ViolationKind, scan};

/// Texts in which everything that redaction looks at meets everything else.
fn hostile_text() -> impl Strategy<Value = String> {
    let parts = [
        "password",
        "token",
        "Authorization",
        "cookie",
        "api_key",
        "SECRET_KEY",
        "--token",
        "Bearer ",
        "Basic ",
        "https://u:",
        "://",
        "@",
        ":",
        "=",
        " = ",
        ": ",
        "\"",
        "'",
        "\\\"",
        "\\",
        "\\n",
        "\n",
        " ",
        ", ",
        "-",
        "_",
        ".",
        "[",
        "(",
        "{",
        "$",
        "+",
        "hunter22",
        "a1b2c3d4e5f6",
        "QWxhZGRpbjpvcGVuIHNlc2FtZQ==",
        "abcd",
        "[redacted]",
        "redacted",
        "%3D",
        "é",
        "😀",
        "n",
        "-----BEGIN PRIVATE KEY-----",
        "-----END PRIVATE KEY-----",
        "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC",
        "sha256:",
        "x=y; z=w",
    ];
    let part = prop_oneof![
        4 => select(parts.to_vec()).prop_map(str::to_owned),
        2 => select(tokens()),
        1 => any::<String>(),
    ];
    vec(part, 0..12).prop_map(|parts| parts.concat())
}

/// Any tree, its strings and keys hostile.
fn hostile_tree() -> impl Strategy<Value = Value<'static>> {
    let scalar = prop_oneof![
        Just(Value::Null),
        Just(Value::Number("1E400".into())),
        hostile_text().prop_map(|text| Value::String(Text::new(&text))),
    ];
    let key =
        prop_oneof![hostile_text(), select(vec!["password", "x", "Api-Key"]).prop_map(str::to_owned), select(tokens())];
    scalar.prop_recursive(4, 24, 5, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::Array),
            btree_map(key.clone(), inner, 0..5).prop_map(|members| {
                Value::Object(members.into_iter().map(|(key, value)| (Text::new(&key), value)).collect())
            }),
        ]
    })
}

proptest! {
    #[test]
    fn redacting_a_text_twice_changes_nothing(text in hostile_text()) {
        if let Some(once) = redact_text(&text) {
            prop_assert_eq!(redact_text(&once), None, "{}", once);
        }
    }

    #[test]
    fn any_text_is_read_without_panic(text in any::<String>()) {
        redact_text(&text);
    }

    #[test]
    fn no_token_survives(before in "[ -~é]{0,20}", token in select(tokens()), after in "[ -~é]{0,20}") {
        let text = format!("{before} {token} {after}");
        prop_assert!(!redacted(&text).contains(&token), "{}", text);
    }

    #[test]
    fn redacting_a_tree_twice_changes_nothing(tree in hostile_tree()) {
        let mut once = tree.clone();
        let places = redact(&mut once);
        prop_assert_eq!(places.is_empty(), once == tree);
        for place in &places {
            prop_assert!(once.pointer(place).is_some(), "{}", place);
        }
        let mut twice = once.clone();
        prop_assert_eq!(redact(&mut twice), [""; 0]);
        prop_assert_eq!(&twice, &once);
        // Still JSON, with the numbers it had and no key twice.
        let text = once.to_text();
        let again = scan(text.as_bytes()).unwrap();
        prop_assert!(again.violations.iter().all(|v| v.kind == ViolationKind::NullCharacter));
    }
}
