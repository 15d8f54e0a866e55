//! The scanner: one pass over the bytes, without recursion.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Write;

use super::fault::{SyntaxError, SyntaxFault, Violation, ViolationKind};
use super::{Text, Value, escape_pointer_token};

/// How many arrays and objects of what is kept may stand within each other.
pub const NESTING_MAX: usize = 128;
/// How many violations are listed; the scan goes on without listing more.
pub const VIOLATIONS_MAX: usize = 100;
/// The listing also ends when the pointers listed so far fill this many bytes: one long key that all of them share
/// must not multiply the size of the document.
pub const VIOLATION_POINTER_BYTES_MAX: usize = 64 * 1024;
/// Up to this many keys are compared one by one; more go into a set.
const FEW_KEYS: usize = 16;

/// A document that is JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scanned<'a> {
    /// The tree. At the place of a violation it has a stand-in: U+FFFD in a string, the first of two members with the
    /// same key, null for what is nested too deeply.
    pub value: Value<'a>,
    /// What cannot be kept, in document order.
    pub violations: Vec<Violation>,
}

/// Reads one JSON document. White space may surround it, nothing else.
pub fn scan(bytes: &[u8]) -> Result<Scanned<'_>, SyntaxError> {
    scan_enveloped(bytes, 0)
}

/// Reads one JSON document that carries what is kept inside `levels` arrays and objects of its own, which do not count
/// as nesting.
pub fn scan_enveloped(bytes: &[u8], levels: usize) -> Result<Scanned<'_>, SyntaxError> {
    let nesting_max = NESTING_MAX + levels;
    let mut scanner =
        Scanner { bytes, at: 0, nesting_max, open: Vec::new(), deep: Vec::new(), listed: Listed::default() };
    match scanner.document() {
        Ok(value) => Ok(Scanned { value, violations: scanner.listed.violations }),
        Err(Fault { at, fault }) => Err(SyntaxError::new(bytes, at, fault)),
    }
}

/// Why the scan stopped, and at which byte.
pub(super) struct Fault {
    at: usize,
    fault: SyntaxFault,
}

/// An array or object whose end was not seen yet.
enum Open<'a> {
    Array(Vec<Value<'a>>),
    Object { members: Vec<(Text<'a>, Value<'a>)>, seen: Option<HashSet<Cow<'a, str>>>, key: Option<Key<'a>> },
}

/// The key whose value is being read.
struct Key<'a> {
    text: Text<'a>,
    /// An earlier member has the key, so that this one is left out of the tree.
    repeated: bool,
}

/// The kind of the innermost open array or object.
#[derive(Clone, Copy)]
enum Container {
    Array,
    Object,
}

#[derive(Default)]
struct Listed {
    violations: Vec<Violation>,
    pointer_bytes: usize,
}

pub(super) struct Scanner<'a> {
    pub(super) bytes: &'a [u8],
    /// The next byte.
    pub(super) at: usize,
    /// How deep the tree may become: [`NESTING_MAX`] and the levels of the envelope.
    nesting_max: usize,
    /// From the outermost to the innermost, at most `nesting_max`.
    open: Vec<Open<'a>>,
    /// What is open below that: read for its syntax only, one byte a level.
    deep: Vec<Container>,
    listed: Listed,
}

