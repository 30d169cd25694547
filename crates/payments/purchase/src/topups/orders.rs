//! Interface to a payment provider with orders.

use async_trait::async_trait;
use tollgate_money::{TopUpId, Usd};

/// A payment provider with orders: created by us, approved by the buyer, captured on request.
#[async_trait]
pub trait Orders: Send + Sync {
    /// Creates an order. Idempotent by its key.
    async fn create(&self, order: &NewOrder<'_>) -> Result<CreatedOrder, OrderError>;

    /// Reads an order.
    async fn read(&self, order: &str) -> Result<Order, OrderError>;

    /// Captures the payment of an approved order. Idempotent by its key. The outcome is read from the order, not from the answer.
    async fn capture(&self, order: &str, key: &str) -> Result<(), OrderError>;
}

/// An order to create.
#[derive(Clone, Copy, Debug)]
pub struct NewOrder<'a> {
    /// Idempotency key.
    pub key: &'a str,
    /// Purchase paid by the order.
    pub top_up: TopUpId,
    pub price: Usd,
    /// Description shown to the buyer at the provider.
    pub description: &'a str,
    /// Redirect URL after approval.
    pub return_url: &'a str,
    /// Redirect URL after the buyer has declined.
    pub cancel_url: &'a str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedOrder {
    /// The provider's id.
    pub order: String,
    /// Page for the buyer's approval.
    pub approve_url: String,
}

/// An order as read from the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    pub status: OrderStatus,
    /// The price; `None` unless a single amount in US dollars.
    pub price: Option<Usd>,
    /// The purchase id sent at creation.
    pub top_up: Option<String>,
    /// The payment, if any. An order is paid at most once.
    pub capture: Option<Capture>,
    /// The amount refunded to the buyer.
    pub returned: Usd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderStatus {
    /// The buyer has not approved yet.
    Waiting,
    /// Approved; the payment can be captured.
    Approved,
    /// A capture was requested; [`Order::capture`] has its outcome.
    Completed,
    /// Ended without a payment.
    Voided,
}

/// A payment as read from the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// The provider's id.
    pub id: String,
    pub status: CaptureStatus,
    /// The amount; `None` if not in US dollars.
    pub amount: Option<Usd>,
}

/// Status of a capture.
///
/// Ordered: of several attempts the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CaptureStatus {
    Declined,
    Pending,
    /// Complete, possibly with later partial refunds.
    Completed,
}

/// Why a provider call failed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct OrderError {
    /// The class, which decides on retries.
    pub kind: FailureKind,
    /// For the log: the provider's message and its support reference.
    pub message: String,
}

/// Class of a provider failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// No answer, or an unreadable one. The call may or may not have taken effect.
    OutcomeUnknown,
    /// Not carried out, and may be retried: out of service or rate limited.
    Unavailable,
    /// Not carried out: the settings, or the merchant account at the provider, are wrong.
    Misconfigured,
    /// The object does not exist, or no longer does.
    Gone,
    /// The buyer has not approved yet.
    NotApproved,
    /// The payment method was declined; another method may work.
    Declined,
    /// Carried out before.
    AlreadyDone,
    /// Refused for good.
    Refused,
}
