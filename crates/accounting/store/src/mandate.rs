//! Mandates: an account owner's permission for recurring charges.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, MandateId, Usd};

use crate::codes::MandateState;

/// A stored mandate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MandateRow {
    /// The mandate's id, used at the provider and shown to buyers.
    pub id: MandateId,
    /// The account whose plan the mandate pays.
    pub account: AccountId,
    /// State of the mandate.
    pub state: MandateState,
    /// Row version from 0, for optimistic locking: a change names the version of the row it changes.
    pub version: i64,
    /// The provider's plan.
    pub plan_id: Arc<str>,
    /// The monthly price.
    pub price: Usd,
    /// The idempotency key for creating the subscription at the provider; stored before the request is sent.
    pub create_key: Arc<str>,
    /// The provider's subscription; `None` before the subscription is known.
    pub provider_ref: Option<Arc<str>>,
    /// The URL of the provider's approval page.
    pub approve_url: Option<Arc<str>>,
    /// The URL the buyer returns to.
    pub return_url: Arc<str>,
    /// The URL the buyer returns to after declining.
    pub cancel_url: Arc<str>,
    /// When the buyer's approval was first seen.
    pub agreed_at: Option<Timestamp>,
    /// When the first payment was verified. Never changes.
    pub activated_at: Option<Timestamp>,
    /// The last charge that bought a period.
    pub payment: Option<Arc<str>>,
    /// Time of the last charge, by the provider.
    pub paid_at: Option<Timestamp>,
    /// The end of the paid period.
    pub paid_until: Option<Timestamp>,
    /// The time of a payment that the provider reported and did not list yet. The account was granted a day for the payment.
    pub advanced_for: Option<Timestamp>,
    /// The time of the cancellation request: later charges are refunded (column `left_at`).
    pub cancel_requested_at: Option<Timestamp>,
    /// The problem, or the reason of the end, in the provider's or the gateway's words.
    pub note: Option<Arc<str>>,
    /// Reconciliation attempts since the last change.
    pub attempts: u32,
    /// Time of the next attempt; `None` when no change is expected any more.
    pub next_attempt_at: Option<Timestamp>,
    /// Notifications received (column `rings`).
    pub notifications: i64,
    /// Notifications covered by a reconciliation (column `heard`).
    pub acknowledged: i64,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
}

/// A change of a mandate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MandatePart {
    /// Stores a new mandate: [`crate::Refusal::MandateExists`] when the id is taken, or the account already has a mandate on offer.
    Begin(MandateRow),
    /// Replaces the row with the previous version (optimistic locking): [`crate::Refusal::MandateConflict`] after a concurrent change,
    /// [`crate::Refusal::MandateExists`] when another mandate of the account is in progress. The stored `notifications` stay.
    Change(MandateRow),
    /// Counts a notification about a mandate. No effect for an unknown mandate.
    Notify(MandateSubject),
}

/// The mandates that a notification names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MandateSubject {
    /// The mandate with the id.
    Mandate(MandateId),
    /// The mandate with the provider's subscription.
    Subscription(Arc<str>),
    /// The mandates of the account whose plan was paid by the charge.
    Payment(Arc<str>),
}
