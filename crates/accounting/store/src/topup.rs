//! Credit purchases, and a payment provider's notifications about purchases.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros, TopUpId, Usd};

use crate::codes::TopUpState;

/// A stored credit purchase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopUpRow {
    /// The id of the purchase.
    pub id: TopUpId,
    /// The account that receives the credits.
    pub account: AccountId,
    /// State of the purchase.
    pub state: TopUpState,
    /// Row version from 0, for optimistic locking: a change names the version of the row it changes.
    pub version: i64,
    /// The price.
    pub price: Usd,
    /// The booked credits, fixed at the start of the purchase.
    pub credits: Micros,
    /// The idempotency key for creating the order at the provider.
    pub create_key: Arc<str>,
    /// The provider's order; `None` before the order is known.
    pub order: Option<Arc<str>>,
    /// The URL of the provider's approval page.
    pub approve_url: Option<Arc<str>>,
    /// The idempotency key for the capture at the provider; stored before the request is sent.
    pub capture_key: Option<Arc<str>>,
    /// The payment, once money has moved or is about to.
    pub capture: Option<Arc<str>>,
    /// Number of declined captures.
    pub declines: u32,
    /// The amount returned to the buyer so far.
    pub returned: Usd,
    /// Credits of the purchase already taken back.
    pub taken_back: Micros,
    /// Credits still to be taken back, since the credits were held or spent when the payment was returned.
    pub owed: Micros,
    /// The reason of the end, or the unresolved problem, in the provider's or the gateway's words.
    pub note: Option<Arc<str>>,
    /// Reconciliation attempts since the last change.
    pub attempts: u32,
    /// Time of the next attempt; `None` when no change is expected any more.
    pub next_attempt_at: Option<Timestamp>,
    /// Notifications received (column `rings`).
    pub notifications: i64,
    /// Notifications covered by a reconciliation (column `heard`).
    pub acknowledged: i64,
    /// Time of the start.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
}

/// A change of a purchase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopUpPart {
    /// Stores a new purchase: [`crate::Refusal::TopUpExists`] when the id is taken.
    Begin(TopUpRow),
    /// Replaces the row with the previous version (optimistic locking): [`crate::Refusal::TopUpConflict`] after a concurrent change. The
    /// stored `notifications` stay.
    Change(TopUpRow),
    /// Counts a notification about a purchase. No effect for an unknown purchase.
    Notify(TopUpSubject),
    /// Records a notification id: [`crate::Refusal::DuplicateNotification`] for an id that was received before.
    Notice {
        /// The provider's id of the event.
        id: Arc<str>,
        /// The event type.
        kind: Arc<str>,
        /// Time of receipt.
        at: Timestamp,
    },
    /// Deletes notification ids received before `before`, at most `limit`.
    ForgetNotices {
        /// The end of their times, exclusive.
        before: Timestamp,
        /// Maximum number of rows deleted at once.
        limit: u32,
    },
}

/// The purchase that a notification names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopUpSubject {
    /// The purchase with the id.
    TopUp(TopUpId),
    /// The purchase with the provider's order.
    Order(Arc<str>),
    /// The purchase with the provider's payment.
    Capture(Arc<str>),
}
