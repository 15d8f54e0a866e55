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

/// How far a task's log is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogHead {
    /// The length of the log.
    pub last_seq: i64,
    /// Whether the task is closed.
    pub closed: bool,
    /// Whether the log is sealed in the log store: then nothing can come any more.
    pub archived: bool,
}

impl LogHead {
    /// Whether there is something to see for who has seen `seen`.
    pub fn is_news_after(&self, seen: &Self) -> bool {
        self.last_seq > seen.last_seq || (self.archived && !seen.archived)
    }

    /// What two looks at one log know together, whichever came first: a log only grows.
    #[must_use]
    pub fn joined(self, other: Self) -> Self {
        Self {
            last_seq: self.last_seq.max(other.last_seq),
            closed: self.closed || other.closed,
            archived: self.archived || other.archived,
        }
    }
}

impl EventPage {
    /// Whether the page is read from its end: the newest below `before_seq`.
    pub fn is_backwards(&self) -> bool {
        self.after_seq.is_none() && self.before_seq.is_some()
    }

    /// Whether `seqs` is all that this page has of a log of `last_seq` entries, its types left aside.
    pub fn is_whole(&self, last_seq: i64, seqs: impl ExactSizeIterator<Item = i64>) -> bool {
        let end = self.before_seq.map_or(last_seq, |before| last_seq.min(before.saturating_sub(1)));
        let begin = self.after_seq.unwrap_or_default().min(end);
        let length = (end.max(0) - begin.max(0)).max(0).min(i64::from(self.limit));
        let first = if self.is_backwards() { end - length + 1 } else { begin + 1 };
        seqs.len() as u64 == length.unsigned_abs() && seqs.zip(first..).all(|(seq, wanted)| seq == wanted)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_cut_to_its_limit_and_told_in_the_order_of_the_log() {
        let page = |after_seq, before_seq| EventPage { after_seq, before_seq, types: Vec::new(), limit: 2 };
        let forwards = page(Some(0), None);
        assert_eq!(forwards.cut(vec![1, 2, 3]), (vec![1, 2], true));
        assert_eq!(forwards.cut(vec![1, 2]), (vec![1, 2], false));
        // Read from the end.
        let backwards = page(None, Some(9));
        assert!(backwards.is_backwards());
        assert_eq!(backwards.cut(vec![8, 7, 6]), (vec![7, 8], true));
        assert_eq!(backwards.cut(vec![8]), (vec![8], false));
        assert!(!page(Some(1), Some(9)).is_backwards() && !page(None, None).is_backwards());
    }

    #[test]
    fn a_log_has_news_when_it_has_grown_or_was_sealed() {
        let head = |last_seq, closed, archived| LogHead { last_seq, closed, archived };
        let seen = head(5, false, false);
        assert!(head(6, false, false).is_news_after(&seen));
        assert!(head(5, true, true).is_news_after(&seen));
        for old in [seen, head(4, false, false), head(5, true, false)] {
            assert!(!old.is_news_after(&seen), "{old:?}");
        }
        assert!(!head(5, true, true).is_news_after(&head(5, true, true)));
        let joined = head(6, true, true);
        for (one, other) in [(head(6, false, true), head(5, true, false)), (head(4, true, true), head(6, false, false))]
        {
            assert_eq!(one.joined(other), joined);
            assert_eq!(other.joined(one), joined);
        }
        assert_eq!(seen.joined(seen), seen);
    }

    #[test]
    fn a_page_knows_what_it_must_hold() {
        let page = |after_seq, before_seq, limit| EventPage { after_seq, before_seq, types: Vec::new(), limit };
        for (page, last_seq, wanted) in [
            (page(None, None, 5), 9, 1..=5),
            (page(Some(0), None, 100), 9, 1..=9),
            (page(Some(4), None, 3), 9, 5..=7),
            (page(Some(7), None, 3), 9, 8..=9),
            (page(None, Some(6), 2), 9, 4..=5),
            (page(None, Some(3), 9), 9, 1..=2),
            (page(None, Some(900), 2), 9, 8..=9),
            (page(Some(2), Some(5), 9), 9, 3..=4),
        ] {
            let seqs: Vec<i64> = wanted.collect();
            let whole = |seqs: &[i64]| page.is_whole(last_seq, seqs.iter().copied());
            assert!(whole(&seqs), "{page:?}");
            assert!(!whole(&seqs[1..]), "{page:?}");
            assert!(!whole(&seqs[..seqs.len() - 1]), "{page:?}");
            assert!(!whole(&[]), "{page:?}");
        }
        for nothing in
            [page(Some(9), None, 5), page(Some(99), None, 5), page(None, Some(1), 5), page(Some(5), Some(3), 9)]
        {
            assert!(nothing.is_whole(9, std::iter::empty()), "{nothing:?}");
        }
    }
}