impl<'a> Scanner<'a> {
    fn document(&mut self) -> Result<Value<'a>, Fault> {
        if self.bytes.starts_with(b"\xef\xbb\xbf") {
            return self.fault(SyntaxFault::ByteOrderMark);
        }
        if self.peek_token().is_none() {
            return self.fault(SyntaxFault::Empty);
        }
        loop {
            let Some(mut value) = self.value_or_open()? else { continue };
            // A value is complete: it goes into what is open, which may be complete with it.
            loop {
                let Some(container) = self.innermost() else {
                    return match self.peek_token() {
                        None => Ok(value),
                        Some(_) => self.fault(SyntaxFault::TrailingText),
                    };
                };
                self.attach(value);
                match (self.peek_token(), container) {
                    (Some(b','), Container::Array) => self.at += 1,
                    (Some(b','), Container::Object) => {
                        self.at += 1;
                        self.key()?;
                    }
                    (Some(b']'), Container::Array) | (Some(b'}'), Container::Object) => {
                        value = self.close();
                        continue;
                    }
                    _ => return self.fault(SyntaxFault::ExpectedCommaOrEnd),
                }
                break;
            }
        }
    }

    /// Reads a scalar or an empty array or object; `None` when what was opened waits for its first value.
    fn value_or_open(&mut self) -> Result<Option<Value<'a>>, Fault> {
        match self.peek_token() {
            Some(b'{') => {
                self.open(Container::Object);
                if self.peek_token() == Some(b'}') {
                    return Ok(Some(self.close()));
                }
                self.key()?;
                Ok(None)
            }
            Some(b'[') => {
                self.open(Container::Array);
                Ok(if self.peek_token() == Some(b']') { Some(self.close()) } else { None })
            }
            Some(b'"') => {
                let (text, faults) = self.string()?;
                self.list(faults);
                Ok(Some(Value::String(text)))
            }
            Some(b'-' | b'0'..=b'9') => self.number().map(Some),
            Some(b'n') => self.word(b"null", Value::Null),
            Some(b't') => self.word(b"true", Value::Bool(true)),
            Some(b'f') => self.word(b"false", Value::Bool(false)),
            _ => self.fault(SyntaxFault::ExpectedValue),
        }
    }

    fn innermost(&self) -> Option<Container> {
        self.deep.last().copied().or_else(|| {
            self.open.last().map(|open| match open {
                Open::Array(_) => Container::Array,
                Open::Object { .. } => Container::Object,
            })
        })
    }

    fn open(&mut self, container: Container) {
        self.at += 1;
        if self.open.len() < self.nesting_max {
            self.open.push(match container {
                Container::Array => Open::Array(Vec::new()),
                Container::Object => Open::Object { members: Vec::new(), seen: None, key: None },
            });
        } else {
            self.list([ViolationKind::TooDeep]);
            self.deep.push(container);
        }
    }

    fn close(&mut self) -> Value<'a> {
        self.at += 1;
        if self.deep.pop().is_some() {
            return Value::Null;
        }
        match self.open.pop() {
            Some(Open::Array(items)) => Value::Array(items),
            Some(Open::Object { members, .. }) => Value::Object(members),
            None => Value::Null,
        }
    }

    fn attach(&mut self, value: Value<'a>) {
        if !self.deep.is_empty() {
            return;
        }
        match self.open.last_mut() {
            Some(Open::Array(items)) => items.push(value),
            Some(Open::Object { members, key, .. }) => {
                if let Some(Key { text, repeated: false }) = key.take() {
                    members.push((text, value));
                }
            }
            None => {}
        }
    }

    /// Reads a key and its colon.
    fn key(&mut self) -> Result<(), Fault> {
        if self.peek_token() != Some(b'"') {
            return self.fault(SyntaxFault::ExpectedKey);
        }
        let (text, faults) = self.string()?;
        if self.peek_token() != Some(b':') {
            return self.fault(SyntaxFault::ExpectedColon);
        }
        self.at += 1;
        if !self.deep.is_empty() {
            return Ok(());
        }
        let mut duplicate = None;
        if let Some(Open::Object { members, seen, key }) = self.open.last_mut() {
            let repeated = is_repeated(members, seen, &text);
            // Two stand-ins for different faulty keys may look alike without being so.
            duplicate = (repeated && faults.is_empty()).then_some(ViolationKind::DuplicateKey);
            *key = Some(Key { text, repeated });
        }
        self.list(faults);
        self.list(duplicate);
        Ok(())
    }

    fn word(&mut self, word: &[u8], value: Value<'a>) -> Result<Option<Value<'a>>, Fault> {
        if self.bytes.get(self.at..).is_some_and(|rest| rest.starts_with(word)) {
            self.at += word.len();
            return Ok(Some(value));
        }
        self.fault(SyntaxFault::ExpectedValue)
    }

    fn number(&mut self) -> Result<Value<'a>, Fault> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
            if self.peek().is_some_and(|b| b.is_ascii_digit()) {
                return self.fault(SyntaxFault::LeadingZero);
            }
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        let digits = self.bytes.get(start..self.at).and_then(|digits| std::str::from_utf8(digits).ok());
        Ok(Value::Number(Cow::Borrowed(digits.unwrap_or_default())))
    }

    /// One digit or more.
    fn digits(&mut self) -> Result<(), Fault> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let count = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        if count == 0 {
            return self.fault(SyntaxFault::Number);
        }
        self.at += count;
        Ok(())
    }

    /// The next byte.
    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// The next byte that is not white space.
    fn peek_token(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
        self.peek()
    }

    /// The fault at the present place, which is another one where the text has ended.
    pub(super) fn fault<T>(&self, fault: SyntaxFault) -> Result<T, Fault> {
        let ended = self.at >= self.bytes.len() && fault != SyntaxFault::Empty;
        Err(Fault { at: self.at, fault: if ended { SyntaxFault::UnexpectedEnd } else { fault } })
    }

    /// Lists violations at the present place.
    fn list(&mut self, kinds: impl IntoIterator<Item = ViolationKind>) {
        for kind in kinds {
            let full = self.listed.violations.len() >= VIOLATIONS_MAX
                || self.listed.pointer_bytes >= VIOLATION_POINTER_BYTES_MAX;
            // What is below the limit has no place of its own in the tree.
            if full || !self.deep.is_empty() {
                return;
            }
            let pointer = self.pointer();
            self.listed.pointer_bytes += pointer.len();
            self.listed.violations.push(Violation { pointer, kind });
        }
    }

    fn pointer(&self) -> String {
        let mut pointer = String::new();
        for open in &self.open {
            match open {
                // Writing to a String cannot fail.
                Open::Array(items) => drop(write!(pointer, "/{}", items.len())),
                Open::Object { key: Some(key), .. } => {
                    pointer.push('/');
                    pointer.push_str(&escape_pointer_token(key.text.as_str()));
                }
                Open::Object { key: None, .. } => {}
            }
        }
        pointer
    }
}

/// Whether the object has `key` already; remembers it if not.
fn is_repeated<'a>(
    members: &[(Text<'a>, Value<'a>)],
    seen: &mut Option<HashSet<Cow<'a, str>>>,
    key: &Text<'a>,
) -> bool {
    if members.len() < FEW_KEYS {
        return members.iter().any(|(known, _)| known.as_str() == key.as_str());
    }
    let seen = seen.get_or_insert_with(|| members.iter().map(|(known, _)| known.share()).collect());
    !seen.insert(key.share())
}
