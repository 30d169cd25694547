//! An account's subscription to the plan, and the payments for it.

use std::sync::Arc;

use tollgate_money::{AccountId, Micros, PaymentId, SubscriptionId, Usd};

use crate::codes::{PaymentStatus, Route, SubscriptionStatus};
use crate::error::ReadError;

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
    /// Unix microseconds.
    pub period_start: i64,
    /// Unix microseconds, exclusive: access ends here.
    pub period_end: i64,
    /// The part of the time before the end that was paid by another route than the renewing one, in microseconds.
    pub extra: i64,
    /// Whether the next period may be charged automatically.
    pub renews: bool,
    /// Row version from 0, for optimistic locking: a change names the version it is based on.
    pub version: i64,
    /// Unix microseconds.
    pub created_at: i64,
    /// Unix microseconds of the last change.
    pub updated_at: i64,
}

impl SubscriptionRow {
    /// Whether it gives access at `now` (Unix microseconds).
    pub fn is_active(&self, now: i64) -> bool {
        now < self.period_end
    }

    /// The status at `now` (Unix microseconds): expired past its end, whatever the last known status.
    pub fn status_at(&self, now: i64) -> SubscriptionStatus {
        match self.status {
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
    /// Unix microseconds: start of the period it paid for.
    pub period_start: i64,
    /// Unix microseconds, exclusive.
    pub period_end: i64,
    /// Whether it was kept or returned.
    pub status: PaymentStatus,
    /// The receipt given to the buyer, in the format of the route.
    pub receipt: Option<Arc<str>>,
    /// Unix microseconds.
    pub at: i64,
    /// Unix microseconds at which it was returned.
    pub returned_at: Option<i64>,
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
    /// Marks a payment as returned: [`crate::Refusal::PaymentKnown`] when it was already, or is not stored.
    Return {
        /// The payment route.
        route: Route,
        /// The route's reference.
        provider_ref: Arc<str>,
        /// Unix microseconds.
        at: i64,
    },
}

/// Reads of committed subscriptions and payments. Blocks like [`crate::Read`].
pub trait ReadPlans {
    /// The subscription of an account, ended or not.
    fn subscription(&self, account: AccountId) -> Result<Option<SubscriptionRow>, ReadError>;

    /// One payment.
    fn payment(&self, route: Route, provider_ref: &str) -> Result<Option<PaymentRow>, ReadError>;

    /// At most `limit` payments of an account, newest first.
    fn payments_of(&self, account: AccountId, limit: usize) -> Result<Vec<PaymentRow>, ReadError>;

    /// Number of subscriptions that give access at `now` (Unix microseconds).
    fn subscriptions_active(&self, now: i64) -> Result<u64, ReadError>;
}
