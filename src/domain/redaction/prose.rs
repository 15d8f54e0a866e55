//! Secrets that running text gives away: `password=…`, `Authorization: …`, `Bearer …`, `https://user:…@host`.
//!
//! The text may be prose, source code, a log, or JSON within a string. It is read here with more doubt than a JSON
//! member is: the name of a variable, a type, a placeholder or a call is no secret.

use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

use super::REDACTED;
use super::keys::{is_common_word, is_one_of, is_secret_name};

#[cfg(test)]
mod tests;

/// One of these stands in every secret name.
pub(super) const NAME_CUES: &[&str] = &[
    "pass",
    "pwd",
    "secret",
    "token",
    "key",
    "credential",
    "authorization",
    "cookie",
    "connection",
    "signature",
    "github",
    "auth",
    "middleware",
    "config",
    "code",
    "phrase",
];
/// Longer words are no names.
const NAME_MAX: usize = 64;
/// A value is judged by so many of its bytes.
const JUDGED_MAX: usize = 80;
/// The words that may stand before the credentials of an authorization header.
const SCHEMES: &[&str] = &["bearer", "basic", "token", "apikey", "negotiate", "ntlm"];
/// Values that say that there is none.
const NOTHING: &[&str] =
    &["none", "null", "nil", "true", "false", "undefined", "empty", "string", "required", "optional"];

/// How a value stands in its text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    /// In quotes: a literal.
    Quoted,
    /// As a shell would have it, `NAME=value`: a literal too.
    Shell,
    /// Otherwise, where a variable or a type can stand as well.
    Bare,
}

/// The value of an assignment whose name holds the cue at `cue`. Answers where to read on.
pub(super) fn assignment(text: &str, cue: Range<usize>, found: &mut Vec<Range<usize>>) -> usize {
    let bytes = text.as_bytes();
    let left = bytes[..cue.start].iter().rev().take(NAME_MAX).take_while(|b| is_name_byte(**b)).count();
    let right = bytes[cue.end..].iter().take(NAME_MAX).take_while(|b| is_name_byte(**b)).count();
    let (mut start, end) = (cue.start - left, cue.end + right);
    if start < cue.start && is_escape(bytes, start) {
        start += 1;
    }
    let name = &text[start..end];
    // A path is no name, and what hangs on a hidden token was read as a part of it.
    if !is_secret_name(name) || text[..start].ends_with('/') || text[..start].ends_with(REDACTED) {
        return end;
    }
    let Some(at) = value_start(bytes, start, end) else { return end };
    let (from, quote) = opening_quote(bytes, at);
    if is_one_of(name, &["cookie", "setcookie"])
        && let Some(secret) = cookies(text, from)
    {
        found.push(secret.clone());
        return secret.end;
    }
    if let Some(start) = after_scheme(text, from) {
        found.extend(scheme_credentials(bytes, start));
        return end;
    }
    // Judging by the beginning keeps a text that repeats a name from being read again and again.
    let judged = &bytes[..bytes.len().min(from + JUDGED_MAX)];
    let to = value_end(judged, from, quote);
    let all_capitals = name.bytes().any(|b| b.is_ascii_uppercase()) && !name.bytes().any(|b| b.is_ascii_lowercase());
    let written = match quote {
        Some(_) => Written::Quoted,
        None if all_capitals && at == end + 1 && bytes[end] == b'=' => Written::Shell,
        None => Written::Bare,
    };
    if !is_secret(&bytes[from..to], written, is_common_word(name)) || !stands_alone(bytes, to, quote) {
        return end;
    }
    let to = value_end(bytes, from, quote);
    found.push(from..to);
    to
}

/// The credentials after the word `Bearer` or `Basic` that stands at `cue`.
pub(super) fn scheme(text: &str, cue: Range<usize>, found: &mut Vec<Range<usize>>) {
    let bytes = text.as_bytes();
    let from = skip_blanks(bytes, cue.end);
    let is_word = |at: usize| bytes[at].is_ascii_alphanumeric() || bytes[at] == b'_';
    let inside_word = cue.start > 0 && is_word(cue.start - 1) && !is_escape(bytes, cue.start - 1);
    if from == cue.end || inside_word {
        return;
    }
    let to = credentials_end(bytes, from);
    let credentials = &bytes[from..to];
    let secret = if text[cue].eq_ignore_ascii_case("basic") {
        is_basic(credentials)
    } else {
        credentials.len() >= 12 && is_mixed(credentials) && !is_digest(credentials)
    };
    if secret && stands_alone(bytes, to, None) {
        found.push(from..to);
    }
}

