//! A lossless JSON tree: what was sent can be written again digit by digit, key by key.
//!
//! [`scan`] reads a document in one pass and tells two kinds of faults apart: a [`SyntaxError`] ends the scan, because
//! the text is no JSON; a [`Violation`] is valid JSON that cannot be kept (duplicate keys, U+0000, lone surrogates,
//! invalid UTF-8, endless nesting) and is listed with its place.

mod fault;
mod scan;
mod string;
#[cfg(test)]
mod tests;
mod text;
mod write;

use std::borrow::Cow;

pub use fault::{SyntaxError, SyntaxFault, Violation, ViolationKind};
pub use scan::{NESTING_MAX, Scanned, VIOLATION_POINTER_BYTES_MAX, VIOLATIONS_MAX, scan, scan_enveloped};
pub use text::Text;

/// One JSON value. Numbers keep their text, strings their token, objects the order of their keys.
///
/// Equality is equality of what was sent (white space apart); compare [`Value::canonical`] where the order of keys and
/// the spelling of strings must not matter. A tree that [`scan`] made is at most [`NESTING_MAX`] deep (and the
/// levels of its envelope), which is what lets its methods recurse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, exactly as sent; any number that RFC 8259 allows.
    Number(Cow<'a, str>),
    /// A string.
    String(Text<'a>),
    /// An array.
    Array(Vec<Value<'a>>),
    /// An object: its members in the order in which they were sent, no key twice.
    Object(Vec<(Text<'a>, Value<'a>)>),
}

impl<'a> Value<'a> {
    /// The member `key` of an object.
    pub fn get(&self, key: &str) -> Option<&Value<'a>> {
        self.as_object()?.iter().find(|(name, _)| name.as_str() == key).map(|(_, value)| value)
    }

    /// The unescaped text of a string.
    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(text) = self { Some(text.as_str()) } else { None }
    }

    /// The elements of an array.
    pub fn as_array(&self) -> Option<&[Value<'a>]> {
        if let Self::Array(items) = self { Some(items) } else { None }
    }

    /// The members of an object.
    pub fn as_object(&self) -> Option<&[(Text<'a>, Value<'a>)]> {
        if let Self::Object(members) = self { Some(members) } else { None }
    }

    /// What kind of value this is, for messages: `null`, `boolean`, `number`, `string`, `array` or `object`.
    pub fn kind_name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "boolean",
            Self::Number(_) => "number",
            Self::String(_) => "string",
            Self::Array(_) => "array",
            Self::Object(_) => "object",
        }
    }

    /// The value at an RFC 6901 pointer; `None` where there is none or the pointer is malformed.
    pub fn pointer(&self, pointer: &str) -> Option<&Value<'a>> {
        if pointer.is_empty() {
            return Some(self);
        }
        pointer.strip_prefix('/')?.split('/').try_fold(self, |value, token| match value {
            Self::Array(items) => items.get(array_index(token)?),
            Self::Object(_) => value.get(&unescape_pointer_token(token)?),
            _ => None,
        })
    }

    /// The same value, borrowing nothing.
    pub fn into_owned(self) -> Value<'static> {
        match self {
            Self::Null => Value::Null,
            Self::Bool(flag) => Value::Bool(flag),
            Self::Number(digits) => Value::Number(Cow::Owned(digits.into_owned())),
            Self::String(text) => Value::String(text.into_owned()),
            Self::Array(items) => Value::Array(items.into_iter().map(Value::into_owned).collect()),
            Self::Object(members) => {
                Value::Object(members.into_iter().map(|(key, value)| (key.into_owned(), value.into_owned())).collect())
            }
        }
    }
}

/// Escapes a key for its use as one token of an RFC 6901 pointer.
pub fn escape_pointer_token(key: &str) -> Cow<'_, str> {
    if key.contains(['~', '/']) { Cow::Owned(key.replace('~', "~0").replace('/', "~1")) } else { Cow::Borrowed(key) }
}

/// `None` for a `~` that is followed by neither `0` nor `1`.
fn unescape_pointer_token(token: &str) -> Option<Cow<'_, str>> {
    if !token.contains('~') {
        return Some(Cow::Borrowed(token));
    }
    let mut parts = token.split('~');
    let mut key = parts.next()?.to_owned();
    for part in parts {
        let (escaped, rest) = (part.as_bytes().first()?, part.get(1..)?);
        key.push(match escaped {
            b'0' => '~',
            b'1' => '/',
            _ => return None,
        });
        key.push_str(rest);
    }
    Some(Cow::Owned(key))
}

/// An index has one spelling: digits without a leading zero.
fn array_index(token: &str) -> Option<usize> {
    let plain = token == "0" || (!token.starts_with('0') && token.bytes().all(|b| b.is_ascii_digit()));
    if plain { token.parse().ok() } else { None }
}
