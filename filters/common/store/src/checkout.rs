//! Checkouts: sessions in which a platform helps an account's owner to buy the plan.

use std::sync::Arc;

use tollgate_money::{AccountId, CheckoutId, MandateId, SubscriptionId};

use crate::codes::CheckoutState;
use crate::error::ReadError;
use crate::rows::CredentialId;

/// A checkout as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckoutRow {
    /// Its id: drawn, so that nobody finds one by trying.
    pub id: CheckoutId,
    /// Whose.
    pub account: AccountId,
    /// How far it has come.
    pub state: CheckoutState,
    /// Counts the changes, from 0. Whoever changes the row names the version it has seen.
    pub version: i64,
    /// The credential that it was made with, which tells its owner who asks.
    pub credential: Option<CredentialId>,
    /// The host that the platform's profile lies at, as it said itself.
    pub platform: Option<Arc<str>>,
    /// What the platform said of the buyer, as JSON.
    pub buyer: Option<Arc<str>>,
    /// The mandate that its owner was led to.
    pub mandate: Option<MandateId>,
    /// The digest of the name of the request that asked for its completion, so that the same request is known after a crash.
    pub asked: Option<[u8; 32]>,
    /// What the account has since, once it is completed.
    pub subscription: Option<SubscriptionId>,
    /// Unix microseconds.
    pub created_at: i64,
    /// Unix microseconds of the last change.
    pub updated_at: i64,
    /// Unix microseconds at which it ends by itself, unless its owner has agreed by then.
    pub expires_at: i64,
}

/// A change of what is known about checkouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckoutPart {
    /// Stores a new checkout: [`crate::Refusal::CheckoutMoved`] when its id is taken. Of those of the account that wait for something no
    /// more than so many are left, the newest.
    Begin {
        /// The row.
        row: CheckoutRow,
        /// The most that wait.
        waiting_max: u32,
    },
    /// Puts a row in the place of the one that had the version before its own: [`crate::Refusal::CheckoutMoved`] when somebody else has
    /// changed it.
    Change(CheckoutRow),
    /// The account has the plan: completes every checkout of it that waits for its owner, and none that is over. For the unit of work that
    /// gives the plan.
    Complete {
        /// Whose.
        account: AccountId,
        /// What it has.
        subscription: SubscriptionId,
        /// Unix microseconds.
        at: i64,
    },
    /// Forgets checkouts that last changed before, at most as many as told.
    Forget {
        /// Unix microseconds.
        before: i64,
        /// The most that go at once.
        limit: u32,
    },
}

/// Checkouts as they are committed. Blocks, as [`crate::Read`] does.
pub trait ReadCheckouts {
    /// One checkout.
    fn checkout(&self, id: CheckoutId) -> Result<Option<CheckoutRow>, ReadError>;

    /// At most `limit` checkouts of an account, newest first.
    fn checkouts_of(&self, account: AccountId, limit: usize)
    -> Result<Vec<CheckoutRow>, ReadError>;
}
