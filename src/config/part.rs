//! What the parts of the settings are made of: the macro that declares one, faults, and secrets.

use std::fmt;
use std::ops::RangeInclusive;

use url::Url;

/// Declares one part of the settings: a struct with defaults that refuses unknown keys, its rows in the reference
/// table, and the check of every range. The one place where a setting's name, default, range and meaning stand.
macro_rules! part {
    (
        $(#[$doc:meta])*
        $name:ident: $part:literal {
            $( $(#[doc = $text:literal])+ $field:ident: $type:ty = $default:expr $(; $range:expr)? ),+ $(,)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name { $( $(#[doc = $text])+ pub $field: $type ),+ }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $field: $default ),+ }
            }
        }

        impl $name {
            /// Adds a fault for every number that is out of its range.
            pub(super) fn check_ranges(&self, faults: &mut $crate::config::part::Faults) {
                $( $( faults.range(concat!($part, ".", stringify!($field)), &self.$field, &($range)); )? )+
                // A part may have no ranges.
                let _ = faults;
            }

            /// One row per setting for the reference table.
            pub(super) fn rows() -> Vec<$crate::config::part::Row> {
                let default = Self::default();
                vec![ $( $crate::config::part::Row {
                    name: concat!($part, ".", stringify!($field)),
                    default: format!("{:?}", default.$field),
                    range: [ $( format!("{:?}", $range) )? ].into_iter().next(),
                    meaning: concat!($($text),+).trim(),
                } ),+ ]
            }
        }
    };
}
pub(super) use part;

/// One setting as the reference table shows it.
#[derive(Clone)]
pub(super) struct Row {
    pub name: &'static str,
    pub default: String,
    pub range: Option<String>,
    pub meaning: &'static str,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = match self.default.as_str() {
            "None" | "" => "unset".to_owned(),
            text => format!("`{text}`"),
        };
        let range = self.range.as_ref().map(|range| format!("`{}`", range.replace("..=", " … "))).unwrap_or_default();
        write!(f, "| `{}` | {default} | {range} | {} |", self.name, self.meaning)
    }
}

/// One wrong setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The setting's full name, such as `server.listen`.
    pub setting: String,
    /// What is wrong with it; never repeats a secret.
    pub problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.problem)
    }
}

/// Every fault that was found.
#[derive(Debug, Default)]
pub(super) struct Faults(pub Vec<Fault>);

impl Faults {
    /// Notes that `setting` is wrong.
    pub fn add(&mut self, setting: impl Into<String>, problem: impl Into<String>) {
        self.0.push(Fault { setting: setting.into(), problem: problem.into() });
    }

    /// Notes `problem` unless `good`.
    pub fn require(&mut self, good: bool, setting: impl Into<String>, problem: impl Into<String>) {
        if !good {
            self.add(setting, problem);
        }
    }

    /// Notes a number outside its range.
    pub fn range<T: PartialOrd + fmt::Display>(&mut self, setting: &str, value: &T, range: &RangeInclusive<T>) {
        let (low, high) = (range.start(), range.end());
        self.require(range.contains(value), setting, format!("must be from {low} to {high}, and is {value}"));
    }

    /// Notes a text that is no absolute URL with one of `schemes`.
    pub fn url(&mut self, setting: impl Into<String>, text: &str, schemes: &[&str]) {
        let fits = Url::parse(text).is_ok_and(|url| schemes.contains(&url.scheme()));
        let wanted = schemes.iter().map(|scheme| format!("{scheme}:")).collect::<Vec<_>>().join(" or ");
        self.require(fits, setting, format!("must be a URL that begins with {wanted}"));
    }
}

/// A text that must not be shown: a key. `Debug` hides it and there is no `Display`.
#[derive(Clone, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

/// A URL that may carry a password. `Debug` and `Display` show it without one.
#[derive(Clone, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(transparent)]
pub struct SecretUrl(String);

impl SecretUrl {
    /// Wraps `text`, which is checked only by [`Settings::validate`](super::Settings::validate).
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The URL with its password, for the one place that connects.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether nothing was given.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        let Ok(mut url) = Url::parse(&self.0) else {
            // What cannot be taken apart may hold a password anywhere.
            return f.write_str("[hidden: not a URL]");
        };
        if url.password().is_some() {
            // A URL that has a password takes another one.
            let _ = url.set_password(Some("***"));
        }
        // Drivers read passwords from the query too; nothing in it is worth the risk of showing one.
        if url.query().is_some() {
            url.set_query(Some("***"));
        }
        url.fmt(f)
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
