//! Signed transfers (x402). Every transfer is stored: no transfer counts twice, and no transfer is lost.

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
    /// The transfer's key.
    pub key: AuthorizationKey,
    /// The account that first presented the transfer and receives the purchase.
    pub account: AccountId,
    /// State of the transfer.
    pub state: AuthorizationState,
    /// Row version from 0, for optimistic locking: a change names the version of the row it changes.
    pub version: i64,
    /// A digest of the complete payment: another signature for the transfer is another payment.
    pub digest: [u8; 32],
    /// The sealed payload for submission to the chain; `None` after the payload is no longer needed.
    pub sealed: Option<Arc<[u8]>>,
    /// The chain accepts the transfer before this time.
    pub valid_before: Timestamp,
    /// The transaction, once known. The state gives the transaction's result.
    pub transaction: Option<[u8; 32]>,
    /// The receipt given to the buyer, once the money has moved.
    pub receipt: Option<Arc<str>>,
    /// Why the transfer was refused, or the last known status.
    pub note: Option<Arc<str>>,
    /// Reconciliation attempts since the last change.
    pub attempts: u32,
    /// Time of the next reconciliation; `None` when no change is expected any more.
    pub next_attempt_at: Option<Timestamp>,
    /// Time of storing.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
}

/// A change of a signed transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthorizationPart {
    /// Stores a new transfer: [`crate::Refusal::AuthorizationConflict`] when the transfer is stored already.
    Begin(AuthorizationRow),
    /// Replaces the row with the previous version (optimistic locking): [`crate::Refusal::AuthorizationConflict`] after a concurrent
    /// change.
    Change(AuthorizationRow),
    /// [`AuthorizationPart::Change`] before submission. Also refused ([`crate::Refusal::AuthorizationOpen`]) while another transfer of the
    /// account may move money. Also refused when the account's subscription has another version, or, with `None`, when the account has a
    /// subscription.
    Send {
        /// The row.
        row: AuthorizationRow,
        /// The expected version of the subscription.
        subscription: Option<i64>,
    },
    /// [`AuthorizationPart::Change`] for a transfer that has paid. Also refused ([`crate::Refusal::TransactionUsed`]) when the transaction
    /// has paid for another transfer, unless the transaction contains the transfer with this nonce on the chain: a transaction may settle
    /// several transfers.
    Settle {
        /// The row.
        row: AuthorizationRow,
        /// Whether the chain proves that the transaction contains the transfer.
        is_proven: bool,
    },
    /// Forgets transfers that the chain no longer accepts, at most `limit` per kind: transfers that were never sent, and transfers that
    /// were sent and refused. Refused transfers are kept for the operator for longer.
    Forget {
        /// Of the transfers that were sent and refused, only transfers with an earlier `valid_before` and an earlier time of storing.
        before: Timestamp,
        /// Of the transfers that were sent and refused, only transfers with an earlier `valid_before`.
        refused_before: Timestamp,
        /// Maximum number of rows per kind.
        limit: u32,
    },
}
