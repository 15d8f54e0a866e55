//! Secrets are taken out before anything is stored: values under the names of [`SECRET_NAMES`], and known token shapes
//! in any string.
//!
//! Digests, UUIDs, commit ids and counters are never touched. Redaction is idempotent: what was redacted once stays as
//! it is.

mod keys;
#[cfg(test)]
mod properties;
mod prose;
mod shapes;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::ops::Range;
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind};

use super::json::{Text, Value, escape_pointer_token};

pub use keys::{SECRET_NAMES, is_secret_name};

/// What stands in the place of a secret.
pub const REDACTED: &str = "[redacted]";
/// How many places are listed one by one.
pub const POINTERS_MAX: usize = 1_000;
/// How many bytes their pointers may fill together: one long key that all of them share must not multiply the size of
/// the document.
pub const POINTER_BYTES_MAX: usize = 64 * 1024;
/// No shorter text holds a secret that can be told from other text.
const TEXT_MIN: usize = 8;
/// How often a text is read while there is still something to hide; hardly any takes more than two.
const PASSES_MAX: usize = 8;

/// Redacts a tree and answers the JSON pointers of what was replaced, in document order.
///
/// The value under a secret name is replaced as a whole, whatever it is, except null. In other strings and in keys only
/// the secrets themselves are replaced; pointers name keys as they are afterwards. Where more is replaced than
/// [`POINTERS_MAX`] and [`POINTER_BYTES_MAX`] let be listed, the last pointer is that of the whole document.
pub fn redact(value: &mut Value<'_>) -> Vec<String> {
    let mut redaction = Redaction::default();
    redaction.value(value);
    redaction.places
}

/// Redacts a text; `None` when there is nothing to hide.
pub fn redact_text(text: &str) -> Option<String> {
    if text.len() < TEXT_MIN {
        return None;
    }
    let mut redacted = redact_once(text)?;
    // What stood beside a secret may look like one when it stands beside the marker. That ends by itself, because each
    // pass leaves less outside of markers; the limit keeps even a text made for it from costing more.
    for _ in 1..PASSES_MAX {
        match redact_once(&redacted) {
            Some(again) => redacted = again,
            None => break,
        }
    }
    Some(redacted)
}

/// Whether a text holds a token by its shape. For keys, which are kept as they were sent and may not hold one.
pub fn holds_token(text: &str) -> bool {
    let is_cue = |hit: aho_corasick::Match| match CUES.get(hit.pattern().as_usize()) {
        Some((_, Cue::Token(cue))) => text[hit.range()] == **cue,
        _ => false,
    };
    let mut found = Vec::new();
    if FINDER.find_overlapping_iter(text).any(is_cue) {
        shapes::find(text, &mut found);
    }
    !found.is_empty()
}

fn redact_once(text: &str) -> Option<String> {
    let mut secrets = find(text);
    if secrets.is_empty() {
        return None;
    }
    secrets.sort_unstable_by_key(|secret| secret.start);
    let mut redacted = String::with_capacity(text.len());
    let mut end = 0;
    for secret in secrets {
        // Secrets that touch or overlap, such as a token within a header, are one.
        if secret.start > end || redacted.is_empty() {
            redacted.push_str(&text[end..secret.start]);
            redacted.push_str(REDACTED);
        }
        end = end.max(secret.end);
    }
    redacted.push_str(&text[end..]);
    Some(redacted)
}

/// What a literal that was found in a text calls for.
#[derive(Clone, Copy)]
enum Cue {
    /// It may be a part of a secret name.
    Name,
    /// `Bearer` or `Basic`.
    Scheme,
    /// The `://` of a URL.
    Url,
    /// It may be a part of a token, if it is spelled just so.
    Token(&'static str),
}

static CUES: LazyLock<Vec<(&'static str, Cue)>> = LazyLock::new(|| {
    let names = prose::NAME_CUES.iter().map(|cue| (*cue, Cue::Name));
    let tokens = shapes::cues().map(|cue| (cue, Cue::Token(cue)));
    let others = [("bearer", Cue::Scheme), ("basic", Cue::Scheme), ("://", Cue::Url)];
    names.chain(tokens).chain(others).collect()
});

