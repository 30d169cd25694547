//! What an account has of the plan, and what was paid for it.

use std::sync::Arc;

use tollgate_money::{AccountId, Micros, PaymentId, SubscriptionId, Usd};

use crate::codes::{PaymentStatus, Route, SubscriptionStatus};
use crate::error::ReadError;

/// A subscription as it is stored: an account has at most one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionRow {
    /// Its id; another one when the plan is bought again after it has ended.
    pub id: SubscriptionId,
    /// Whose.
    pub account: AccountId,
    /// How it is paid.
    pub route: Route,
    /// What the route calls it: a transaction, or the provider's own subscription.
    pub reference: Arc<str>,
    /// What was last heard. Whether it has ended is said by the time alone: [`SubscriptionRow::status_at`].
    pub status: SubscriptionStatus,
    /// Unix microseconds.
    pub period_start: i64,
    /// Unix microseconds, exclusive: access ends here.
    pub period_end: i64,
    /// How much of the time before the end was paid for by another route than the one that renews it, microseconds.
    pub extra: i64,
    /// Whether somebody has leave to charge for the next period.
    pub renews: bool,
    /// Counts the changes, from 0. Whoever changes the row names the version it has seen.
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

    /// The status at `now` (Unix microseconds): past its end it is over, whatever was last heard.
    pub fn status_at(&self, now: i64) -> SubscriptionStatus {
        match self.status {
            status if self.is_active(now) => status,
            SubscriptionStatus::Canceled => SubscriptionStatus::Canceled,
            // It was to be renewed once, and its owner has put an end to that.
            SubscriptionStatus::Active if self.route == Route::PayPal && !self.renews => {
                SubscriptionStatus::Canceled
            }
            _ => SubscriptionStatus::Expired,
        }
    }
}

/// What the books call the credits of a payment: one name for each.
pub fn plan_reference(route: Route, provider_ref: &str) -> Arc<str> {
    Arc::from(format!("plan/{}/{provider_ref}", route.word()))
}

/// A payment as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaymentRow {
    /// Its id.
    pub id: PaymentId,
    /// Whose.
    pub account: AccountId,
    /// The subscription it was for.
    pub subscription: SubscriptionId,
    /// How it was paid.
    pub route: Route,
    /// What the route calls it. Taken once: this is what makes a payment count once.
    pub provider_ref: Arc<str>,
    /// How much.
    pub amount: Usd,
    /// The credits that it gave.
    pub credits: Micros,
    /// Unix microseconds: the time it paid for begins.
    pub period_start: i64,
    /// Unix microseconds, exclusive.
    pub period_end: i64,
    /// Whether it is still ours.
    pub status: PaymentStatus,
    /// What the buyer was given as proof, in the form of the route.
    pub receipt: Option<Arc<str>>,
    /// Unix microseconds.
    pub at: i64,
    /// Unix microseconds at which it went back.
    pub returned_at: Option<i64>,
}

/// A change of what accounts have of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanPart {
    /// Stores a subscription in the place of the one that had the version before its own, or as the account's first when its version is 0:
    /// [`crate::Refusal::SubscriptionMoved`] when somebody else has changed it. The account has the class until the period's end.
    Put {
        /// The row.
        row: SubscriptionRow,
        /// The class that the plan gives.
        class: Arc<str>,
    },
    /// Stores a payment: [`crate::Refusal::PaymentKnown`] when one of the same route and reference is stored.
    Pay(PaymentRow),
    /// Notes that a payment went back: [`crate::Refusal::PaymentKnown`] when it had before, or is not stored.
    Return {
        /// How it was paid.
        route: Route,
        /// What the route calls it.
        provider_ref: Arc<str>,
        /// Unix microseconds.
        at: i64,
    },
}

/// Subscriptions and payments as they are committed. Blocks, as [`crate::Read`] does.
pub trait ReadPlans {
    /// What an account has, ended or not.
    fn subscription(&self, account: AccountId) -> Result<Option<SubscriptionRow>, ReadError>;

    /// One payment.
    fn payment(&self, route: Route, provider_ref: &str) -> Result<Option<PaymentRow>, ReadError>;

    /// At most `limit` payments of an account, newest first.
    fn payments_of(&self, account: AccountId, limit: usize) -> Result<Vec<PaymentRow>, ReadError>;

    /// How many subscriptions give access at `now` (Unix microseconds).
    fn subscriptions_active(&self, now: i64) -> Result<u64, ReadError>;
}
