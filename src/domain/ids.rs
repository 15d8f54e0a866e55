//! Identifiers, one type per thing that is named, so that two of them cannot be swapped.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

macro_rules! uuid_ids {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[derive(serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<Uuid> for $name {
            fn from(id: Uuid) -> Self {
                Self(id)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(text).map(Self)
            }
        }
    )+};
}

uuid_ids! {
    /// A tenant.
    OrganizationId,
    /// A task, unique within its organization.
    TaskId,
    /// One period in which a harness works a task.
    SessionId,
    /// A question to a person.
    RequestId,
    /// One entry of a task's log.
    EventId,
    /// One row of the ledger.
    ReportId,
    /// An agent definition of the directory.
    AgentId,
    /// A service principal: an agent's account or a trigger.
    AccountId,
    /// A client-credentials pair of a service principal; its text is the OAuth `client_id`.
    CredentialId,
    /// A project of the directory.
    ProjectId,
    /// A model of the directory.
    ModelId,
    /// Joins the two events that one change of a dependency writes on two tasks.
    OperationId,
}

/// A person's opaque id, case-folded. Names and addresses live only in the directory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct PersonId(String);

/// The longest person id that is accepted, in characters.
pub const PERSON_ID_MAX: usize = 200;

/// Why a text is no person id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a person id has 1 to {PERSON_ID_MAX} characters, none of them white space or control characters")]
pub struct PersonIdError;

impl PersonId {
    /// Folds the case of `text` and checks its length and characters.
    pub fn parse(text: &str) -> Result<Self, PersonIdError> {
        let folded = text.to_lowercase();
        let fits = (1..=PERSON_ID_MAX).contains(&folded.chars().count());
        if !fits || folded.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(PersonIdError);
        }
        Ok(Self(folded))
    }

    /// The folded id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PersonId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The quotable number of a task within its organization, written `T-12`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShortId(pub i64);

/// Why a text is no short id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a short id is T-1, T-2 and so on")]
pub struct ShortIdError;

impl FromStr for ShortId {
    type Err = ShortIdError;

    /// Accepts either letter case, no sign and no leading zero: one task has one name.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix("T-").or_else(|| text.strip_prefix("t-"));
        let digits = digits.ok_or(ShortIdError)?;
        let plain = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
        let number = digits.parse::<i64>().map_err(|_| ShortIdError)?;
        if plain { Ok(Self(number)) } else { Err(ShortIdError) }
    }
}

impl fmt::Display for ShortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "T-{}", self.0)
    }
}

/// A name made for routes: 1 to 100 of `a-z`, `0-9`, `-`, `_` and `.`, beginning with a letter or digit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Slug(String);

/// The longest slug, in characters.
pub const SLUG_MAX: usize = 100;

/// Why a text is no slug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a slug has 1 to {SLUG_MAX} of a-z, 0-9, '-', '_' and '.', beginning with a letter or digit")]
pub struct SlugError;

impl Slug {
    /// The slug's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Slug {
    type Err = SlugError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
        let first = text.bytes().next().ok_or(SlugError)?;
        let starts = first.is_ascii_lowercase() || first.is_ascii_digit();
        // A text that reads as an id could name two things, because routes take "slug or id".
        if !starts || text.len() > SLUG_MAX || !text.bytes().all(allowed) || Uuid::parse_str(text).is_ok() {
            return Err(SlugError);
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Slug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_has_neither_white_space_nor_control_characters() {
        for text in ["", " ", "a b", "a\u{a0}", "\u{7f}", "a\u{1b}", &"a".repeat(PERSON_ID_MAX + 1)] {
            assert_eq!(PersonId::parse(text), Err(PersonIdError), "{text:?}");
        }
        for text in ["a", "ada@example.com", &"ä".repeat(PERSON_ID_MAX)] {
            assert_eq!(PersonId::parse(text).map(|person| person.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn a_slug_is_its_text() {
        for text in ["shop-1", "7", "a.b_c", &"a".repeat(SLUG_MAX)] {
            assert_eq!(text.parse::<Slug>().as_ref().map(Slug::as_str), Ok(text));
        }
        let id = "01890a5d-ac96-774b-bcce-b302099a8057";
        for text in ["", "-a", ".a", "_a", "A", "a b", "ä", id, &"a".repeat(SLUG_MAX + 1)] {
            assert_eq!(text.parse::<Slug>(), Err(SlugError), "{text}");
        }
    }
}