/// The password of a URL whose `://` is at `cue`.
pub(super) fn url_password(text: &str, cue: Range<usize>, found: &mut Vec<Range<usize>>) {
    let rest = &text[cue.end..];
    let ends = |c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"' | '\'' | '`' | '<' | '>' | '\\' | '|');
    let authority = rest.split(ends).next().unwrap_or_default();
    let Some((userinfo, _)) = authority.rsplit_once('@') else { return };
    let Some((user, password)) = userinfo.split_once(':') else { return };
    // `[user[:password]@]host` describes what URLs look like.
    if !user.contains('[') && !is_placeholder(password.as_bytes()) {
        let from = cue.end + user.len() + 1;
        found.push(from..from + password.len());
    }
}

/// Where the value begins after a name, its closing quote, its bracket and a separator.
fn value_start(bytes: &[u8], start: usize, end: usize) -> Option<usize> {
    let (mut at, _) = opening_quote(bytes, end);
    let quoted_name = at > end;
    if quoted_name && bytes.get(at) == Some(&b']') {
        at += 1;
    }
    let blank = skip_blanks(bytes, at);
    let after = |length: usize| Some(skip_blanks(bytes, blank + length));
    match bytes.get(blank..)? {
        [b':', b'=', ..] | [b'=', b'>', ..] => after(2),
        [b'=', b'=' | b'~', ..] | [b':', b':', ..] => None,
        [b'=' | b':', ..] => after(1),
        // An option of a command: `--password …`.
        [_, ..] if blank > at && bytes[start..].starts_with(b"--") => Some(blank),
        _ => None,
    }
}

/// The place after the quote that may begin at `at`, and the quote. It may be escaped, and follow the letter that
/// some languages put before a literal.
fn opening_quote(bytes: &[u8], at: usize) -> (usize, Option<u8>) {
    let prefixed =
        matches!(bytes.get(at..), Some([b'b' | b'B' | b'r' | b'R' | b'u' | b'U' | b'f' | b'F', b'"' | b'\'', ..]));
    let quote = skip_backslashes(bytes, at + usize::from(prefixed));
    match bytes.get(quote) {
        Some(b @ (b'"' | b'\'' | b'`')) => (quote + 1, Some(*b)),
        _ => (at, None),
    }
}

fn value_end(bytes: &[u8], from: usize, quote: Option<u8>) -> usize {
    let Some(quote) = quote else {
        let length = bytes[from..].iter().take_while(|b| is_bare_byte(**b)).count();
        // A full stop belongs to the sentence.
        let stops = bytes[from..from + length].iter().rev().take_while(|b| **b == b'.').count();
        return from + length - stops;
    };
    let mut at = from;
    while let Some(byte) = bytes.get(at) {
        let escaped = skip_backslashes(bytes, at);
        if *byte == quote || byte.is_ascii_whitespace() || bytes.get(escaped) == Some(&quote) {
            break;
        }
        at = escaped.max(at + 1);
    }
    at
}

/// Whether nothing follows the value that makes it a part of something else: a call, an index, a quoted sentence.
fn stands_alone(bytes: &[u8], to: usize, quote: Option<u8>) -> bool {
    let stops = bytes[to..].iter().take_while(|b| **b == b'.').count();
    match (bytes.get(to + stops), quote) {
        (Some(b'(' | b'[' | b'{'), None) => false,
        (Some(byte), Some(_)) => !byte.is_ascii_whitespace(),
        _ => true,
    }
}

/// Where the credentials begin if a header's value begins with `Bearer` or its like.
fn after_scheme(text: &str, from: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let word = bytes[from..].iter().take(NAME_MAX).take_while(|b| is_name_byte(**b)).count();
    let start = skip_blanks(bytes, from + word);
    (start > from + word && is_one_of(&text[from..from + word], SCHEMES)).then_some(start)
}

/// The credentials of a header, if they look like some: after its name and scheme there is little doubt.
fn scheme_credentials(bytes: &[u8], start: usize) -> Option<Range<usize>> {
    let end = credentials_end(bytes, start);
    let credentials = &bytes[start..end];
    let long = credentials.len() >= 20 || (credentials.len() >= 8 && credentials.iter().any(u8::is_ascii_digit));
    let secret = (long || is_basic(credentials)) && !is_placeholder(credentials);
    (secret && stands_alone(bytes, end, None)).then_some(start..end)
}

/// All of `name=value; name=value`, if that is what begins at `from`.
fn cookies(text: &str, from: usize) -> Option<Range<usize>> {
    let bytes = &text.as_bytes()[from..];
    let name = bytes.iter().take_while(|b| is_name_byte(**b) || **b == b'.').count();
    if name == 0
        || !matches!(bytes.get(name..), Some([b'=', value, ..]) if *value != b'=' && !value.is_ascii_whitespace())
    {
        return None;
    }
    let ends = |c: char| matches!(c, '\r' | '\n' | '"' | '\'' | '`' | '\\');
    let line = text[from..].split(ends).next().unwrap_or_default();
    Some(from..from + line.trim_end().len())
}

