//! Who calls: verifying tokens, and issuing those of service accounts. A port to the outside that knows `domain` only.
//!
//! A token proves who calls and nothing more; membership, roles and revocation are the directory's. The way through:
//! [`verifier::Verifier`] reads the token once, picks the issuer by its `iss` claim, and asks either this server's
//! [`tokens::TokenIssuer`] (service accounts) or [`issuers::PersonIssuers`] (people).
//!
//! The clock is a parameter everywhere, so `exp`, `nbf` and `iat` are checked here, by `claims`, and not by the
//! library: a token is refused unless every one of them is a number within the years that can be kept.

mod claims;
mod error;
pub mod issuers;
mod jws;
mod key_cache;
mod key_folder;
mod key_set;
pub mod keys;
pub mod mint;
pub mod secrets;
pub mod tokens;
pub mod verifier;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub use error::{Refusal, TokenError};

/// The longest token that is looked at, in bytes.
pub const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// How far `nbf` and `iat` may lie in the future, for an issuer whose clock is ahead of ours.
///
/// `exp` has no leeway: a token never lives longer than it says, here, in the cache, or in a stream that ends with it.
pub const LEEWAY: Duration = Duration::from_mins(1);

/// Random bytes from the operating system's generator.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // Without entropy no secret may be made at all, so there is nothing to go on with. (AWS-LC itself aborts first.)
    aws_lc_rs::rand::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}
