//! Account statement: ledger entries and daily spending per key, with the running balance.

use tollgate_clock::Timestamp;
use tollgate_money::{CredentialId, Micros};
use tollgate_store::{EntryKind, Statement};

/// One line of the statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Time; for spending, the start of the day.
    pub(crate) at: Timestamp,
    /// Kind of a line.
    pub(crate) kind: LineKind,
    /// Change of the balance.
    pub(crate) change: Micros,
    /// Balance after the line.
    pub(crate) after: Micros,
}

/// Kind of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LineKind {
    /// A ledger entry with a reference.
    Credit {
        /// Kind of the entry.
        kind: EntryKind,
        /// The reference.
        reference: String,
    },
    /// Requests of one day with one credential.
    Spent {
        /// The credential.
        credential: Option<CredentialId>,
        /// Number of requests.
        requests: u64,
    },
}

/// The lines of a statement, newest first.
///
/// Spending is one line per day and key and has no time of its own. It sorts after the day's credits and before the day's debits, so that
/// no line shows a negative balance that never existed.
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
    // Sort ascending, then reverse: equal lines keep their order.
    lines.sort_by_key(|line| {
        let place = match (&line.kind, line.change.is_positive()) {
            (LineKind::Credit { .. }, true) => 0,
            (LineKind::Spent { .. }, _) => 1,
            _ => 2,
        };
        (line.at.start_of_day(), place, line.at)
    });
    lines.reverse();
    let mut after = statement.available + statement.held - statement.changed_since;
    for line in &mut lines {
        line.after = after;
        after -= line.change;
    }
    lines
}

/// Truncates the list after the day on which it reaches `most` lines; returns the day that the next page ends before.
pub(crate) fn truncate_at_day(lines: &mut Vec<Line>, most: usize) -> Option<Timestamp> {
    let last = lines.get(most.checked_sub(1)?)?;
    let day = last.at.start_of_day();
    let end = lines.iter().position(|line| line.at.start_of_day() < day)?;
    lines.truncate(end);
    Some(day)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tollgate_money::{AccountId, OperationId};
    use tollgate_store::entries::Entry;
    use tollgate_store::{Contra, DaySpending};

    use super::*;
    use crate::usage::DAY;

    fn entry(kind: EntryKind, amount: i64, since: Duration) -> Entry {
        Entry {
            operation: OperationId::from_bytes([1; 16]),
            kind,
            account: AccountId::from_bytes([1; 16]),
            d_available: Micros::new(amount),
            d_held: Micros::ZERO,
            contra: Contra::Outside,
            reference: Some(Arc::from("r")),
            price_version: None,
            at: Timestamp::UNIX_EPOCH + since,
        }
    }

    fn spent(day: u32, cost: i64) -> DaySpending {
        DaySpending {
            day_at: Timestamp::UNIX_EPOCH + day * DAY,
            credential: None,
            requests: 2,
            cost: Micros::new(cost),
        }
    }

    fn statement() -> Statement {
        let micros = Duration::from_micros;
        Statement {
            available: Micros::new(60),
            held: Micros::new(10),
            changed_since: Micros::new(-5),
            credits: vec![
                entry(EntryKind::Correction, -20, 2 * DAY + micros(1)),
                entry(EntryKind::TopUp, 100, 2 * DAY + micros(9)),
                entry(EntryKind::Grant, 40, DAY + micros(5)),
            ],
            spending: vec![spent(2, 30), spent(1, 15)],
            older: None,
        }
    }

    #[test]
    fn lines_add_up_from_the_newest_to_the_oldest() {
        let balances: Vec<(i64, i64)> = lines(&statement())
            .iter()
            .map(|line| (line.change.get(), line.after.get()))
            .collect();
        assert_eq!(
            balances,
            [(-20, 75), (-30, 95), (100, 125), (-15, 25), (40, 40)],
            "spent after what came in on that day"
        );
    }

    #[test]
    fn a_page_ends_with_a_day() {
        let mut all = lines(&statement());
        assert_eq!(
            truncate_at_day(&mut all, 2),
            Some(Timestamp::UNIX_EPOCH + 2 * DAY)
        );
        assert_eq!(all.len(), 3, "the day that has the second line is whole");
        let mut all = lines(&statement());
        assert_eq!(truncate_at_day(&mut all, 5), None, "nothing is left over");
        assert_eq!(truncate_at_day(&mut all, 9), None);
    }
}
