//! Credit purchases, and the notifications a payment provider sends about them.

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
    /// Row version from 0, for optimistic locking: a change names the version it is based on.
    pub version: i64,
    /// The price.
    pub price: Usd,
    /// The credits booked for it: fixed when the purchase starts.
    pub credits: Micros,
    /// The idempotency key for creating the order at the provider.
    pub create_key: Arc<str>,
    /// The provider's order; `None` until it is known.
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
    /// Credits already taken back for it.
    pub taken_back: Micros,
    /// Credits still to be taken back: they were held or spent when the payment was returned.
    pub owed: Micros,
    /// Why it ended or what is unresolved, in the provider's words or ours.
    pub note: Option<Arc<str>>,
    /// Reconciliation attempts since the last change.
    pub attempts: u32,
    /// When the next attempt is due; `None` when no change is expected any more.
    pub next_attempt_at: Option<Timestamp>,
    /// Notifications received (column `rings`).
    pub notifications: i64,
    /// Notifications that a reconciliation has covered (column `heard`).
    pub acknowledged: i64,
    /// When it was started.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

/// A change of a purchase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopUpPart {
    /// Stores a new purchase: [`crate::Refusal::TopUpExists`] when its id is taken.
    Begin(TopUpRow),
    /// Replaces the row with the previous version (optimistic locking): [`crate::Refusal::TopUpConflict`] after a concurrent change. Its
    /// `notifications` stay as they are stored.
    Change(TopUpRow),
    /// Counts a notification about a purchase. An unknown purchase changes nothing.
    Notify(TopUpSubject),
    /// Records a notification id: [`crate::Refusal::DuplicateNotification`] when it was received before.
    Notice {
        /// The provider's id of the event.
        id: Arc<str>,
        /// The event type.
        kind: Arc<str>,
        /// When it was received.
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
    /// The purchase of this id.
    TopUp(TopUpId),
    /// The purchase with this provider order.
    Order(Arc<str>),
    /// The purchase with this provider payment.
    Capture(Arc<str>),
}
