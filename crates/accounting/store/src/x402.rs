//! Signed transfers (x402): each is stored, so that none counts twice and none is lost.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::AccountId;

use crate::codes::AuthorizationState;

/// The identity of a signed transfer: the chain, the token, the wallet, and the wallet's nonce.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AuthorizationKey {
    /// The chain (CAIP-2).
    pub network: Arc<str>,
    /// The token.
    pub asset: [u8; 20],
    /// The paying wallet.
    pub payer: [u8; 20],
    /// The nonce.
    pub nonce: [u8; 32],
}

/// A stored signed transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationRow {
    /// Which.
    pub key: AuthorizationKey,
    /// The account that presented it first and receives what it pays for.
    pub account: AccountId,
    /// State of the transfer.
    pub state: AuthorizationState,
    /// Row version from 0, for optimistic locking: a change names the version it is based on.
    pub version: i64,
    /// A digest of the complete payment: another signature for the same transfer is another payment.
    pub digest: [u8; 32],
    /// The sealed payload for submission to the chain; `None` once it is not needed any more.
    pub sealed: Option<Arc<[u8]>>,
    /// The chain accepts it before this.
    pub valid_before: Timestamp,
    /// The transaction, once known. Its result is given by the state.
    pub transaction: Option<[u8; 32]>,
    /// The receipt given to the buyer, once the money has moved.
    pub receipt: Option<Arc<str>>,
    /// Why it was refused, or its last known status.
    pub note: Option<Arc<str>>,
    /// Reconciliation attempts since the last change.
    pub attempts: u32,
    /// When the next reconciliation is due; `None` when no change is expected any more.
    pub next_attempt_at: Option<Timestamp>,
    /// When it was stored.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

/// A change of a signed transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthorizationPart {
    /// Stores a new one: [`crate::Refusal::AuthorizationConflict`] when it is stored already.
    Begin(AuthorizationRow),
    /// Replaces the row with the previous version (optimistic locking): [`crate::Refusal::AuthorizationConflict`] after a concurrent
    /// change.
    Change(AuthorizationRow),
    /// The same, before submission: also refused ([`crate::Refusal::AuthorizationOpen`]) while another of the account may move money, and
    /// when the account's subscription does not have this version any more, or, with `None`, when there is one.
    Send {
        /// The row.
        row: AuthorizationRow,
        /// The expected version of the subscription.
        subscription: Option<i64>,
    },
    /// The same, for one that has paid: also refused ([`crate::Refusal::TransactionUsed`]) when its transaction has paid for another one,
    /// unless the transaction contains the transfer with this nonce on the chain: one transaction may settle several.
    Settle {
        /// The row.
        row: AuthorizationRow,
        /// Whether the chain proves it.
        is_proven: bool,
    },
    /// Forgets those that the chain takes no more, at most `limit` of each kind: those that were never sent, and those that were sent and
    /// refused and that are kept for the operator for longer.
    Forget {
        /// Of those that were never sent, the ones that the chain took before this only.
        before: Timestamp,
        /// The same for those that were sent and refused.
        refused_before: Timestamp,
        /// The most that go at once.
        limit: u32,
    },
}
