//! Cursors: a position in a list, bound to the list's filter and order. Opaque to clients; a damaged one is refused.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use uuid::Uuid;

use crate::domain::digest::Digest;
use crate::domain::refusal::Refusal;
use crate::domain::time::Timestamp;

/// Bytes of the tag that binds a cursor to its query.
const TAG: usize = 8;
/// Bytes of a cursor: an instant, an id and the tag.
const LENGTH: usize = 8 + 16 + TAG;

/// Writes the position after the entry of that name in the list that `query` names.
pub fn write_name(name: &str, query: &str) -> String {
    let mut bytes = name.as_bytes().to_vec();
    let tag = tag(&bytes, query);
    bytes.extend_from_slice(&tag);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Reads the name of a position in the list that `query` names.
pub fn read_name(cursor: &str, query: &str) -> Result<String, Refusal> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| Refusal::InvalidCursor)?;
    let (name, given) = bytes.split_last_chunk::<TAG>().ok_or(Refusal::InvalidCursor)?;
    if tag(name, query) != *given {
        return Err(Refusal::InvalidCursor);
    }
    String::from_utf8(name.to_vec()).map_err(|_| Refusal::InvalidCursor)
}

/// The tag guards against mistakes, not against forgers: a forged position shows nothing that the caller may not see.
fn tag(position: &[u8], query: &str) -> [u8; TAG] {
    let digest = Digest::of(&[b"mandate cursor 1\n", position, query.as_bytes()].concat());
    let mut tag = [0; TAG];
    tag.copy_from_slice(&digest.0[..TAG]);
    tag
}

/// Writes the position after the entry of `at` and `id` in the list that `query` names.
pub fn write(at: Timestamp, id: Uuid, query: &str) -> String {
    let mut bytes = Vec::with_capacity(LENGTH);
    bytes.extend_from_slice(&at.micros().to_be_bytes());
    bytes.extend_from_slice(id.as_bytes());
    let tag = tag(&bytes, query);
    bytes.extend_from_slice(&tag);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Reads a position of the list that `query` names.
pub fn read(cursor: &str, query: &str) -> Result<(Timestamp, Uuid), Refusal> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| Refusal::InvalidCursor)?;
    let bytes: [u8; LENGTH] = bytes.try_into().map_err(|_| Refusal::InvalidCursor)?;
    let (position, given) = bytes.split_at(LENGTH - TAG);
    if tag(position, query) != given {
        return Err(Refusal::InvalidCursor);
    }
    let (at, id) = position.split_at(8);
    let at = <[u8; 8]>::try_from(at).map(i64::from_be_bytes).map_err(|_| Refusal::InvalidCursor)?;
    let id = Uuid::from_slice(id).map_err(|_| Refusal::InvalidCursor)?;
    Ok((Timestamp::from_micros(at).ok_or(Refusal::InvalidCursor)?, id))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_cursor_goes_round_and_belongs_to_its_query(micros in 0..4_000_000_000_000_000_i64, id: u128) {
            let (at, id) = (Timestamp::from_micros(micros).unwrap(), Uuid::from_u128(id));
            let cursor = write(at, id, "/a?x=1");
            prop_assert_eq!(read(&cursor, "/a?x=1").unwrap(), (at, id));
            prop_assert!(read(&cursor, "/a?x=2").is_err());
        }

        #[test]
        fn so_does_one_by_name(name: String) {
            let cursor = write_name(&name, "/a?x=1");
            prop_assert_eq!(read_name(&cursor, "/a?x=1").unwrap(), name);
            prop_assert!(read_name(&cursor, "/a?x=2").is_err());
            prop_assert!(read_name(&cursor[1..], "/a?x=1").is_err());
        }

        #[test]
        fn anything_else_is_refused(text in ".*", position in 0..43_usize) {
            prop_assert!(read(&text, "/a?").is_err());
            let mut cursor = write(Timestamp::EPOCH, Uuid::nil(), "/a?").into_bytes();
            let byte = cursor.get_mut(position).unwrap();
            *byte = if *byte == b'A' { b'B' } else { b'A' };
            prop_assert!(read(std::str::from_utf8(&cursor).unwrap(), "/a?").is_err());
        }

        #[test]
        fn no_cursor_by_name_is_read_that_was_not_written(text in any::<String>(), name: String, byte: usize) {
            prop_assert!(read_name(&text, "/a?").is_err());
            let mut cursor = write_name(&name, "/a?").into_bytes();
            let byte = byte % cursor.len();
            cursor[byte] = if cursor[byte] == b'A' { b'B' } else { b'A' };
            prop_assert!(read_name(std::str::from_utf8(&cursor).unwrap(), "/a?").is_err());
        }
    }
}
