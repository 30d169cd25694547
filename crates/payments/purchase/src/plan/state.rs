//! The state of an account as a buyer: subscription and pending payments.

use tollgate_clock::Timestamp;
use tollgate_money::Usd;
use tollgate_store::{AuthorizationRow, MandateRow, MandateState, SubscriptionRow};

use super::{DAY, Plan};
use crate::mandates::{is_own, is_past_due, next_charge, resumable_until};

/// Subscription and pending payments of an account at one moment.
#[derive(Clone, Debug)]
pub struct PlanState {
    /// The moment.
    pub now: Timestamp,
    /// The subscription, ended or not.
    pub subscription: Option<SubscriptionRow>,
    /// The current mandate: offered, agreed to or charged, or else the latest.
    pub mandate: Option<MandateRow>,
    /// A signed transfer that may still move money.
    pub authorization: Option<AuthorizationRow>,
    /// Whether money may still move on another rail, or the other rail could not be read ([`super::Plans::state_across_rails`]).
    pub is_open_elsewhere: bool,
    pub(super) renewal_days: u32,
}

impl PlanState {
    /// The state at `now`.
    pub fn new(plan: &Plan, now: Timestamp, subscription: Option<SubscriptionRow>) -> PlanState {
        PlanState {
            now,
            subscription,
            mandate: None,
            authorization: None,
            is_open_elsewhere: false,
            renewal_days: plan.renewal_days,
        }
    }

    /// Whether a payment for the plan may be in progress on any route. Other payments are not offered meanwhile.
    pub fn money_may_move(&self) -> bool {
        self.is_open_elsewhere || self.authorization.is_some() || self.awaits_first_charge()
    }

    /// The subscription while it gives access.
    pub fn active(&self) -> Option<&SubscriptionRow> {
        self.subscription
            .as_ref()
            .filter(|row| row.is_active(self.now))
    }

    /// Whether the account has the plan.
    pub fn is_active(&self) -> bool {
        self.active().is_some()
    }

    /// Whether the account has the plan and may still pay for the next period: no automatic renewal, and a near end.
    pub fn may_renew(&self) -> bool {
        self.active().is_some_and(|row| {
            !row.renews && row.period_end.duration_since(self.now) <= DAY * self.renewal_days
        })
    }

    /// The time until which the owner may resume the cancelled plan; `None` if impossible, or if another payment pays the plan by now.
    pub fn resumable_until(&self) -> Option<Timestamp> {
        let mandate = self.mandate.as_ref()?;
        let until = resumable_until(mandate).filter(|until| self.now < *until)?;
        is_own(self.active()?, mandate).then_some(until)
    }

    /// Time and amount of the provider's next charge for the plan; `None` without a next charge, or if its time has passed without a
    /// charge.
    pub fn next_charge(&self) -> Option<(Timestamp, Usd)> {
        let mandate = self.mandate.as_ref()?;
        let row = self.active().filter(|row| row.renews)?;
        let at = next_charge(mandate).filter(|at| self.now < *at)?;
        is_own(row, mandate).then_some((at, mandate.price))
    }

    /// Whether a mandate was agreed to and the first payment is pending. Money may move at any time, and other payments are not offered
    /// until the first payment is final. False after a failure of the first payment.
    pub fn awaits_first_charge(&self) -> bool {
        self.mandate
            .as_ref()
            .is_some_and(|row| row.state == MandateState::Agreed && !is_past_due(row))
    }
}
