//! An account's subscription to the plan, and the payments for the subscription.

use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros, PaymentId, SubscriptionId, Usd};

use crate::codes::{PaymentStatus, Route, SubscriptionStatus};

/// A stored subscription: an account has at most one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionRow {
    /// The id, which changes when the plan is bought again after its end.
    pub id: SubscriptionId,
    /// The account.
    pub account: AccountId,
    /// The payment route.
    pub route: Route,
    /// The route's reference: a transaction, or the provider's own subscription.
    pub reference: Arc<str>,
    /// Last known status. The end depends on the time alone: [`SubscriptionRow::status_at`].
    pub status: SubscriptionStatus,
    /// When the period started.
    pub period_start: Timestamp,
    /// Exclusive: access ends here.
    pub period_end: Timestamp,
    /// The part of the time before the end that was paid by another route than the renewing route.
    pub extra: Duration,
    /// Whether the next period may be charged automatically.
    pub renews: bool,
    /// Row version from 0, for optimistic locking: a change names the version of the row it changes.
    pub version: i64,
    /// Time of purchase.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
}

impl SubscriptionRow {
    /// Whether the subscription gives access at `now`.
    pub fn is_active(&self, now: Timestamp) -> bool {
        now < self.period_end
    }

    /// The status at `now`: expired past the end, whatever the last known status.
    pub fn status_at(&self, now: Timestamp) -> SubscriptionStatus {
        let status = match self.status {
            // The failed charge is not retried any more: the status is a cancelled renewal.
            SubscriptionStatus::PastDue if !self.renews => SubscriptionStatus::Active,
            status => status,
        };
        match status {
            status if self.is_active(now) => status,
            SubscriptionStatus::Canceled => SubscriptionStatus::Canceled,
            // The subscription renewed itself, and its owner has cancelled the renewal.
            SubscriptionStatus::Active if self.route == Route::PayPal && !self.renews => {
                SubscriptionStatus::Canceled
            }
            _ => SubscriptionStatus::Expired,
        }
    }
}

/// The ledger reference of a payment's credits, unique per payment.
pub fn plan_reference(route: Route, provider_ref: &str) -> Arc<str> {
    Arc::from(format!("plan/{}/{provider_ref}", route.word()))
}

/// A stored payment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaymentRow {
    /// The payment's id.
    pub id: PaymentId,
    /// The account.
    pub account: AccountId,
    /// The subscription of the payment.
    pub subscription: SubscriptionId,
    /// The payment route.
    pub route: Route,
    /// The route's reference. Unique: a payment counts only once.
    pub provider_ref: Arc<str>,
    /// The amount.
    pub amount: Usd,
    /// The granted credits.
    pub credits: Micros,
    /// Start of the paid period.
    pub period_start: Timestamp,
    /// End of the paid period, exclusive.
    pub period_end: Timestamp,
    /// Whether the payment was kept or returned.
    pub status: PaymentStatus,
    /// The receipt given to the buyer, in the format of the route.
    pub receipt: Option<Arc<str>>,
    /// Time of payment.
    pub at: Timestamp,
    /// Time of return.
    pub returned_at: Option<Timestamp>,
    /// Credits still to be taken back, since the credits were held or spent at the return. `None` for a kept payment, and for a return by
    /// an earlier release.
    pub owed: Option<Micros>,
    /// Attempts to take the credits back since the last attempt that took credits (column `looks`).
    pub attempts: u32,
    /// When the next attempt is due (column `look_at`).
    pub next_attempt_at: Option<Timestamp>,
}

/// A change of subscriptions or payments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanPart {
    /// Replaces the subscription with the previous version (optimistic locking), or stores the account's first subscription when the
    /// version is 0. [`crate::Refusal::SubscriptionConflict`] after a concurrent change. The account has the class until the period's end.
    Put {
        /// The row.
        row: SubscriptionRow,
        /// The plan's class.
        class: Arc<str>,
    },
    /// Stores a payment: [`crate::Refusal::PaymentKnown`] when a payment with an equal route and reference is stored.
    Pay(PaymentRow),
    /// Replaces status, return and owed credits of a payment. [`crate::Refusal::PaymentKnown`] when the stored status and owed credits
    /// differ from `before`, or the payment is not stored.
    ChangePayment {
        /// The row after the change.
        row: PaymentRow,
        /// Status and owed credits before the change.
        before: (PaymentStatus, Option<Micros>),
    },
}
