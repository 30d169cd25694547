//! An account's subscription to the plan, and the payments for it.

use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros, PaymentId, SubscriptionId, Usd};

use crate::codes::{PaymentStatus, Route, SubscriptionStatus};

/// A stored subscription: an account has at most one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionRow {
    /// Its id; a new one when the plan is bought again after it has ended.
    pub id: SubscriptionId,
    /// The account.
    pub account: AccountId,
    /// The payment route.
    pub route: Route,
    /// The route's reference: a transaction, or the provider's own subscription.
    pub reference: Arc<str>,
    /// Last known status. Whether it has ended depends on the time alone: [`SubscriptionRow::status_at`].
    pub status: SubscriptionStatus,
    /// When the period started.
    pub period_start: Timestamp,
    /// Exclusive: access ends here.
    pub period_end: Timestamp,
    /// The part of the time before the end that was paid by another route than the renewing one.
    pub extra: Duration,
    /// Whether the next period may be charged automatically.
    pub renews: bool,
    /// Row version from 0, for optimistic locking: a change names the version it is based on.
    pub version: i64,
    /// When it was bought.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

impl SubscriptionRow {
    /// Whether it gives access at `now`.
    pub fn is_active(&self, now: Timestamp) -> bool {
        now < self.period_end
    }

    /// The status at `now`: expired past its end, whatever the last known status.
    pub fn status_at(&self, now: Timestamp) -> SubscriptionStatus {
        let status = match self.status {
            // The charge that failed is retried no more: what is left is a cancelled renewal.
            SubscriptionStatus::PastDue if !self.renews => SubscriptionStatus::Active,
            status => status,
        };
        match status {
            status if self.is_active(now) => status,
            SubscriptionStatus::Canceled => SubscriptionStatus::Canceled,
            // It was renewing, and its owner has cancelled the renewal.
            SubscriptionStatus::Active if self.route == Route::PayPal && !self.renews => {
                SubscriptionStatus::Canceled
            }
            _ => SubscriptionStatus::Expired,
        }
    }
}

/// The ledger reference of a payment's credits: one for each.
pub fn plan_reference(route: Route, provider_ref: &str) -> Arc<str> {
    Arc::from(format!("plan/{}/{provider_ref}", route.word()))
}

/// A stored payment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaymentRow {
    /// Its id.
    pub id: PaymentId,
    /// The account.
    pub account: AccountId,
    /// The subscription it paid for.
    pub subscription: SubscriptionId,
    /// The payment route.
    pub route: Route,
    /// The route's reference. Unique: this makes a payment count once.
    pub provider_ref: Arc<str>,
    /// The amount.
    pub amount: Usd,
    /// The credits it granted.
    pub credits: Micros,
    /// Start of the period it paid for.
    pub period_start: Timestamp,
    /// Its end, exclusive.
    pub period_end: Timestamp,
    /// Whether it was kept or returned.
    pub status: PaymentStatus,
    /// The receipt given to the buyer, in the format of the route.
    pub receipt: Option<Arc<str>>,
    /// When it was paid.
    pub at: Timestamp,
    /// When it was returned.
    pub returned_at: Option<Timestamp>,
    /// Credits still to be taken back: they were held or spent when it was returned. `None` while it is kept, and where an earlier release
    /// returned it.
    pub owed: Option<Micros>,
    /// Attempts to take them back since the last that took any (column `looks`).
    pub attempts: u32,
    /// When the next attempt is due (column `look_at`).
    pub next_attempt_at: Option<Timestamp>,
}

/// A change of subscriptions or payments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanPart {
    /// Replaces the subscription with the previous version (optimistic locking), or stores the account's first when its version is 0:
    /// [`crate::Refusal::SubscriptionConflict`] after a concurrent change. The account has the class until the period's end.
    Put {
        /// The row.
        row: SubscriptionRow,
        /// The class that the plan gives.
        class: Arc<str>,
    },
    /// Stores a payment: [`crate::Refusal::PaymentKnown`] when one with the same route and reference is stored.
    Pay(PaymentRow),
    /// Replaces status, return and owed credits of a payment: [`crate::Refusal::PaymentKnown`] when its status and owed credits are not
    /// those that the change is based on, or it is not stored.
    ChangePayment {
        /// The row after it.
        row: PaymentRow,
        /// Status and owed credits before it.
        before: (PaymentStatus, Option<Micros>),
    },
}
