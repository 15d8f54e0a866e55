use crate::replay::text::{first_line, fit, json_length, shorten};

#[test]
fn the_length_is_that_of_the_json() {
    for text in ["", "plain", "\"\\/\n\r\t\u{8}\u{c}", "\u{1}\u{1f}\u{7f}\u{80}", "日本語 🚀", "\u{2028}"] {
        assert_eq!(json_length(text) + 2, serde_json::to_string(text).unwrap().len(), "{text:?}");
    }
}

#[test]
fn what_fits_stays_and_what_does_not_is_cut_with_a_note() {
    assert_eq!(fit("short", 100), "short");
    assert_eq!(fit(&"x".repeat(100), 100).len(), 100);
    for unit in ["x", "\"", "\u{1}", "é", "🚀"] {
        let text = unit.repeat(1_000);
        let cut = fit(&text, 300);
        assert!(json_length(&cut) <= 300, "{unit:?}");
        let (kept, note) = cut.split_once("\n[cut by the replay: the first ").unwrap();
        assert!(text.starts_with(kept) && !kept.is_empty());
        assert_eq!(note, format!("{} of {} bytes]", kept.len(), text.len()));
    }
}

#[test]
fn summaries_are_one_line() {
    assert_eq!(first_line("\n  \r\n  Found 3 matches:  \r\nmore", 200), "Found 3 matches:");
    assert_eq!(first_line(" \n", 200), "");
    assert_eq!(first_line(&"é".repeat(300), 200).chars().count(), 200);
    assert_eq!(shorten("abcd", 3), "ab…");
    assert_eq!(shorten("abc", 3), "abc");
}
