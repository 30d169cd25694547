//! Forecast: days until the balance is used up.

use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::Micros;
use tollgate_store::UsageDay;

use super::period::{DAY, Period};

/// Days of the average, including today.
const WEEK: i64 = 7;
/// Minimum observed time for a forecast.
const KNOWN_MIN: Duration = DAY.saturating_mul(3);

/// Days that the balance lasts at the recent rate of spending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forecast {
    /// Whole days.
    pub(crate) days_left: i64,
}

/// Forecast for `available` at the rate of the last seven days. `None` with fewer than three known days, counted from the first request of
/// the week, or without spending.
pub(crate) fn forecast(days: &[UsageDay], available: Micros, now: Timestamp) -> Option<Forecast> {
    let week = Period::last(WEEK, now);
    let of_week = || days.iter().filter(|day| week.has(day.day_at));
    // An account with usage before this week has a full week of data, days without requests included.
    let is_older = days.iter().any(|day| day.day_at < week.from());
    let first = of_week().map(|day| day.day_at).min()?;
    let from = if is_older { week.from() } else { first };
    let known = now.duration_since(from);
    let spent: i128 = of_week().map(|day| i128::from(day.cost.get())).sum();
    if known < KNOWN_MIN || spent <= 0 {
        return None;
    }
    let [known, day] = [known, DAY].map(|time| time.as_micros() as i128);
    let left = i128::from(available.get().max(0)) * known / spent / day;
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
    const NOW: Timestamp = Timestamp::from_secs(20_000 * 86_400 + 86_400 / 2);

    fn days(spent: &[(u32, i64)]) -> Vec<UsageDay> {
        spent
            .iter()
            .map(|&(ago, cost)| UsageDay {
                day_at: Timestamp::UNIX_EPOCH + (20_000 - ago) * DAY,
                model: Arc::from("small"),
                credential: None,
                requests: 1,
                cache_hits: 0,
                incomplete: 0,
                prompt_tokens: 0,
                completion_tokens: 0,
                cost: Micros::new(cost),
                saved: Micros::ZERO,
                written_off: Micros::ZERO,
            })
            .collect()
    }

    fn left(spent: &[(u32, i64)], available: i64) -> Option<i64> {
        forecast(&days(spent), Micros::new(available), NOW).map(|forecast| forecast.days_left)
    }

    #[test]
    fn the_forecast_uses_the_spending_of_the_last_week() {
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
        fn a_smaller_balance_never_lasts_longer(
            spent in prop::collection::vec((0u32..10, 0i64..1_000_000), 0..20),
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
