//! Interface to a payment provider with orders.

use async_trait::async_trait;
use tollgate_money::{TopUpId, Usd};

/// A payment provider that creates orders, has buyers approve them, and captures the payment on request.
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
    /// The purchase it is for.
    pub top_up: TopUpId,
    /// The price.
    pub price: Usd,
    /// Description shown to the buyer at the provider.
    pub description: &'a str,
    /// Redirect URL after approval.
    pub return_url: &'a str,
    /// Redirect URL after the buyer has declined.
    pub cancel_url: &'a str,
}

/// A created order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedOrder {
    /// The provider's id.
    pub order: String,
    /// Where the buyer approves it.
    pub approve_url: String,
}

/// An order as read from the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Its status.
    pub status: OrderStatus,
    /// The price; `None` when it is not one amount in US dollars.
    pub price: Option<Usd>,
    /// The purchase id that was sent when it was created.
    pub top_up: Option<String>,
    /// The payment, if there is one. An order is paid at most once.
    pub capture: Option<Capture>,
    /// The amount refunded to the buyer.
    pub returned: Usd,
}

/// Status of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderStatus {
    /// The buyer has not approved it yet.
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
    /// Its status.
    pub status: CaptureStatus,
    /// The amount; `None` when it is not in US dollars.
    pub amount: Option<Usd>,
}

/// Status of a capture.
///
/// In this order: of several attempts the greatest one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CaptureStatus {
    /// Declined.
    Declined,
    /// Pending.
    Pending,
    /// Complete, whether or not part of it was refunded since.
    Completed,
}

/// Why a provider call failed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct OrderError {
    /// Its class, which decides on retries.
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
    /// The payment method was declined; another one may work.
    Declined,
    /// It was carried out before.
    AlreadyDone,
    /// Refused for good.
    Refused,
}
