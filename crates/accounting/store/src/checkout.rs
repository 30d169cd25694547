//! Checkout sessions: a platform helps an account owner buy the plan.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CheckoutId, CredentialId, MandateId, SubscriptionId};

use crate::codes::CheckoutState;

/// A stored checkout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckoutRow {
    /// The checkout's id, random and therefore not guessable.
    pub id: CheckoutId,
    /// The account.
    pub account: AccountId,
    /// State of the checkout.
    pub state: CheckoutState,
    /// Row version from 0, for optimistic locking: a change names the version of the row it changes.
    pub version: i64,
    /// The credential that created the checkout. The credential identifies the calling platform to the owner.
    pub credential: Option<CredentialId>,
    /// The host of the platform's profile, as the platform gave the host.
    pub platform: Option<Arc<str>>,
    /// Buyer data from the platform, as JSON.
    pub buyer: Option<Arc<str>>,
    /// The mandate that the owner was redirected to.
    pub mandate: Option<MandateId>,
    /// The digest of the idempotency key of the completion request: the request is recognised after a crash.
    pub asked: Option<[u8; 32]>,
    /// The subscription of the account after completion.
    pub subscription: Option<SubscriptionId>,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
    /// The expiry of a checkout without the owner's agreement.
    pub expires_at: Timestamp,
}

/// A change of a checkout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckoutPart {
    /// Stores a new checkout: [`crate::Refusal::CheckoutConflict`] when the id is taken. Only the account's newest `waiting_max` waiting
    /// checkouts are kept.
    Begin {
        /// The row.
        row: CheckoutRow,
        /// Maximum number of waiting checkouts.
        waiting_max: u32,
    },
    /// Replaces the row with the previous version (optimistic locking): [`crate::Refusal::CheckoutConflict`] after a concurrent change.
    Change(CheckoutRow),
    /// Completes every checkout of the account that waits for the owner, since the account has the plan. Finished checkouts stay. Part of
    /// the unit of work that grants the plan.
    Complete {
        /// The account.
        account: AccountId,
        /// The account's subscription.
        subscription: SubscriptionId,
        /// When the account got the plan.
        at: Timestamp,
    },
    /// Deletes checkouts last changed before `before`, at most `limit`.
    Forget {
        /// The end of their times, exclusive.
        before: Timestamp,
        /// Maximum number of rows deleted at once.
        limit: u32,
    },
}
