//! Whether the provider's plan is the one that is sold here. A plan that was changed at the provider's must not change the price.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use super::processor::Inner;
use super::recurring::ProviderPlan;
use crate::plan::PRICE;

/// How often a plan that fits is read again.
const EVERY: i64 = 3600 * 1_000_000;

/// How often one that does not fit, or was not to be had, is.
const AGAIN: i64 = 30 * 1_000_000;

/// How often it is looked whether it is time.
pub(super) const TURN: Duration = Duration::from_secs(5);

/// What is known of the provider's plan.
#[derive(Debug, Default)]
pub(super) struct PlanCheck {
    /// Why it is not sold; `None` once it was seen to fit.
    pub(super) closed: Option<String>,
    /// Unix microseconds; `None` before the first look.
    pub(super) checked_at: Option<i64>,
}

/// Why a plan cannot be sold, in words for the log.
fn mismatch(plan: &ProviderPlan, wanted: &str) -> Option<String> {
    if plan.id != wanted {
        return Some(format!("the provider answers with plan `{}`", plan.id));
    }
    if !plan.is_active {
        return Some(format!(
            "plan `{wanted}` is not active at the provider; activate it there"
        ));
    }
    match plan.monthly {
        Some(price) if price == PRICE => None,
        Some(price) => Some(format!(
            "plan `{wanted}` costs {price} USD a month, and {PRICE} USD is charged here; `tollgate paypal setup` makes one that fits"
        )),
        None => Some(format!(
            "plan `{wanted}` does not charge {PRICE} USD each month without end; `tollgate paypal setup` makes one that does"
        )),
    }
}

impl Inner {
    /// Why mandates cannot be opened now; reads the plan first when that is due.
    pub(super) async fn closed(&self) -> Option<String> {
        let Some(plan_id) = &self.plan_id else {
            return Some(String::from(
                "the settings name no plan of the payment provider's",
            ));
        };
        // One reads, and the others wait for what it finds.
        let _reading = self.reads_plan.lock().await;
        let now = (self.now)();
        let (before, checked_at) = {
            let known = self.known();
            (known.closed.clone(), known.checked_at)
        };
        let wait = match before {
            None => EVERY,
            Some(_) => AGAIN,
        };
        if checked_at.is_some_and(|at| (at..at + wait).contains(&now)) {
            return before;
        }
        let is_first = checked_at.is_none();
        let closed = match self.recurring.plan().await {
            Ok(plan) => mismatch(&plan, plan_id),
            // Once it has fitted, an answer that is missing says nothing about it.
            Err(error) if !is_first && before.is_none() => {
                tracing::warn!(plan = %plan_id, cause = %error, "could not read the plan at the payment provider again");
                None
            }
            Err(error) => Some(format!("plan `{plan_id}` could not be read: {error}")),
        };
        match &closed {
            Some(why) if is_first || before.as_ref() != Some(why) => {
                tracing::error!(
                    why,
                    "the plan is not sold by recurring payment; it is looked at again"
                );
            }
            None if is_first || before.is_some() => {
                tracing::info!(plan = %plan_id, price = %PRICE, "the plan is sold by recurring payment");
            }
            _ => {}
        }
        *self.known() = PlanCheck {
            closed: closed.clone(),
            checked_at: Some(now),
        };
        closed
    }

    /// Whether the plan was last seen to fit; `None` before it was read.
    pub(super) fn is_sold(&self) -> Option<bool> {
        let known = self.known();
        known.checked_at.map(|_| known.closed.is_none())
    }

    /// Has the plan read again before the next mandate is opened.
    pub(super) fn invalidate_plan_check(&self) {
        *self.known() = PlanCheck {
            closed: Some(String::from("the payment provider refused the plan")),
            checked_at: None,
        };
    }

    fn known(&self) -> MutexGuard<'_, PlanCheck> {
        self.plan_check
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tollgate_money::Usd;

    use super::*;

    #[test]
    fn only_the_plan_that_is_sold_here_may_be_sold() {
        let plan = |is_active, monthly| ProviderPlan {
            id: String::from("P-1"),
            is_active,
            monthly,
        };
        assert_eq!(mismatch(&plan(true, Some(PRICE)), "P-1"), None);
        for (seen, wanted) in [
            (plan(true, Some(PRICE)), "P-2"),
            (plan(false, Some(PRICE)), "P-1"),
            (plan(true, Some(Usd::from_cents(24_900))), "P-1"),
            (plan(true, None), "P-1"),
        ] {
            assert!(mismatch(&seen, wanted).is_some(), "{seen:?} for {wanted}");
        }
    }
}
