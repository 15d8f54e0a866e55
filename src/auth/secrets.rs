//! Client secrets of service accounts.

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use sha2::{Digest as _, Sha256};

use super::jws::base64url;
use super::random;

/// What every client secret begins with, so that people and secret scanners recognise a leaked one.
pub const PREFIX: &str = "mds_";

/// A new client secret. It is shown once; only its hash is kept.
pub struct ClientSecret(String);

impl ClientSecret {
    /// The secret's text, for the one answer that shows it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What is kept of it.
    pub fn hash(&self) -> [u8; 32] {
        hash(&self.0)
    }
}

/// Prints nothing of the secret.
impl fmt::Debug for ClientSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientSecret(…)")
    }
}

/// Makes a secret: [`PREFIX`] and 256 random bits as base64url, 47 characters in all.
pub fn generate() -> ClientSecret {
    ClientSecret(format!("{PREFIX}{}", base64url(random::<32>())))
}

/// What is kept of a secret: its SHA-256.
///
/// Slow, salted hashes protect what people think up, because that can be guessed. These secrets are 256 random bits: no
/// list holds them and no machine counts so far, so a slow hash would cost every token request and protect nothing.
pub fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

/// Whether `secret` is the one whose hash was kept, in a time that does not tell how much of it is right.
pub fn matches(secret: &str, kept: &[u8; 32]) -> bool {
    verify_slices_are_equal(&hash(secret), kept).is_ok()
}
