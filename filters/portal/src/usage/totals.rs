//! Totals of usage days, and comparison of amounts.

use tollgate_money::Micros;
use tollgate_store::UsageDay;

/// Totals of usage days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) requests: u64,
    pub(crate) cache_hits: u64,
    pub(crate) incomplete: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) cost: Micros,
    pub(crate) saved: Micros,
}

impl Totals {
    /// Adds up the days.
    pub(crate) fn of<'a>(days: impl IntoIterator<Item = &'a UsageDay>) -> Totals {
        days.into_iter().fold(Totals::default(), |mut totals, day| {
            totals.requests += day.requests;
            totals.cache_hits += day.cache_hits;
            totals.incomplete += day.incomplete;
            totals.prompt_tokens = totals.prompt_tokens.saturating_add(day.prompt_tokens);
            totals.completion_tokens = totals
                .completion_tokens
                .saturating_add(day.completion_tokens);
            totals.cost = totals.cost.saturating_add(day.cost);
            totals.saved = totals.saved.saturating_add(day.saved);
            totals
        })
    }
}

/// Relative change of an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Percent more.
    More(u64),
    /// Percent less.
    Less(u64),
    /// Difference below one percent.
    Same,
    /// More than ten times as much.
    ManyTimes,
}

/// Change from `before` to `now`; `None` if `before` is not positive.
pub(crate) fn change(before: Micros, now: Micros) -> Option<Change> {
    if !before.is_positive() {
        return None;
    }
    let apart = i128::from(now.get()) - i128::from(before.get());
    let hundredths = apart.unsigned_abs() * 100 / before.get().unsigned_abs() as u128;
    let hundredths = u64::try_from(hundredths).unwrap_or(u64::MAX);
    Some(match hundredths {
        0 => Change::Same,
        _ if apart < 0 => Change::Less(hundredths),
        1001.. => Change::ManyTimes,
        _ => Change::More(hundredths),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_compared_in_whole_percent() {
        //   before, now
        check(0, 5, None);
        check(100, 118, Some(Change::More(18)));
        check(100, 40, Some(Change::Less(60)));
        check(100, 0, Some(Change::Less(100)));
        check(1_000, 1_009, Some(Change::Same));
        check(1, 12, Some(Change::ManyTimes));
        check(1, i64::MAX, Some(Change::ManyTimes));
        check(-5, 5, None);
    }

    fn check(before: i64, now: i64, expected: Option<Change>) {
        assert_eq!(
            change(Micros::new(before), Micros::new(now)),
            expected,
            "{before} to {now}"
        );
    }
}
