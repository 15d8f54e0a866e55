//! The text that a search looks through. It is folded here and not by Postgres, whose folding depends on the locale of
//! the database.

use std::collections::BTreeMap;

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::domain::ids::ShortId;
use crate::domain::task::Pinned;

/// Stands between the parts of a text, so that nothing matches across them.
const APART: char = '\u{1f}';

/// What a search finds a task by: title, agent, project and number.
pub(super) fn text_of(pinned: &Pinned) -> String {
    let project = pinned.project_slug.as_deref().unwrap_or_default();
    let number = number(pinned.short_id);
    format!("{APART}{}{APART}{}{APART}{project}{number}", pinned.title, pinned.agent_slug).to_lowercase()
}

/// A number as it stands in a text: whole, so that T-1 does not find T-12.
fn number(id: ShortId) -> String {
    format!("{APART}t{APART}{}{APART}", id.0)
}

/// The patterns of `LIKE`, of which a text that is found matches at least one.
pub(super) fn patterns(wanted: &str) -> Vec<String> {
    let escaped = wanted.to_lowercase().replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
    let mut patterns = vec![format!("%{escaped}%")];
    patterns.extend(wanted.parse::<ShortId>().ok().map(|id| format!("%{}%", number(id))));
    patterns
}

/// What a task is found by, as it is kept beside it.
pub(super) struct FoundBy {
    labels: BTreeMap<String, String>,
    texts: Vec<String>,
}

impl FoundBy {
    /// Reads the rows of a task.
    pub fn read(labels: &[PgRow], texts: &[PgRow]) -> Result<Self, sqlx::Error> {
        let labels = labels.iter().map(|row| Ok((row.try_get("key")?, row.try_get("value")?)));
        let texts = texts.iter().map(|row| row.try_get("text"));
        Ok(Self { labels: labels.collect::<Result<_, sqlx::Error>>()?, texts: texts.collect::<Result<_, _>>()? })
    }

    /// Where they differ from what the task's creation pinned. Those that a migration made were folded by Postgres.
    pub fn faults(&self, pinned: &Pinned) -> Vec<String> {
        let mut faults = Vec::new();
        if self.labels != pinned.labels {
            faults.push(format!("it is found by the labels {:?}, but has {:?}", self.labels, pinned.labels));
        }
        let folded: Vec<_> = self.texts.iter().map(|text| text.to_lowercase()).collect();
        if folded != [text_of(pinned)] {
            faults.push(format!("it is found by the texts {folded:?}, but its own is {:?}", text_of(pinned)));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_for_others_in_a_pattern_stands_for_itself() {
        assert_eq!(patterns("100%_\\Ü"), ["%100\\%\\_\\\\ü%"]);
    }

    #[test]
    fn a_short_id_is_also_looked_for_whole() {
        assert_eq!(patterns("T-12"), ["%t-12%", "%\u{1f}t\u{1f}12\u{1f}%"]);
        assert_eq!(patterns("T-012"), ["%t-012%"]);
    }
}
