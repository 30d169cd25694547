//! Idempotency keys: one response per key, however often the request is repeated.

use std::sync::Arc;

use tollgate_money::AccountId;

use crate::codes::Endpoint;

/// An idempotency key, scoped to one account and endpoint: a client repeats it to receive the same response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The account.
    pub account: AccountId,
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The client's key.
    pub key: Arc<str>,
}

/// A change of an idempotency key.
///
/// A key is free, claimed by a running request, or holds a response. The expiry of its claim identifies a request among those with the same
/// key: a claim is taken over only after it has expired, so no two have the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdempotencyPart {
    /// Claims a key for one request: [`crate::Refusal::KeyInUse`] when it is not free.
    Claim {
        /// The key.
        key: IdempotencyKey,
        /// A digest of the request; another digest means another request.
        request_hash: [u8; 32],
        /// The moment of claiming, by the process's internal clock.
        now: i64,
        /// The expiry of the claim, by the same clock.
        locked_until: i64,
        /// Unix microseconds.
        at: i64,
        /// Unix microseconds after which the key is forgotten.
        expires_at: i64,
    },
    /// Stores the response of the request that holds the claim; refused when the claim is lost.
    Keep {
        /// The key.
        key: IdempotencyKey,
        /// The expiry of the claim.
        locked_until: i64,
        /// The response.
        answer: KeptAnswer,
    },
    /// Frees the key of a request without a response. A request that has lost its claim changes nothing.
    Free {
        /// The key.
        key: IdempotencyKey,
        /// The expiry of the claim.
        locked_until: i64,
    },
    /// Frees every claimed key: the requests of an earlier run are finished.
    FreeAll,
    /// Deletes expired keys, at most `limit`.
    Forget {
        /// Unix microseconds: keys that have expired by this time.
        now: i64,
        /// Maximum number of rows deleted at once.
        limit: u32,
    },
}

/// A stored response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAnswer {
    /// The status.
    pub status: u16,
    /// Further parts of the response, in the format of the caller that stores it.
    pub headers: Arc<str>,
    /// The body; `None` when it was too large to store.
    pub body: Option<Arc<[u8]>>,
}

/// The state of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyRow {
    /// The digest of the request.
    pub request_hash: [u8; 32],
    /// The response; `None` while the request is running.
    pub answer: Option<KeptAnswer>,
    /// Unix microseconds.
    pub expires_at: i64,
}

/// Why a key is not free for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyUse {
    /// It belongs to another request.
    OtherRequest,
    /// The same request is running.
    UnderWay,
    /// The same request has its response.
    Answered,
    /// The claim was lost to a later request.
    Lost,
}

/// The stored codes of a key's state.
pub(crate) mod state {
    pub(crate) const CLAIMED: i64 = 0;
    pub(crate) const ANSWERED: i64 = 1;
}
