//! What a payment provider can be asked for that charges again and again, without naming one or how it is reached.

use async_trait::async_trait;
use tollgate_money::{MandateId, Usd};

use crate::topups::FailureKind;

/// A payment provider that has buyers agree to be charged each month, and then charges them by itself.
#[async_trait]
pub trait Recurring: Send + Sync {
    /// Reads the plan that subscriptions are made for.
    async fn plan(&self) -> Result<ProviderPlan, RecurringError>;

    /// Makes a subscription. Asked again under the same key, it gives the same one.
    async fn create(
        &self,
        new: &NewSubscription<'_>,
    ) -> Result<CreatedSubscription, RecurringError>;

    /// Reads a subscription.
    async fn read(&self, subscription: &str) -> Result<ProviderSubscription, RecurringError>;

    /// The charges of a subscription between two times (Unix microseconds), in any order. A charge may be listed some time after it was
    /// made.
    async fn charges(
        &self,
        subscription: &str,
        from: i64,
        to: i64,
    ) -> Result<Vec<Charge>, RecurringError>;

    /// Starts a subscription that its buyer has agreed to and that does not start by itself.
    async fn activate(&self, subscription: &str, reason: &str) -> Result<(), RecurringError>;

    /// Ends a subscription: nothing more is charged. An answer that is there says no more than one that was lost; the subscription does.
    async fn cancel(&self, subscription: &str, reason: &str) -> Result<(), RecurringError>;

    /// Gives the money of a charge back, all of it. Asked again under the same key, it gives nothing more.
    async fn refund(&self, charge: &str, key: &str, reason: &str) -> Result<(), RecurringError>;
}

/// A plan as the provider tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderPlan {
    /// The provider's id.
    pub id: String,
    /// Whether subscriptions can be made for it.
    pub is_active: bool,
    /// What it charges each month without end; `None` when it does anything else.
    pub monthly: Option<Usd>,
}

/// A subscription to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewSubscription<'a> {
    /// Under which the provider makes it once.
    pub key: &'a str,
    /// The mandate it is for.
    pub mandate: MandateId,
    /// The provider's plan.
    pub plan_id: &'a str,
    /// Where the buyer comes back to.
    pub return_url: &'a str,
    /// Where the buyer comes back to without having agreed.
    pub cancel_url: &'a str,
}

/// A subscription that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedSubscription {
    /// The provider's id.
    pub subscription: String,
    /// Where the buyer agrees to it.
    pub approve_url: String,
}

/// A subscription as the provider tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderSubscription {
    /// How far it has come.
    pub status: Status,
    /// The plan it is for.
    pub plan_id: String,
    /// The mandate that it says it is for, as it was told when it was made.
    pub mandate: Option<String>,
    /// Whether it charges otherwise than its plan: other terms, or for more than one.
    pub is_changed: bool,
    /// When it charges next, Unix microseconds.
    pub next_charge: Option<i64>,
    /// The last payment: how much (`None` when it is not dollars), and when (Unix microseconds).
    pub last_payment: Option<(Option<Usd>, i64)>,
    /// What is owed; `None` when nobody says, or it is not dollars.
    pub outstanding: Option<Usd>,
    /// When a charge last failed, Unix microseconds; `None` once one has succeeded again.
    pub failed_at: Option<i64>,
    /// Why, in the provider's word.
    pub failed_why: Option<String>,
}

/// How far a subscription has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The buyer has yet to agree, or the provider has not caught up.
    Waiting,
    /// The buyer has agreed; it has to be started.
    Approved,
    /// It charges. That it has charged is said by its charges alone.
    Active,
    /// It charges no more, and may again.
    Suspended,
    /// A party has ended it.
    Cancelled,
    /// It has ended by itself.
    Expired,
}

/// A charge as the provider tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The provider's id of the payment.
    pub id: String,
    /// What came of it.
    pub status: ChargeStatus,
    /// How much; `None` when it is not dollars.
    pub amount: Option<Usd>,
    /// When, Unix microseconds.
    pub at: i64,
}

/// What came of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeStatus {
    /// The money is there, whether or not some of it has gone back since.
    Completed,
    /// It is on its way.
    Pending,
    /// It was not there to be taken.
    Declined,
    /// All of it went back to the buyer.
    Returned,
}

/// Why the provider did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct RecurringError {
    /// What it means.
    pub kind: FailureKind,
    /// For the log: the provider's own word, and what support asks for.
    pub message: String,
}
