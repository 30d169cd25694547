//! Transfers that buyers have signed (x402): what is known of each, so that none counts twice and none is forgotten.

use std::sync::Arc;

use tollgate_money::AccountId;

use crate::codes::AuthorizationState;
use crate::error::ReadError;

/// What makes a signed transfer unlike every other: the chain, the token, the wallet, and the number that the wallet has given it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AuthorizationKey {
    /// The chain (CAIP-2).
    pub network: Arc<str>,
    /// The token.
    pub asset: [u8; 20],
    /// Who pays.
    pub payer: [u8; 20],
    /// The number.
    pub nonce: [u8; 32],
}

/// A signed transfer as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationRow {
    /// Which.
    pub key: AuthorizationKey,
    /// The account that has shown it first, and gets what it pays for.
    pub account: AccountId,
    /// How far it has come.
    pub state: AuthorizationState,
    /// Counts the changes, from 0. Whoever changes the row names the version it has seen.
    pub version: i64,
    /// A digest of the payment, whole: another signature for the same transfer is another payment.
    pub digest: [u8; 32],
    /// What is sent to the chain by, sealed; `None` once that is of no use any more.
    pub sealed: Option<Arc<[u8]>>,
    /// Unix microseconds: the chain takes it before this.
    pub valid_before: i64,
    /// The transaction, once one is known. What it did is said by the state.
    pub transaction: Option<[u8; 32]>,
    /// What the buyer was given as proof, once the money has moved.
    pub receipt: Option<Arc<str>>,
    /// Why it was refused, or what was last heard of it.
    pub note: Option<Arc<str>>,
    /// Looks since something last changed.
    pub looks: u32,
    /// Unix microseconds of the next look; `None` when nothing is expected any more.
    pub look_at: Option<i64>,
    /// Unix microseconds.
    pub created_at: i64,
    /// Unix microseconds of the last change.
    pub updated_at: i64,
}

/// A change of what is known about signed transfers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthorizationPart {
    /// Stores a new one: [`crate::Refusal::AuthorizationMoved`] when it is stored already.
    Begin(AuthorizationRow),
    /// Puts a row in the place of the one that had the version before its own: [`crate::Refusal::AuthorizationMoved`] when somebody else
    /// has changed it.
    Change(AuthorizationRow),
    /// The same, for one that is about to move money: also refused ([`crate::Refusal::AuthorizationOpen`]) while another of the account
    /// may, and when the account's subscription is not the one of this version any more, or, with `None`, when there is one.
    Send {
        /// The row.
        row: AuthorizationRow,
        /// The version of the subscription that was seen.
        subscription: Option<i64>,
    },
    /// The same, for one that has paid: also refused ([`crate::Refusal::TransactionUsed`]) when its transaction has paid for another one,
    /// unless the chain has the transfer of this number in it: one transaction may settle several.
    Settle {
        /// The row.
        row: AuthorizationRow,
        /// Whether the chain proves it.
        is_proven: bool,
    },
    /// Forgets those that were never sent and that the chain takes no more, at most as many as told.
    Forget {
        /// Unix microseconds: those that the chain took before this only.
        before: i64,
        /// The most that go at once.
        limit: u32,
    },
}

/// Signed transfers as they are committed. Blocks, as [`crate::Read`] does.
pub trait ReadAuthorizations {
    /// One of them.
    fn authorization(&self, key: &AuthorizationKey) -> Result<Option<AuthorizationRow>, ReadError>;

    /// The one of an account that may still move money; there is at most one.
    fn authorization_open(&self, account: AccountId)
    -> Result<Option<AuthorizationRow>, ReadError>;

    /// At most `limit` whose next look is due at `now` (Unix microseconds), the longest waiting first.
    fn authorizations_due(
        &self,
        now: i64,
        limit: usize,
    ) -> Result<Vec<AuthorizationRow>, ReadError>;

    /// All whose outcome is not proved: those that may still move money, and those that were sent and refused on the facilitator's word.
    /// Few.
    fn authorizations_open(&self) -> Result<Vec<AuthorizationRow>, ReadError>;
}
