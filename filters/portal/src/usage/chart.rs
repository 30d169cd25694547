//! Chart data: the ranking of models, and the bars of a period.

use std::cmp::Reverse;
use std::collections::HashMap;

use tollgate_clock::Timestamp;
use tollgate_money::Micros;
use tollgate_pages::parts::BarDay;
use tollgate_store::UsageDay;

use super::period::{DAY, Period};

/// Models with a colour; further models share one colour.
const OWN: usize = 4;

/// Models with a colour, in colour order. Computed over 90 days: a model keeps its colour when the period changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranking(Vec<String>);

impl Ranking {
    /// The models with the highest cost in these days; ties are broken by number of requests.
    pub(crate) fn of(days: &[UsageDay]) -> Ranking {
        let mut models: HashMap<&str, (Micros, u64)> = HashMap::new();
        for day in days {
            let (cost, requests) = models.entry(&day.model).or_default();
            *cost = cost.saturating_add(day.cost);
            *requests += day.requests;
        }
        let mut models: Vec<_> = models.into_iter().collect();
        models.sort_by_key(|&(name, totals)| (Reverse(totals), name));
        Ranking(
            models
                .into_iter()
                .take(OWN)
                .map(|(name, _)| name.to_owned())
                .collect(),
        )
    }

    /// Series names for these days: the coloured models, and `Other` for further models.
    pub(crate) fn series(&self, days: &[UsageDay]) -> Vec<String> {
        let mut names: Vec<String> = self
            .0
            .iter()
            .map(|name| tollgate_pages::format::single_line(name))
            .collect();
        if days.iter().any(|day| self.place(&day.model) == OWN) {
            // `Other` exists only if all colours are taken, and so is always the fifth.
            names.push("Other".to_owned());
        }
        names
    }

    /// The bars of a period: one per day, with an amount for each of `series`.
    pub(crate) fn bars(
        &self,
        days: &[UsageDay],
        period: Period,
        series: usize,
        link: impl Fn(Timestamp) -> String,
    ) -> Vec<BarDay> {
        let mut bars: Vec<BarDay> = period
            .starts()
            .map(|at| BarDay {
                at,
                amounts: vec![Micros::ZERO; series],
                link: link(at),
            })
            .collect();
        for day in days.iter().filter(|day| period.has(day.day_at)) {
            let place = day.day_at.duration_since(period.from()).as_secs() / DAY.as_secs();
            let bar = usize::try_from(place)
                .ok()
                .and_then(|place| bars.get_mut(place));
            if let Some(amount) = bar.and_then(|bar| bar.amounts.get_mut(self.place(&day.model))) {
                *amount = amount.saturating_add(day.cost);
            }
        }
        bars
    }

    fn place(&self, model: &str) -> usize {
        self.0.iter().position(|name| name == model).unwrap_or(OWN)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    fn day(day: u32, model: &str, cost: i64) -> UsageDay {
        UsageDay {
            day_at: Timestamp::UNIX_EPOCH + day * DAY,
            model: Arc::from(model),
            credential: None,
            requests: 1,
            cache_hits: 0,
            incomplete: 0,
            prompt_tokens: 0,
            completion_tokens: 0,
            cost: Micros::new(cost),
            saved: Micros::ZERO,
            written_off: Micros::ZERO,
        }
    }

    #[test]
    fn a_model_keeps_its_colour_when_the_period_changes() {
        let days: Vec<_> = [("e", 1), ("d", 2), ("c", 3), ("b", 4), ("a", 5), ("a", 1)]
            .into_iter()
            .enumerate()
            .map(|(at, (model, cost))| day(at as u32, model, cost))
            .collect();
        let ranking = Ranking::of(&days);
        assert_eq!(ranking.series(&days), ["a", "b", "c", "d", "Other"]);
        assert_eq!(ranking.series(&days[1..]), ["a", "b", "c", "d"]);
        let last = Period::last(2, Timestamp::UNIX_EPOCH + 5 * DAY);
        let number = |at: Timestamp| (at.as_secs() / 86_400).to_string();
        let bars = ranking.bars(&days[1..], last, 4, number);
        let seen: Vec<_> = bars
            .iter()
            .map(|bar| {
                (
                    bar.link.as_str(),
                    bar.amounts.iter().map(|amount| amount.get()).collect(),
                )
            })
            .collect();
        let expected: Vec<(&str, Vec<i64>)> =
            vec![("4", vec![5, 0, 0, 0]), ("5", vec![1, 0, 0, 0])];
        assert_eq!(seen, expected);
    }

    #[test]
    fn fewer_models_than_colours_leave_no_empty_name_behind() {
        let days = [day(1, "a", 3), day(1, "b", 1)];
        let ranking = Ranking::of(&days);
        assert_eq!(ranking.series(&days), ["a", "b"]);
        assert_eq!(Ranking::default().series(&[]), [""; 0]);
    }

    proptest! {
        #[test]
        fn a_chart_shows_all_spending(
            spent in prop::collection::vec((0u32..40, 0usize..7, 0i64..1_000_000), 0..60),
        ) {
            let days: Vec<_> = spent.iter().map(|&(at, model, cost)| day(at, &format!("m{model}"), cost)).collect();
            let ranking = Ranking::of(&days);
            let series = ranking.series(&days).len();
            let period = Period::last(40, Timestamp::UNIX_EPOCH + 39 * DAY);
            let bars = ranking.bars(&days, period, series, |_| String::new());
            let shown: i64 = bars.iter().flat_map(|bar| &bar.amounts).map(|amount| amount.get()).sum();
            let cost: i64 = spent.iter().map(|(_, _, cost)| cost).sum();
            prop_assert_eq!(shown, cost);
        }
    }
}
