//! The scale of an axis: a few round steps.

use tollgate_money::Micros;

use crate::format;

/// Maximum number of steps.
const STEPS_MAX: i64 = 5;

/// From zero to a round amount, in three to five steps of 1, 2 or 5 times a power of ten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scale {
    /// Micro-credits.
    step: i64,
    steps: i64,
}

impl Scale {
    /// A scale for amounts up to `highest`.
    pub(super) fn to(highest: Micros) -> Scale {
        // Below 3, no step is small enough for three steps.
        let highest = highest.get().max(3);
        // The sequence 1, 2, 5, 10, 20, 50 ...: neighbours differ by a factor of 2.5 at most, so the first step that is needed at most five
        // times is needed more than twice.
        let steps = (0..).flat_map(|power| {
            [1, 2, 5].map(|head| 10i64.saturating_pow(power).saturating_mul(head))
        });
        let step = steps
            .take_while(|&step| step < i64::MAX / 10)
            .find(|&step| ceil(highest, step) <= STEPS_MAX)
            .unwrap_or(i64::MAX / STEPS_MAX);
        Scale {
            step,
            steps: ceil(highest, step),
        }
    }

    /// Number of steps.
    pub(super) fn steps(&self) -> i64 {
        self.steps
    }

    /// Labels of the grid lines from the base up, with the decimals of the step.
    pub(super) fn labels(&self) -> Vec<String> {
        let places = places(self.step);
        (0..=self.steps)
            .map(|line| match line {
                0 => "0".to_owned(),
                _ => format::credits(Micros::new(self.step.saturating_mul(line)), places),
            })
            .collect()
    }

    /// Height of an amount in a chart of this many units; a positive amount is at least one unit high.
    pub(super) fn height(&self, amount: Micros, units: i64) -> i64 {
        if !amount.is_positive() {
            return 0;
        }
        let top = i128::from(self.step) * i128::from(self.steps);
        let height = i128::from(amount.get()) * i128::from(units) / top;
        // Limited to the chart height, which fits the highest amount.
        i64::try_from(height).unwrap_or(units).clamp(1, units)
    }
}

/// Number of steps in a non-negative amount, rounded up.
fn ceil(amount: i64, step: i64) -> i64 {
    amount / step + i64::from(amount % step > 0)
}

/// Decimals needed for a step of micro-credits.
fn places(step: i64) -> u32 {
    (0..6)
        .find(|&places| step % 10i64.pow(6 - places) == 0)
        .unwrap_or(6)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn axes_have_round_steps() {
        //    highest day       labels
        check(24_600_000, &["0", "5", "10", "15", "20", "25"]);
        check(12_500_000, &["0", "5", "10", "15"]);
        check(10_000_000, &["0", "2", "4", "6", "8", "10"]);
        check(10_000_001, &["0", "5", "10", "15"]);
        check(90_000, &["0", "0.02", "0.04", "0.06", "0.08", "0.10"]);
        check(
            4_200_000_000,
            &["0", "1,000", "2,000", "3,000", "4,000", "5,000"],
        );
        check(0, &["0", "0.000001", "0.000002", "0.000003"]);

        fn check(highest: i64, labels: &[&str]) {
            assert_eq!(
                Scale::to(Micros::new(highest)).labels(),
                labels,
                "{highest}"
            );
        }
    }

    proptest! {
        #[test]
        fn three_to_five_steps_of_one_two_or_five_hold_every_amount(highest in 0i64..i64::MAX / 100) {
            let scale = Scale::to(Micros::new(highest));
            prop_assert!((3..=5).contains(&scale.steps), "{scale:?}");
            prop_assert!(scale.step * scale.steps >= highest);
            let mut head = scale.step;
            while head % 10 == 0 { head /= 10; }
            prop_assert!([1, 2, 5].contains(&head), "{scale:?}");
        }
    }
}
