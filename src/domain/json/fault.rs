//! What can be wrong with a document.

use std::fmt;

use super::scan::NESTING_MAX;

/// Valid JSON that cannot be kept, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Violation {
    /// The RFC 6901 pointer of the value, or of the member whose key is at fault; what could not be read of a key is
    /// U+FFFD in it.
    pub pointer: String,
    /// What is wrong there.
    pub kind: ViolationKind,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pointer.as_str() {
            "" => write!(f, "{} at the root of the document", self.kind),
            pointer => write!(f, "{} at {pointer}", self.kind),
        }
    }
}

/// The ways in which valid JSON cannot be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ViolationKind {
    /// A key that its object already has, however either is escaped.
    #[error("a key that occurs twice in its object")]
    DuplicateKey,
    /// `\u0000` in a string or key.
    #[error("the character U+0000")]
    NullCharacter,
    /// Half of a surrogate pair in a string or key.
    #[error("a surrogate escape without its other half")]
    LoneSurrogate,
    /// Bytes that are no UTF-8, in a string or key.
    #[error("bytes that are not UTF-8")]
    InvalidUtf8,
    /// An array or object below [`NESTING_MAX`] others.
    #[error("more than {NESTING_MAX} levels of nesting")]
    TooDeep,
}

/// The document is no JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{fault} at line {line}, column {column}")]
pub struct SyntaxError {
    /// Where, in bytes from the start.
    pub offset: usize,
    /// The line, from 1.
    pub line: usize,
    /// The column, in bytes from 1.
    pub column: usize,
    /// What is wrong there.
    pub fault: SyntaxFault,
}

impl SyntaxError {
    /// Works out line and column of `offset`.
    pub(super) fn new(bytes: &[u8], offset: usize, fault: SyntaxFault) -> Self {
        let before = bytes.get(..offset).unwrap_or(bytes);
        let (mut line, mut line_start) = (1, 0);
        for (at, _) in before.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
            (line, line_start) = (line + 1, at + 1);
        }
        Self { offset, line, column: 1 + before.len() - line_start, fault }
    }
}

/// The ways in which a text is no JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SyntaxFault {
    /// Nothing but white space.
    #[error("the document is empty")]
    Empty,
    /// The text ends too early.
    #[error("the document ends in the middle of a value")]
    UnexpectedEnd,
    /// A byte order mark, which JSON does not allow.
    #[error("a byte order mark stands before the document")]
    ByteOrderMark,
    /// Something else where a value must begin.
    #[error("expected a value")]
    ExpectedValue,
    /// Something else where a key must begin.
    #[error("expected a key in quotes")]
    ExpectedKey,
    /// Something else after a key.
    #[error("expected a colon")]
    ExpectedColon,
    /// Something else after an element or member.
    #[error("expected a comma or the closing bracket")]
    ExpectedCommaOrEnd,
    /// Something after the document.
    #[error("unexpected text after the document")]
    TrailingText,
    /// A number that RFC 8259 does not allow.
    #[error("not a number")]
    Number,
    /// A number that begins with a needless zero.
    #[error("a number must not begin with a zero that is followed by a digit")]
    LeadingZero,
    /// A control character that stands in a string unescaped.
    #[error("a control character in a string must be escaped")]
    ControlCharacter,
    /// A backslash that begins no escape.
    #[error("not an escape sequence")]
    Escape,
}
