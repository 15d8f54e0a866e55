//! The scanner's strings.

use super::fault::{SyntaxFault, ViolationKind};
use super::scan::{Fault, Scanner};
use super::text::Text;

/// The string that was read, and what is wrong with it, each kind once.
pub(super) type ReadString<'a> = (Text<'a>, Vec<ViolationKind>);

impl<'a> Scanner<'a> {
    /// Reads a string from its opening quote to its closing one.
    pub(super) fn string(&mut self) -> Result<ReadString<'a>, Fault> {
        let start = self.at;
        self.at += 1;
        let mut plain = self.plain_run();
        if self.peek() == Some(b'"') {
            self.at += 1;
            let token = self.bytes.get(start..self.at).unwrap_or_default();
            return Ok(match std::str::from_utf8(token) {
                Ok(raw) => (Text::plain(raw), Vec::new()),
                Err(_) => (Text::new(&String::from_utf8_lossy(plain)), vec![ViolationKind::InvalidUtf8]),
            });
        }
        let mut text = Vec::new();
        let mut faults = Vec::new();
        loop {
            text.extend_from_slice(plain);
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => self.escape(&mut text, &mut faults)?,
                _ => return self.fault(SyntaxFault::ControlCharacter),
            }
            plain = self.plain_run();
        }
        self.at += 1;
        let token = self.bytes.get(start..self.at).unwrap_or_default();
        match (std::str::from_utf8(token), String::from_utf8(text)) {
            (Ok(raw), Ok(text)) if faults.is_empty() => Ok((Text::escaped(raw, text), faults)),
            (Ok(_), Ok(text)) => Ok((Text::new(&text), faults)),
            (_, text) => {
                note(&mut faults, ViolationKind::InvalidUtf8);
                let text = text.unwrap_or_else(|bad| String::from_utf8_lossy(bad.as_bytes()).into_owned());
                Ok((Text::new(&text), faults))
            }
        }
    }

    /// Passes over what stands for itself, whether it is UTF-8 or not.
    fn plain_run(&mut self) -> &'a [u8] {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|b| matches!(b, b'"' | b'\\' | 0..0x20)).unwrap_or(rest.len());
        self.at += length;
        rest.get(..length).unwrap_or_default()
    }

    /// Reads one escape sequence, or the two of a surrogate pair.
    fn escape(&mut self, text: &mut Vec<u8>, faults: &mut Vec<ViolationKind>) -> Result<(), Fault> {
        let plain = match self.bytes.get(self.at + 1) {
            Some(b'u') => return self.unicode_escape(text, faults),
            Some(plain @ (b'"' | b'\\' | b'/')) => *plain,
            Some(b'b') => 0x08,
            Some(b'f') => 0x0c,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(_) => return self.fault(SyntaxFault::Escape),
            None => {
                self.at += 1;
                return self.fault(SyntaxFault::UnexpectedEnd);
            }
        };
        self.at += 2;
        text.push(plain);
        Ok(())
    }

    fn unicode_escape(&mut self, text: &mut Vec<u8>, faults: &mut Vec<ViolationKind>) -> Result<(), Fault> {
        let Some(unit) = self.code_unit() else { return self.fault(SyntaxFault::Escape) };
        self.at += 6;
        let character = match unit {
            0 => Err(ViolationKind::NullCharacter),
            0xd800..0xdc00 => match self.code_unit() {
                Some(low @ 0xdc00..0xe000) => {
                    self.at += 6;
                    let scalar = 0x1_0000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
                    char::from_u32(scalar).ok_or(ViolationKind::LoneSurrogate)
                }
                _ => Err(ViolationKind::LoneSurrogate),
            },
            // Only the low surrogates are left that are no characters.
            _ => char::from_u32(unit).ok_or(ViolationKind::LoneSurrogate),
        };
        let character = character.unwrap_or_else(|kind| {
            note(faults, kind);
            char::REPLACEMENT_CHARACTER
        });
        text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        Ok(())
    }

    /// The code unit of the `\uXXXX` that begins here, if one does.
    fn code_unit(&self) -> Option<u32> {
        let escape = self.bytes.get(self.at..self.at + 6)?;
        let digits = escape.strip_prefix(b"\\u")?;
        digits.iter().try_fold(0, |unit, digit| Some(unit * 16 + char::from(*digit).to_digit(16)?))
    }
}

fn note(faults: &mut Vec<ViolationKind>, kind: ViolationKind) {
    if !faults.contains(&kind) {
        faults.push(kind);
    }
}
