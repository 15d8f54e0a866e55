//! Cutting text to size.

use std::borrow::Cow;

/// How many bytes the text takes within the quotes of a JSON string.
pub fn json_length(text: &str) -> usize {
    text.chars().map(escaped_length).sum()
}

fn escaped_length(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        other => other.len_utf8(),
    }
}

/// The text, cut to at most `bytes` of JSON with a note that says so.
pub fn fit(text: &str, bytes: usize) -> Cow<'_, str> {
    let length = json_length(text);
    if length <= bytes {
        return Cow::Borrowed(text);
    }
    // The longest note is as long as the one that keeps nothing.
    let rest = bytes.saturating_sub(json_length(&note(text.len(), text.len())));
    let mut taken = 0;
    let kept = text.char_indices().find_map(|(at, character)| {
        taken += escaped_length(character);
        (taken > rest).then_some(at)
    });
    let kept = kept.unwrap_or(text.len());
    Cow::Owned(format!("{}{}", &text[..kept], note(kept, text.len())))
}

fn note(kept: usize, whole: usize) -> String {
    format!("\n[cut by the replay: the first {kept} of {whole} bytes]")
}

/// The first line that is not blank, of at most `characters`.
pub fn first_line(text: &str, characters: usize) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    shorten(line, characters)
}

/// The text, or its beginning with an ellipsis: at most `characters`.
pub fn shorten(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    text.chars().take(characters.saturating_sub(1)).chain(['…']).collect()
}
