//! Check that the provider's plan matches the plan on sale. A change of the plan at the provider must not change the price.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::MutexGuard;
use tollgate_clock::Timestamp;

use super::context::MandateContext;
use super::recurring::ProviderPlan;
use crate::plan::PRICE;

/// Interval at which a matching plan is read again.
const RECHECK_INTERVAL: Duration = Duration::from_hours(1);

/// Interval after a mismatch or a failed read.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Polling interval of the check.
pub(super) const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Result of the last check of the provider's plan.
#[derive(Debug, Default)]
pub(super) struct PlanCheck {
    /// Why the plan is not sold; `None` after a match.
    pub(super) closed: Option<String>,
    /// `None` before the first check.
    pub(super) checked_at: Option<Timestamp>,
}

impl PlanCheck {
    /// Whether the plan is to be read again, or for the first time.
    fn is_due(&self, now: Timestamp) -> bool {
        let wait = match self.closed {
            None => RECHECK_INTERVAL,
            Some(_) => RETRY_INTERVAL,
        };
        !self
            .checked_at
            .is_some_and(|at| (at..at + wait).contains(&now))
    }
}

/// Why the provider's plan does not match, for the log.
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

impl MandateContext {
    /// Why mandates cannot be opened now; reads the plan first when a check is due.
    pub(super) async fn closed(&self) -> Option<String> {
        let Some(plan_id) = &self.plan_id else {
            return Some(String::from(
                "the settings name no plan of the payment provider",
            ));
        };
        // Single flight: one caller reads, the others wait for the result.
        let _reading = self.reads_plan.lock().await;
        let now = self.clock.now();
        let (before, is_first, is_due) = {
            let known = self.known();
            let is_first = known.checked_at.is_none();
            (known.closed.clone(), is_first, known.is_due(now))
        };
        if !is_due {
            return before;
        }
        let closed = match self.recurring.plan().await {
            Ok(plan) => mismatch(&plan, plan_id),
            // A failed read does not invalidate an earlier match.
            Err(error) if !is_first && before.is_none() => {
                tracing::warn!(plan = %plan_id, cause = %error, "reading provider plan failed, keeping the last result");
                None
            }
            Err(error) => Some(format!("plan `{plan_id}` could not be read: {error}")),
        };
        match &closed {
            Some(why) if is_first || before.as_ref() != Some(why) => {
                tracing::error!(
                    why,
                    "provider plan check failed, recurring sales paused until it matches"
                );
            }
            None if is_first || before.is_some() => {
                tracing::info!(plan = %plan_id, price = %PRICE, "provider plan check passed, recurring sales open");
            }
            _ => {}
        }
        *self.known() = PlanCheck {
            closed: closed.clone(),
            checked_at: Some(now),
        };
        closed
    }

    /// Whether the last check matched; `None` before the first check. A due check runs in a separate task, for the next caller. Unasked,
    /// only the leader checks.
    pub(super) fn is_sold(self: &Arc<Self>) -> Option<bool> {
        let (is_sold, is_due) = {
            let known = self.known();
            let is_sold = known.checked_at.map(|_| known.closed.is_none());
            (is_sold, known.is_due(self.clock.now()))
        };
        let is_read = self.reads_plan.try_lock().is_err();
        if is_sold.is_some() && is_due && !is_read {
            let this = self.clone();
            self.runtime.spawn(async move { this.closed().await });
        }
        is_sold
    }

    /// Invalidates the check: the plan is read again before the next mandate is opened.
    pub(super) fn invalidate_plan_check(&self) {
        *self.known() = PlanCheck {
            closed: Some(String::from("the payment provider refused the plan")),
            checked_at: None,
        };
    }

    fn known(&self) -> MutexGuard<'_, PlanCheck> {
        self.plan_check.lock()
    }
}

#[cfg(test)]
mod tests {
    use tollgate_money::Usd;

    use super::*;

    #[test]
    fn only_a_matching_provider_plan_is_sold() {
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
