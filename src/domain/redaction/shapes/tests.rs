use crate::domain::redaction::REDACTED;
use crate::domain::redaction::tests::{kept, opaque, redacted};

#[test]
fn words_joined_by_hyphens_are_no_token() {
    for text in [
        // A long word, and a long number.
        "sk-internationalization-guide",
        "sk-build-20260131093000",
        // Words and numbers together are short.
        "sk-Sprint42-Release7-Notes",
        // However many there are of them.
        "pypi-release-2026-trusted-publishing-with-oidc-and-attestations",
        "sk-The-Guide-To-Words-That-Are-Joined-By-Many-Hyphens",
        "sk-the-guide-to-words-that-are-joined-by-many-hyphens",
    ] {
        kept(text);
    }
}

#[test]
fn what_is_mixed_more_than_words_is_a_token() {
    // One part that is no word is enough.
    assert_eq!(redacted(&format!("sk-proj-{}", opaque(12))), REDACTED);
    // Base64 for URLs may hold so many hyphens that every part is short.
    assert_eq!(redacted(&format!("sk-{}", [opaque(11).as_str(); 4].join("-"))), REDACTED);
}
