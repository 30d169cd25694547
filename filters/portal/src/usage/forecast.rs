//! How long a balance lasts.

use tollgate_money::Micros;
use tollgate_store::UsageDay;

use super::period::{DAY, Period};

/// Days that a pace is taken from, today among them.
const WEEK: i64 = 7;
/// Less than this tells nothing about the days to come.
const KNOWN_MIN: i64 = 3 * DAY;

/// How long a balance lasts if the next days are like the last ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forecast {
    /// Whole days.
    pub(crate) days_left: i64,
}

/// How long `available` lasts at the pace of the last seven days. Nothing is said where fewer than three days are known, counted from
/// the first request of the week, or where nothing was spent.
pub(crate) fn forecast(days: &[UsageDay], available: Micros, now: i64) -> Option<Forecast> {
    let week = Period::last(WEEK, now);
    let of_week = || days.iter().filter(|day| week.has(day.day_at));
    // Whoever has used it before this week has known all of it, with the days on which nothing was sent.
    let is_older = days.iter().any(|day| day.day_at < week.from());
    let first = of_week().map(|day| day.day_at).min()?;
    let from = if is_older { week.from() } else { first };
    let known = now - from;
    let spent: i128 = of_week().map(|day| i128::from(day.cost.get())).sum();
    if known < KNOWN_MIN || spent <= 0 {
        return None;
    }
    let left = i128::from(available.get().max(0)) * i128::from(known) / spent / i128::from(DAY);
    Some(Forecast {
        days_left: i64::try_from(left).unwrap_or(i64::MAX),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    /// Noon of a day.
    const NOW: i64 = 20_000 * DAY + DAY / 2;

    fn days(spent: &[(i64, i64)]) -> Vec<UsageDay> {
        spent
            .iter()
            .map(|&(ago, cost)| UsageDay {
                day_at: (20_000 - ago) * DAY,
                model: Arc::from("small"),
                credential: None,
                requests: 1,
                cache_hits: 0,
                incomplete: 0,
                prompt_tokens: 0,
                completion_tokens: 0,
                cost: Micros::new(cost),
                saved: Micros::ZERO,
            })
            .collect()
    }

    fn left(spent: &[(i64, i64)], available: i64) -> Option<i64> {
        forecast(&days(spent), Micros::new(available), NOW).map(|forecast| forecast.days_left)
    }

    #[test]
    fn a_balance_lasts_as_long_as_at_the_pace_of_the_week() {
        //   (days ago, spent), available, days left
        assert_eq!(
            left(&[(6, 65), (20, 1)], 100),
            Some(10),
            "65 in six and a half days"
        );
        assert_eq!(
            left(&[(20, 1), (1, 65)], 100),
            Some(10),
            "days without anything count"
        );
        assert_eq!(
            left(&[(3, 35)], 100),
            Some(10),
            "three and a half days are known"
        );
        assert_eq!(left(&[(2, 35)], 100), None, "two and a half are not enough");
        assert_eq!(left(&[(20, 5)], 100), None, "nothing this week");
        assert_eq!(left(&[(5, 0)], 100), None, "nothing spent");
        assert_eq!(left(&[(5, 10)], -5), Some(0));
        assert_eq!(left(&[], 100), None);
    }

    proptest! {
        #[test]
        fn less_is_never_promised_to_last_longer(
            spent in prop::collection::vec((0i64..10, 0i64..1_000_000), 0..20),
            available in 0i64..i64::MAX / 2,
            less in 0i64..i64::MAX / 2,
        ) {
            let all = left(&spent, available);
            let rest = left(&spent, available - less.min(available));
            prop_assert_eq!(all.is_some(), rest.is_some());
            prop_assert!(rest <= all);
        }
    }
}
