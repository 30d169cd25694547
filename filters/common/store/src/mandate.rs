//! Mandates: leave of an account's owner to be charged again and again.

use std::sync::Arc;

use tollgate_money::{AccountId, MandateId, Usd};

use crate::codes::MandateState;
use crate::error::ReadError;

/// A mandate as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MandateRow {
    /// The mandate: what the provider knows it by, and what buyers are told.
    pub id: MandateId,
    /// Whose plan it pays.
    pub account: AccountId,
    /// How far it has come.
    pub state: MandateState,
    /// Counts the changes, from 0. Whoever changes the row names the version it has seen.
    pub version: i64,
    /// The provider's plan.
    pub plan_id: Arc<str>,
    /// What is charged each month.
    pub price: Usd,
    /// The key under which the provider makes the subscription once; stored before it is asked to.
    pub create_key: Arc<str>,
    /// The provider's subscription; `None` until it is known.
    pub provider_ref: Option<Arc<str>>,
    /// Where the buyer agrees to it.
    pub approve_url: Option<Arc<str>>,
    /// Where the buyer comes back to.
    pub return_url: Arc<str>,
    /// Where the buyer comes back to without having agreed.
    pub cancel_url: Arc<str>,
    /// Unix microseconds at which it was first seen that the buyer had agreed.
    pub agreed_at: Option<i64>,
    /// Unix microseconds at which the first payment was verified. Never changes.
    pub activated_at: Option<i64>,
    /// The last charge that bought a period.
    pub payment: Option<Arc<str>>,
    /// Unix microseconds at which the provider took it.
    pub paid_at: Option<i64>,
    /// Unix microseconds of the end of what was paid for.
    pub paid_until: Option<i64>,
    /// The time of a payment that the provider told of and did not list yet, for which a day was given.
    pub advanced_for: Option<i64>,
    /// Unix microseconds of the cancellation request: later charges are refunded (column `left_at`).
    pub cancel_requested_at: Option<i64>,
    /// What went wrong or why it ended, in the provider's word or ours.
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

/// A change of what is known about mandates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MandatePart {
    /// Stores a new mandate: [`crate::Refusal::MandateExists`] when its id is taken, or its account has one that is offered.
    Begin(MandateRow),
    /// Puts a row in the place of the one that had the version before its own: [`crate::Refusal::MandateMoved`] when somebody else has
    /// changed it, [`crate::Refusal::MandateExists`] when its account has another under way. Its `notifications` stay as they are stored.
    Change(MandateRow),
    /// Counts a notification about a mandate. An unknown mandate changes nothing.
    Notify(MandateSubject),
}

/// The mandates that a notification names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MandateSubject {
    /// The mandate of this id.
    Mandate(MandateId),
    /// The mandate with this subscription of the provider's.
    Subscription(Arc<str>),
    /// The mandates of the account whose plan this charge has paid for.
    Payment(Arc<str>),
}

/// Mandates as they are committed. Blocks, as [`crate::Read`] does.
pub trait ReadMandates {
    /// One mandate.
    fn mandate(&self, id: MandateId) -> Result<Option<MandateRow>, ReadError>;

    /// At most `limit` mandates that have news or whose next look is due at `now` (Unix microseconds): what nobody is offered any more after
    /// everything else, and the longest waiting first.
    fn mandates_due(&self, now: i64, limit: usize) -> Result<Vec<MandateRow>, ReadError>;

    /// At most `limit` mandates of an account, newest first.
    fn mandates_of(&self, account: AccountId, limit: usize) -> Result<Vec<MandateRow>, ReadError>;

    /// How many mandates there are in a state.
    fn mandates_in(&self, state: MandateState) -> Result<u64, ReadError>;
}
