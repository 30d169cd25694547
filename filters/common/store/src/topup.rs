//! Purchases of credits, and the notices a payment provider sends about them.

use std::sync::Arc;

use tollgate_money::{AccountId, Micros, TopUpId, Usd};

use crate::codes::TopUpState;
use crate::error::ReadError;

/// A purchase of credits as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopUpRow {
    /// The purchase.
    pub id: TopUpId,
    /// Who gets the credits.
    pub account: AccountId,
    /// How far it has come.
    pub state: TopUpState,
    /// Counts the changes, from 0. Whoever changes the row names the version it has seen.
    pub version: i64,
    /// What is paid.
    pub price: Usd,
    /// What is credited for it: fixed when the purchase begins.
    pub credits: Micros,
    /// The key under which the provider makes the order once.
    pub create_key: Arc<str>,
    /// The provider's order; `None` until it is known.
    pub order: Option<Arc<str>>,
    /// Where the buyer agrees to it.
    pub approve_url: Option<Arc<str>>,
    /// The key under which the provider takes the money once; stored before it is asked to.
    pub capture_key: Option<Arc<str>>,
    /// The payment, once money has moved or is about to.
    pub capture: Option<Arc<str>>,
    /// How often the provider could not take the money from what the buyer had chosen.
    pub declines: u32,
    /// What has gone back to the buyer since.
    pub returned: Usd,
    /// The credits that were taken back for it.
    pub taken_back: Micros,
    /// Credits that are still to be taken back: they were held or spent when the money went.
    pub owed: Micros,
    /// Why it ended or what is unclear about it, in the provider's word or ours.
    pub note: Option<Arc<str>>,
    /// Reconciliation attempts since the last change.
    pub attempts: u32,
    /// Unix microseconds of the next attempt; `None` when no change is expected any more.
    pub next_attempt_at: Option<i64>,
    /// Notifications received (column `rings`).
    pub notifications: i64,
    /// Notifications that a reconciliation has covered (column `heard`).
    pub acknowledged: i64,
    /// Unix microseconds.
    pub created_at: i64,
    /// Unix microseconds of the last change.
    pub updated_at: i64,
}

/// A change of what is known about purchases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopUpPart {
    /// Stores a new purchase: [`crate::Refusal::TopUpExists`] when its id is taken.
    Begin(TopUpRow),
    /// Puts a row in the place of the one that had the version before its own: [`crate::Refusal::TopUpMoved`] when somebody else has
    /// changed it. Its `notifications` stay as they are stored.
    Change(TopUpRow),
    /// Counts a notification about a purchase. An unknown purchase changes nothing.
    Notify(TopUpSubject),
    /// Notes that a notice has come in: [`crate::Refusal::NoticeSeen`] when it had before.
    Notice {
        /// The provider's id of the event.
        id: Arc<str>,
        /// What kind of event.
        kind: Arc<str>,
        /// Unix microseconds.
        at: i64,
    },
    /// Forgets notices that came in before, at most as many as told.
    ForgetNotices {
        /// Unix microseconds.
        before: i64,
        /// The most that go at once.
        limit: u32,
    },
}

/// The purchase that a notification names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopUpSubject {
    /// The purchase of this id.
    TopUp(TopUpId),
    /// The purchase with this order of the provider's.
    Order(Arc<str>),
    /// The purchase with this payment of the provider's.
    Capture(Arc<str>),
}

/// Purchases as they are committed. Blocks, as [`crate::Read`] does.
pub trait ReadTopUps {
    /// One purchase.
    fn top_up(&self, id: TopUpId) -> Result<Option<TopUpRow>, ReadError>;

    /// At most `limit` purchases that have news or whose next look is due at `now` (Unix microseconds), the longest waiting first.
    fn top_ups_due(&self, now: i64, limit: usize) -> Result<Vec<TopUpRow>, ReadError>;

    /// At most `limit` purchases of an account that were begun before `before`, newest first.
    fn top_ups_of(
        &self,
        account: AccountId,
        before: i64,
        limit: usize,
    ) -> Result<Vec<TopUpRow>, ReadError>;

    /// How many purchases are neither paid nor over.
    fn top_ups_open(&self) -> Result<u64, ReadError>;
}
