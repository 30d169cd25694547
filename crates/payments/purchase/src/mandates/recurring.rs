//! Interface to a payment provider with recurring charges.

use async_trait::async_trait;
use tollgate_clock::Timestamp;
use tollgate_money::{MandateId, Usd};

use crate::topups::FailureKind;

/// A payment provider with buyers' consent to a monthly charge, made by the provider.
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

    /// Suspends an active subscription: no charge until activation.
    async fn suspend(&self, subscription: &str, reason: &str) -> Result<(), RecurringError>;

    /// Activates a subscription that the buyer has agreed to and the provider does not start, or a subscription suspended by us.
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
    /// Mandate of the subscription.
    pub mandate: MandateId,
    /// The provider's plan.
    pub plan_id: &'a str,
    /// Redirect URL after the approval page.
    pub return_url: &'a str,
    /// Redirect URL after the buyer has declined.
    pub cancel_url: &'a str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedSubscription {
    /// The provider's id.
    pub subscription: String,
    /// Page for the buyer's consent.
    pub approve_url: String,
}

/// A subscription as read from the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderSubscription {
    pub status: Status,
    pub plan_id: String,
    /// The mandate id sent at creation.
    pub mandate: Option<String>,
    /// Whether the billing differs from the plan: other terms, or a quantity above one.
    pub is_changed: bool,
    /// The next due time.
    pub next_charge: Option<Timestamp>,
    /// The last payment: amount (`None` if not in US dollars) and time.
    pub last_payment: Option<(Option<Usd>, Timestamp)>,
    /// The outstanding balance; `None` if missing or not in US dollars.
    pub outstanding: Option<Usd>,
    /// Time of the last failed charge; `None` after a later success.
    pub failed_at: Option<Timestamp>,
    /// Why, as the provider's reason code.
    pub failed_why: Option<String>,
}

/// Status of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The buyer has not agreed yet, or the provider does not show it yet.
    Waiting,
    /// The buyer has agreed; activation is missing.
    Approved,
    /// Active. Only charges prove payments.
    Active,
    /// Suspended; resumption is possible.
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
    pub status: ChargeStatus,
    /// The amount; `None` if not in US dollars.
    pub amount: Option<Usd>,
    /// The time.
    pub at: Timestamp,
}

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
    /// The class, which decides on retries.
    pub kind: FailureKind,
    /// For the log: the provider's message and its support reference.
    pub message: String,
}