/// One pass over a text finds all cues, so that text without them, which is most of it, costs no more.
static FINDER: LazyLock<AhoCorasick> = LazyLock::new(|| {
    let cues = CUES.iter().map(|(cue, _)| cue);
    let finder = AhoCorasick::builder().ascii_case_insensitive(true).kind(Some(AhoCorasickKind::DFA)).build(cues);
    finder.expect("the cues are constants, and every test of redaction compiles them")
});

/// The places of all secrets, which may overlap, in no order.
fn find(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let (mut tokens, mut read) = (false, 0);
    for hit in FINDER.find_overlapping_iter(text) {
        match CUES.get(hit.pattern().as_usize()) {
            // A name may hold several cues.
            Some((_, Cue::Name)) if hit.start() >= read => read = prose::assignment(text, hit.range(), &mut found),
            Some((_, Cue::Scheme)) => prose::scheme(text, hit.range(), &mut found),
            Some((_, Cue::Url)) => prose::url_password(text, hit.range(), &mut found),
            Some((_, Cue::Token(cue))) => tokens |= text[hit.range()] == **cue,
            Some((_, Cue::Name)) | None => {}
        }
    }
    if tokens {
        shapes::find(text, &mut found);
    }
    found
}

/// A walk over a tree.
#[derive(Default)]
struct Redaction {
    /// The pointer of the present place.
    path: String,
    places: Vec<String>,
    /// The length of all of them.
    bytes: usize,
    /// More was replaced than is listed.
    unlisted: bool,
}

impl Redaction {
    fn value(&mut self, value: &mut Value<'_>) {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
            Value::String(text) => {
                if let Some(redacted) = redact_text(text.as_str()) {
                    *text = Text::new(&redacted);
                    self.note();
                }
            }
            Value::Array(items) => {
                for (at, item) in items.iter_mut().enumerate() {
                    let parent = self.path.len();
                    // Writing to a String cannot fail.
                    let _ = write!(self.path, "/{at}");
                    self.value(item);
                    self.path.truncate(parent);
                }
            }
            Value::Object(members) => self.members(members),
        }
    }

    fn members(&mut self, members: &mut [(Text<'_>, Value<'_>)]) {
        let mut names = None;
        for at in 0..members.len() {
            let scrubbed = redact_text(members[at].0.as_str());
            let unique = scrubbed.map(|key| names.get_or_insert_with(|| Names::of(members)).unique(key));
            let Some((key, value)) = members.get_mut(at) else { break };
            let is_secret = is_secret_name(key.as_str()) && *value != Value::Null && value.as_str() != Some(REDACTED);
            let parent = self.path.len();
            self.path.push('/');
            self.path.push_str(&escape_pointer_token(unique.as_deref().unwrap_or(key.as_str())));
            if let Some(unique) = unique {
                *key = Text::new(&unique);
                self.note();
            }
            if is_secret {
                *value = Value::String(Text::new(REDACTED));
                self.note();
            } else {
                self.value(value);
            }
            self.path.truncate(parent);
        }
    }

    /// Lists the present place, once.
    fn note(&mut self) {
        if self.unlisted || self.places.last() == Some(&self.path) {
            return;
        }
        self.bytes += self.path.len();
        self.unlisted = self.places.len() == POINTERS_MAX || self.bytes > POINTER_BYTES_MAX;
        self.places.push(if self.unlisted { String::new() } else { self.path.clone() });
    }
}

/// The keys of one object: two that were different must not become one.
struct Names {
    taken: HashSet<String>,
    next: HashMap<String, usize>,
}

impl Names {
    fn of(members: &[(Text<'_>, Value<'_>)]) -> Self {
        Self { taken: members.iter().map(|(key, _)| key.as_str().to_owned()).collect(), next: HashMap::new() }
    }

    /// `key`, numbered if it is taken.
    fn unique(&mut self, key: String) -> String {
        if self.taken.insert(key.clone()) {
            return key;
        }
        let next = self.next.entry(key.clone()).or_insert(2);
        loop {
            let numbered = format!("{key} {next}");
            *next += 1;
            if self.taken.insert(numbered.clone()) {
                return numbered;
            }
        }
    }
}
