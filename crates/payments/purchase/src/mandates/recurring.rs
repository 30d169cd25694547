//! Interface to a payment provider with recurring charges.

use async_trait::async_trait;
use tollgate_clock::Timestamp;
use tollgate_money::{MandateId, Usd};

use crate::topups::FailureKind;

/// A payment provider on which buyers agree to a monthly charge, which it then makes by itself.
#[async_trait]
pub trait Recurring: Send + Sync {
    /// Reads the plan that subscriptions are created for.
    async fn plan(&self) -> Result<ProviderPlan, RecurringError>;

    /// Creates a subscription. Idempotent by its key.
    async fn create(
        &self,
        new: &NewSubscription<'_>,
    ) -> Result<CreatedSubscription, RecurringError>;

    /// Reads a subscription.
    async fn read(&self, subscription: &str) -> Result<ProviderSubscription, RecurringError>;

    /// The charges of a subscription between two times, in any order. A charge may be listed some time after it was made.
    async fn charges(
        &self,
        subscription: &str,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<Charge>, RecurringError>;

    /// Suspends an active subscription: nothing is charged until it is activated again.
    async fn suspend(&self, subscription: &str, reason: &str) -> Result<(), RecurringError>;

    /// Activates a subscription that its buyer has agreed to and that does not start by itself, or one that was suspended by us.
    async fn activate(&self, subscription: &str, reason: &str) -> Result<(), RecurringError>;

    /// Cancels a subscription: nothing more is charged. The outcome is read from the subscription, not from the answer.
    async fn cancel(&self, subscription: &str, reason: &str) -> Result<(), RecurringError>;

    /// Refunds a charge in full. Idempotent by its key.
    async fn refund(&self, charge: &str, key: &str, reason: &str) -> Result<(), RecurringError>;
}

/// The provider's plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderPlan {
    /// The provider's id.
    pub id: String,
    /// Whether subscriptions can be created for it.
    pub is_active: bool,
    /// The monthly price without an end date; `None` for any other billing.
    pub monthly: Option<Usd>,
}

/// A subscription to create.
#[derive(Clone, Copy, Debug)]
pub struct NewSubscription<'a> {
    /// Idempotency key.
    pub key: &'a str,
    /// The mandate it is for.
    pub mandate: MandateId,
    /// The provider's plan.
    pub plan_id: &'a str,
    /// Redirect URL after the approval page.
    pub return_url: &'a str,
    /// Redirect URL after the buyer has declined.
    pub cancel_url: &'a str,
}

/// A created subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedSubscription {
    /// The provider's id.
    pub subscription: String,
    /// Where the buyer agrees to it.
    pub approve_url: String,
}

/// A subscription as read from the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderSubscription {
    /// Its status.
    pub status: Status,
    /// Its plan.
    pub plan_id: String,
    /// The mandate id that was sent when it was created.
    pub mandate: Option<String>,
    /// Whether its billing differs from its plan: other terms, or a quantity above one.
    pub is_changed: bool,
    /// The next due time.
    pub next_charge: Option<Timestamp>,
    /// The last payment: amount (`None` when it is not in US dollars) and time.
    pub last_payment: Option<(Option<Usd>, Timestamp)>,
    /// The outstanding balance; `None` when it is not given or not in US dollars.
    pub outstanding: Option<Usd>,
    /// When a charge last failed; `None` once one has succeeded again.
    pub failed_at: Option<Timestamp>,
    /// Why, as the provider's reason code.
    pub failed_why: Option<String>,
}

/// Status of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The buyer has not agreed yet, or the provider does not show it yet.
    Waiting,
    /// The buyer has agreed; it has to be activated.
    Approved,
    /// Active. Payments are proved by its charges alone.
    Active,
    /// Suspended; it may be resumed.
    Suspended,
    /// Cancelled by a party.
    Cancelled,
    /// Ended by itself.
    Expired,
}

/// A charge as read from the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The provider's payment id.
    pub id: String,
    /// Its status.
    pub status: ChargeStatus,
    /// The amount; `None` when it is not in US dollars.
    pub amount: Option<Usd>,
    /// The time.
    pub at: Timestamp,
}

/// Status of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeStatus {
    /// The money has arrived, whether or not part of it was refunded since.
    Completed,
    /// The money is pending.
    Pending,
    /// The charge failed.
    Declined,
    /// Refunded in full.
    Returned,
}

/// Why a provider call failed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct RecurringError {
    /// Its class, which decides on retries.
    pub kind: FailureKind,
    /// For the log: the provider's message and its support reference.
    pub message: String,
}
