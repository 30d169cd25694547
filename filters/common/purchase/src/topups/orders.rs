//! What a payment provider can be asked for, without naming one or how it is reached.

use async_trait::async_trait;
use tollgate_money::{TopUpId, Usd};

/// A payment provider that makes orders, has buyers agree to them, and takes the money when it is asked to.
#[async_trait]
pub trait Orders: Send + Sync {
    /// Makes an order. Asked again under the same key, it gives the same one.
    async fn create(&self, order: &NewOrder<'_>) -> Result<CreatedOrder, OrderError>;

    /// Reads an order.
    async fn read(&self, order: &str) -> Result<Order, OrderError>;

    /// Takes the money of an order that its buyer has agreed to. Asked again under the same key, it takes nothing more. What came of it
    /// is read from the order: an answer that is there says no more than one that was lost.
    async fn capture(&self, order: &str, key: &str) -> Result<(), OrderError>;
}

/// An order to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewOrder<'a> {
    /// Under which the provider makes it once.
    pub key: &'a str,
    /// The purchase it is for.
    pub top_up: TopUpId,
    /// What is to be paid.
    pub price: Usd,
    /// What the buyer reads at the provider's.
    pub description: &'a str,
    /// Where the buyer comes back to.
    pub return_url: &'a str,
    /// Where the buyer comes back to without having agreed.
    pub cancel_url: &'a str,
}

/// An order that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedOrder {
    /// The provider's id.
    pub order: String,
    /// Where the buyer agrees to it.
    pub approve_url: String,
}

/// An order as the provider tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// How far it has come.
    pub status: OrderStatus,
    /// What was ordered; `None` when it is not one amount in US dollars.
    pub price: Option<Usd>,
    /// The purchase that it says it is for, as it was told when it was made.
    pub top_up: Option<String>,
    /// The payment, when there is one. An order is paid at most once.
    pub capture: Option<Capture>,
    /// What has gone back to the buyer.
    pub returned: Usd,
}

/// How far an order has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderStatus {
    /// The buyer has yet to agree.
    Waiting,
    /// The buyer has agreed; the money can be taken.
    Approved,
    /// The money was asked for; [`Order::capture`] says what came of it.
    Completed,
    /// It is over without a payment.
    Voided,
}

/// A payment as the provider tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// The provider's id.
    pub id: String,
    /// What came of it.
    pub status: CaptureStatus,
    /// What was paid; `None` when it is not US dollars.
    pub amount: Option<Usd>,
}

/// What came of taking the money.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureStatus {
    /// It is there, whether or not some of it has gone back since.
    Completed,
    /// It is on its way.
    Pending,
    /// It was not there to be taken.
    Declined,
}

/// Why the provider did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct OrderError {
    /// What it means.
    pub kind: FailureKind,
    /// For the log: the provider's own word, and what support asks for.
    pub message: String,
}

/// What a failure means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// No answer, or none that can be understood. It may or may not have been done.
    OutcomeUnknown,
    /// It was not done and may be later: out of service, or too many calls.
    Unavailable,
    /// It was not done, because our settings or our standing with the provider are wrong.
    Misconfigured,
    /// There is no such order, or no longer.
    Gone,
    /// The buyer has not agreed yet.
    NotApproved,
    /// The money could not be taken from what the buyer had chosen; another choice may do.
    Declined,
    /// It says that it was done before.
    AlreadyDone,
    /// It will not be done.
    Refused,
}
