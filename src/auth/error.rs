//! Why a token is refused, in two strings: one for the client, one for the log.

use std::time::Duration;

/// What is wrong with a refused token. Its text is for the client: it never holds anything of the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// No compact JWS with a JSON object inside, or too large.
    #[error("the token is malformed")]
    Malformed,
    /// A JWS that is no access token, by its `typ`.
    #[error("the token is of a kind that is not accepted here")]
    Kind,
    /// No configured issuer has this `iss`.
    #[error("the token's issuer is not accepted")]
    Issuer,
    /// The algorithm, the key or the signature.
    #[error("the token's signature is not accepted")]
    Signature,
    /// Meant for somebody else.
    #[error("the token is meant for another audience")]
    Audience,
    /// `exp` has passed.
    #[error("the token has expired")]
    Expired,
    /// `nbf` or `iat` lies ahead.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// A required claim is missing or of the wrong type.
    #[error("a claim of the token is missing or not of its type")]
    Claims,
}

/// Why no identity was established.
///
/// `Display` is safe for the client; [`TokenError::detail`] is for the log. Neither ever holds the token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The token is not accepted (401).
    #[error("{reason}")]
    Refused {
        /// What to tell the client.
        reason: Refusal,
        /// What to tell the log.
        detail: String,
    },
    /// The issuer's keys could never be fetched, or not for too long, so nothing can be said about the token (503).
    #[error("the keys of the token's issuer cannot be fetched at the moment")]
    Unavailable {
        /// What to tell the log.
        detail: String,
        /// When the next attempt is due, at least a second.
        retry_after: Duration,
    },
}

impl TokenError {
    pub(super) fn refused(reason: Refusal, detail: impl Into<String>) -> Self {
        Self::Refused { reason, detail: detail.into() }
    }

    /// What to write to the log. It may quote short pieces of the header and claims, escaped.
    pub fn detail(&self) -> &str {
        match self {
            Self::Refused { detail, .. } | Self::Unavailable { detail, .. } => detail,
        }
    }
}

/// `text` for the log: quoted, escaped and short, for it comes from a stranger.
pub(super) fn quoted(text: &str) -> String {
    const SHOWN: usize = 80;
    let cut: String = text.chars().take(SHOWN).collect();
    let dots = if cut.len() < text.len() { "…" } else { "" };
    format!("{cut:?}{dots}")
}
