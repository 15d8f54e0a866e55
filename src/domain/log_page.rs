//! Which part of a log a reader wants.

/// A part of a log. Events ascend by seq; `before_seq` alone gives the newest below it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventPage {
    /// Strictly after this seq.
    pub after_seq: Option<i64>,
    /// Strictly before this seq.
    pub before_seq: Option<i64>,
    /// Only of these types; empty: all.
    pub types: Vec<String>,
    /// At most so many.
    pub limit: u32,
}

impl EventPage {
    /// Whether the page is read from its end: the newest below `before_seq`.
    pub fn is_backwards(&self) -> bool {
        self.after_seq.is_none() && self.before_seq.is_some()
    }

    /// The page out of `rows`, of which one more than the limit was read, in the order of the reading; and whether
    /// there is more in that direction.
    pub fn cut<T>(&self, mut rows: Vec<T>) -> (Vec<T>, bool) {
        let more = rows.len() > self.limit as usize;
        rows.truncate(self.limit as usize);
        if self.is_backwards() {
            rows.reverse();
        }
        (rows, more)
    }
}
