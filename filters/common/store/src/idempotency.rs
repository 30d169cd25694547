//! Answers that are given once, whatever a network does to the request for them.

use std::sync::Arc;

use tollgate_money::AccountId;

use crate::codes::Endpoint;

/// What a client calls a request, so that it can ask for the same answer again. It means something within one account and endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// Whose.
    pub account: AccountId,
    /// Where.
    pub endpoint: Endpoint,
    /// The client's word for it.
    pub key: Arc<str>,
}

/// A change of what is known under a key.
///
/// A key is free, taken by a request under way, or holds an answer. A request is told from another of the same key by the moment its
/// claim runs out: a claim is taken over only after that moment, so no two have the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdempotencyPart {
    /// Claims a key for one request: [`crate::Refusal::KeyInUse`] when it is not free for it.
    Claim {
        /// The key.
        key: IdempotencyKey,
        /// A digest of the request; another one is another request.
        request_hash: [u8; 32],
        /// The moment of claiming, by a clock that only this process reads.
        now: i64,
        /// The moment at which the claim runs out, by the same clock.
        locked_until: i64,
        /// Unix microseconds.
        at: i64,
        /// Unix microseconds after which nothing is known under the key any more.
        expires_at: i64,
    },
    /// Keeps the answer of the request that has the claim; refused when it has lost it.
    Keep {
        /// The key.
        key: IdempotencyKey,
        /// The claim's end.
        locked_until: i64,
        /// The answer.
        answer: KeptAnswer,
    },
    /// Frees the key of a request that leaves no answer. One that has lost its claim changes nothing.
    Free {
        /// The key.
        key: IdempotencyKey,
        /// The claim's end.
        locked_until: i64,
    },
    /// Frees every key that is claimed: the requests of an earlier run are over.
    FreeAll,
    /// Forgets keys that have expired, at most as many as told.
    Forget {
        /// Unix microseconds: those that expired by now.
        now: i64,
        /// The most that go at once.
        limit: u32,
    },
}

/// An answer as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAnswer {
    /// The status.
    pub status: u16,
    /// What belongs to it besides the body, in words of whoever keeps it.
    pub headers: Arc<str>,
    /// The body; `None` when it was too large to be kept.
    pub body: Option<Arc<[u8]>>,
}

/// What is known under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyRow {
    /// The digest of the request.
    pub request_hash: [u8; 32],
    /// The answer; `None` while the request is under way.
    pub answer: Option<KeptAnswer>,
    /// Unix microseconds.
    pub expires_at: i64,
}

/// Why a key is not free for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyUse {
    /// It stands for another request.
    OtherRequest,
    /// The same request is under way.
    UnderWay,
    /// The same request has its answer.
    Answered,
    /// The claim was lost to a later request.
    Lost,
}

/// What the state of a row is stored as.
pub(crate) mod state {
    pub(crate) const CLAIMED: i64 = 0;
    pub(crate) const ANSWERED: i64 = 1;
}