/// Whether a value that follows a secret name is a secret.
fn is_secret(value: &[u8], written: Written, common_word: bool) -> bool {
    // A quote can also end the text that the name stands in: `"password=" + value + "&"`.
    let outside = matches!(value, [b')' | b',' | b';' | b':' | b']' | b'}' | b'>', ..] | [b'+', .., b'+']);
    if is_placeholder(value) || is_place(value) || (written == Written::Quoted && outside) {
        return false;
    }
    if !common_word && written != Written::Bare {
        return value.len() >= 4 && (written == Written::Quoted || !is_path_of_names(value));
    }
    let literal = written == Written::Quoted || !is_path_of_names(value);
    let long = value.len() >= if common_word { 8 } else { 6 };
    long && literal && is_mixed(value) && !(common_word && is_digest(value))
}

/// A path or a URL, which names where something is: `PWD=/home/a1`, `private_key: ~/.ssh/id_ed25519`. A Base64 text
/// may begin with a slash as well, but hardly goes on like a folder.
fn is_place(value: &[u8]) -> bool {
    let folder = value.strip_prefix(b"/").map(|rest| rest.iter().take_while(|b| b.is_ascii_lowercase()).count());
    let absolute = folder.is_some_and(|length| length >= 2 && matches!(value.get(length + 1), None | Some(b'/')));
    absolute || [&b"~/"[..], b"./", b"../"].iter().any(|start| value.starts_with(start)) || holds(value, "://")
}

fn holds(value: &[u8], part: &str) -> bool {
    value.windows(part.len()).any(|window| window == part.as_bytes())
}

/// What stands for a secret without being one: a variable, a mask, a word for nothing.
fn is_placeholder(value: &[u8]) -> bool {
    let format = matches!(value, [b'%', b's' | b'd' | b'v' | b'(', ..] | [b'%', .., b'%']);
    let is_mask = value.iter().all(|b| matches!(b, b'*' | b'.' | b'-' | b'x' | b'X' | b'_' | b'#'));
    let nothing = NOTHING.iter().any(|word| value.eq_ignore_ascii_case(word.as_bytes()));
    let starts_like_one = matches!(value, [] | [b'$' | b'<' | b'{' | b'[' | b'*', ..]);
    starts_like_one || format || is_mask || nothing || ["${", "{{", REDACTED].iter().any(|part| holds(value, part))
}

/// Letters and digits together: what words and numbers hardly are.
fn is_mixed(value: &[u8]) -> bool {
    value.iter().any(u8::is_ascii_digit) && value.iter().any(u8::is_ascii_alphabetic)
}

/// A digest, a commit id or a UUID: 32, 40 or 64 hexadecimal digits, or anything after the name of a hash.
fn is_digest(value: &[u8]) -> bool {
    let digits = value.iter().filter(|b| **b != b'-');
    let length = digits.clone().count();
    let hex = digits.clone().all(u8::is_ascii_hexdigit) && matches!(length, 32 | 40 | 64);
    hex || [b"sha", b"SHA", b"md5"].iter().any(|hash| value.starts_with(*hash) && value.contains(&b':'))
}

/// `settings.token2`: a path of names as source code has them.
fn is_path_of_names(value: &[u8]) -> bool {
    let is_name = |part: &[u8]| {
        part.first().is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_')
            && part.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
    };
    value.contains(&b'.') && value.split(|b| *b == b'.').all(is_name)
}

/// Whether `value` is `user:password` in Base64.
fn is_basic(value: &[u8]) -> bool {
    let unpadded = value.strip_suffix(b"==").or(value.strip_suffix(b"=")).unwrap_or(value);
    let decoded = STANDARD_NO_PAD.decode(unpadded).or_else(|_| URL_SAFE_NO_PAD.decode(unpadded));
    let text = decoded.ok().and_then(|bytes| String::from_utf8(bytes).ok());
    text.is_some_and(|text| text.contains(':') && !text.contains(char::is_control))
}

fn credentials_end(bytes: &[u8], from: usize) -> usize {
    let is_part = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~' | b'+' | b'/' | b'=');
    let length = bytes[from..].iter().take_while(|b| is_part(**b)).count();
    let stops = bytes[from..from + length].iter().rev().take_while(|b| **b == b'.').count();
    from + length - stops
}

fn skip_blanks(bytes: &[u8], at: usize) -> usize {
    at + bytes[at..].iter().take_while(|b| matches!(b, b' ' | b'\t')).count()
}

fn skip_backslashes(bytes: &[u8], at: usize) -> usize {
    at + bytes[at..].iter().take_while(|b| **b == b'\\').count()
}

/// Whether the letter at `at` ends an escape sequence, as line breaks do in a JSON text within a string.
fn is_escape(bytes: &[u8], at: usize) -> bool {
    at > 0 && bytes[at - 1] == b'\\' && matches!(bytes[at], b'n' | b'r' | b't')
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

/// What a value without quotes may hold.
fn is_bare_byte(byte: u8) -> bool {
    !byte.is_ascii_whitespace() && !b"\"'`\\,;&<>()[]{}|".contains(&byte)
}
