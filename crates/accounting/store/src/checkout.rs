//! Checkout sessions: a platform helps an account owner buy the plan.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CheckoutId, CredentialId, MandateId, SubscriptionId};

use crate::codes::CheckoutState;

/// A stored checkout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckoutRow {
    /// Its id: random, so that it cannot be guessed.
    pub id: CheckoutId,
    /// The account.
    pub account: AccountId,
    /// State of the checkout.
    pub state: CheckoutState,
    /// Row version from 0, for optimistic locking: a change names the version it is based on.
    pub version: i64,
    /// The credential that created it, which identifies the calling platform to the owner.
    pub credential: Option<CredentialId>,
    /// The host of the platform's profile, as the platform gave it.
    pub platform: Option<Arc<str>>,
    /// Buyer data from the platform, as JSON.
    pub buyer: Option<Arc<str>>,
    /// The mandate that the owner was redirected to.
    pub mandate: Option<MandateId>,
    /// The digest of the idempotency key of the completion request, so that the same request is recognised after a crash.
    pub asked: Option<[u8; 32]>,
    /// The subscription of the account after completion.
    pub subscription: Option<SubscriptionId>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it expires, unless its owner has agreed by then.
    pub expires_at: Timestamp,
}

/// A change of a checkout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckoutPart {
    /// Stores a new checkout: [`crate::Refusal::CheckoutConflict`] when its id is taken. Of the account's waiting checkouts only the newest
    /// `waiting_max` are kept.
    Begin {
        /// The row.
        row: CheckoutRow,
        /// Maximum number of waiting checkouts.
        waiting_max: u32,
    },
    /// Replaces the row with the previous version (optimistic locking): [`crate::Refusal::CheckoutConflict`] after a concurrent change.
    Change(CheckoutRow),
    /// The account has the plan: completes each of its checkouts that waits for the owner, and none that is finished. Part of the unit of
    /// work that grants the plan.
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
