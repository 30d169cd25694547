//! What is known of an account that wants to buy.

use tollgate_store::{AuthorizationRow, MandateRow, MandateState, SubscriptionRow};

use super::{DAY, Plan};
use crate::mandates::is_past_due;

/// What an account has, and what is under way, at one moment.
#[derive(Clone, Debug)]
pub struct PlanState {
    /// The moment, Unix microseconds.
    pub now: i64,
    /// What it has of the plan, ended or not.
    pub subscription: Option<SubscriptionRow>,
    /// Its leave to be charged each month, if there is one to speak of: what is offered, agreed to or charged, or else what was last.
    pub mandate: Option<MandateRow>,
    /// A signed transfer of it that may still move money.
    pub authorization: Option<AuthorizationRow>,
    pub(super) renewal_days: u32,
}

impl PlanState {
    /// A standing at `now` (Unix microseconds).
    pub fn new(plan: &Plan, now: i64, subscription: Option<SubscriptionRow>) -> PlanState {
        PlanState {
            now,
            subscription,
            mandate: None,
            authorization: None,
            renewal_days: plan.renewal_days,
        }
    }

    /// Whether money may be moving for the plan on any route. As long as it may, nobody is shown how to pay.
    pub fn money_may_move(&self) -> bool {
        self.authorization.is_some() || self.awaits_first_charge()
    }

    /// What it has, while that gives access.
    pub fn active(&self) -> Option<&SubscriptionRow> {
        self.subscription
            .as_ref()
            .filter(|row| row.is_active(self.now))
    }

    /// Whether it has the plan.
    pub fn is_active(&self) -> bool {
        self.active().is_some()
    }

    /// Whether it has the plan and may pay for the next period all the same: nobody renews it, and its end is near.
    pub fn may_renew(&self) -> bool {
        self.active().is_some_and(|row| {
            !row.renews && row.period_end - self.now <= i64::from(self.renewal_days) * DAY
        })
    }

    /// Whether a mandate was agreed to whose first payment has yet to come: money may move at any time, and no other payment is asked for
    /// before that is clear. Not so when that payment has failed.
    pub fn awaits_first_charge(&self) -> bool {
        self.mandate
            .as_ref()
            .is_some_and(|row| row.state == MandateState::Agreed && !is_past_due(row))
    }
}
