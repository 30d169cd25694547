//! Lines of a ledger as people read them: days and keys folded, and what the balance was after each.

use tollgate_money::Micros;
use tollgate_store::{CredentialId, EntryKind, Statement};

use crate::usage::DAY;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// When, in Unix microseconds; the beginning of the day for what was spent on it.
    pub(crate) at: i64,
    /// What happened.
    pub(crate) kind: LineKind,
    /// By how much the balance changed.
    pub(crate) change: Micros,
    /// What it was after that.
    pub(crate) after: Micros,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LineKind {
    /// Credit came or went under a reference.
    Credit {
        /// How.
        kind: EntryKind,
        /// Which.
        reference: String,
    },
    /// Requests of one day with one credential.
    Spent {
        /// The credential.
        credential: Option<CredentialId>,
        /// How many.
        requests: u64,
    },
}

/// The lines of some days, newest first.
///
/// What was spent on a day is one line for each key and has no moment of its own. It stands after what came in on that day and before
/// what was taken away, so that no line shows a debt that never was.
pub(crate) fn lines(statement: &Statement) -> Vec<Line> {
    let credits = statement.credits.iter().map(|entry| Line {
        at: entry.at,
        kind: LineKind::Credit {
            kind: entry.kind,
            reference: entry.reference.as_deref().unwrap_or_default().to_owned(),
        },
        change: entry.d_available + entry.d_held,
        after: Micros::ZERO,
    });
    let spent = statement.spending.iter().map(|day| Line {
        at: day.day_at,
        kind: LineKind::Spent {
            credential: day.credential,
            requests: day.requests,
        },
        change: -day.cost,
        after: Micros::ZERO,
    });
    let mut lines: Vec<Line> = credits.chain(spent).collect();
    // Oldest first, and then turned around: equal ones keep the order they came in.
    lines.sort_by_key(|line| {
        let place = match (&line.kind, line.change.is_positive()) {
            (LineKind::Credit { .. }, true) => 0,
            (LineKind::Spent { .. }, _) => 1,
            _ => 2,
        };
        (line.at.div_euclid(DAY), place, line.at)
    });
    lines.reverse();
    let mut after = statement.available + statement.held - statement.changed_since;
    for line in &mut lines {
        line.after = after;
        after -= line.change;
    }
    lines
}

/// Cuts a list after the day on which it has `most` lines; the day that the next page ends before.
pub(crate) fn truncate_at_day(lines: &mut Vec<Line>, most: usize) -> Option<i64> {
    let last = lines.get(most.checked_sub(1)?)?;
    let day = last.at.div_euclid(DAY);
    let end = lines
        .iter()
        .position(|line| line.at.div_euclid(DAY) < day)?;
    lines.truncate(end);
    Some(day * DAY)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate_money::{AccountId, OperationId};
    use tollgate_store::books::Entry;
    use tollgate_store::{Contra, DaySpending};

    use super::*;

    fn entry(kind: EntryKind, amount: i64, at: i64) -> Entry {
        Entry {
            operation: OperationId::from_bytes([1; 16]),
            kind,
            account: AccountId::from_bytes([1; 16]),
            d_available: Micros::new(amount),
            d_held: Micros::ZERO,
            contra: Contra::Outside,
            reference: Some(Arc::from("r")),
            price_version: None,
            at,
        }
    }

    fn spent(day: i64, cost: i64) -> DaySpending {
        DaySpending {
            day_at: day * DAY,
            credential: None,
            requests: 2,
            cost: Micros::new(cost),
        }
    }

    fn statement() -> Statement {
        Statement {
            available: Micros::new(60),
            held: Micros::new(10),
            changed_since: Micros::new(-5),
            credits: vec![
                entry(EntryKind::Correction, -20, 2 * DAY + 1),
                entry(EntryKind::TopUp, 100, 2 * DAY + 9),
                entry(EntryKind::Grant, 40, DAY + 5),
            ],
            spending: vec![spent(2, 30), spent(1, 15)],
            older: None,
        }
    }

    #[test]
    fn lines_add_up_from_the_newest_to_the_oldest() {
        let told: Vec<(i64, i64)> = lines(&statement())
            .iter()
            .map(|line| (line.change.get(), line.after.get()))
            .collect();
        assert_eq!(
            told,
            [(-20, 75), (-30, 95), (100, 125), (-15, 25), (40, 40)],
            "spent after what came in on that day"
        );
    }

    #[test]
    fn a_page_ends_with_a_day() {
        let mut all = lines(&statement());
        assert_eq!(truncate_at_day(&mut all, 2), Some(2 * DAY));
        assert_eq!(all.len(), 3, "the day that has the second line is whole");
        let mut all = lines(&statement());
        assert_eq!(truncate_at_day(&mut all, 5), None, "nothing is left over");
        assert_eq!(truncate_at_day(&mut all, 9), None);
    }
}
