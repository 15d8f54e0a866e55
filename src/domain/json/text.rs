//! The strings of a JSON document: the token that was sent beside the text that it means.

use std::borrow::Cow;

/// A string or a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text<'a> {
    raw: Cow<'a, str>,
    text: Cow<'a, str>,
}

impl Text<'static> {
    /// The string that means `text`, escaped no more than needed.
    pub fn new(text: &str) -> Self {
        let mut raw = String::new();
        write_escaped(text, &mut raw);
        Self { raw: Cow::Owned(raw), text: Cow::Owned(text.to_owned()) }
    }
}

impl<'a> Text<'a> {
    /// A token that stands for itself: quotes around text without escapes.
    pub(super) fn plain(raw: &'a str) -> Self {
        let text = raw.get(1..raw.len().saturating_sub(1)).unwrap_or_default();
        Self { raw: Cow::Borrowed(raw), text: Cow::Borrowed(text) }
    }

    /// A token beside its unescaped text.
    pub(super) fn escaped(raw: &'a str, text: String) -> Self {
        Self { raw: Cow::Borrowed(raw), text: Cow::Owned(text) }
    }

    /// The text that the token means, unescaped.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The token as it was sent, quotes included.
    pub fn raw(&self) -> &str {
        &self.raw
    }

    /// The text, sharing what is borrowed already.
    pub(super) fn share(&self) -> Cow<'a, str> {
        self.text.clone()
    }

    /// The same string, borrowing nothing.
    pub fn into_owned(self) -> Text<'static> {
        Text { raw: Cow::Owned(self.raw.into_owned()), text: Cow::Owned(self.text.into_owned()) }
    }
}

/// Appends the one minimal token for `text`: only quotes, backslashes and control characters are escaped.
pub(super) fn write_escaped(text: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(text).to_string());
}
