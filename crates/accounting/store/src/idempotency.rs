//! Idempotency keys: one response per key, however often the request is repeated.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::AccountId;

use crate::codes::Endpoint;
use crate::commit_id;

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
/// A key is free, claimed by a running request, or holds a response. A fencing token identifies a claim among those of one key; no two
/// claims have the same, and those of a later run are greater ([`first_token`]). A claim ends when it is freed or taken over after a lapse,
/// and not by time: the times here are those of the wall clock, which may be set while its request runs.
///
/// The token is in the column `locked_until`, which an earlier release compared with a clock. All that it has stored there is less than the
/// tokens of this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdempotencyPart {
    /// Claims a key for one request: [`crate::Refusal::KeyInUse`] when it is not free.
    Claim {
        /// The key.
        key: IdempotencyKey,
        /// A digest of the request; another digest means another request.
        request_hash: [u8; 32],
        /// The fencing token of the claim.
        token: i64,
        /// When it was claimed.
        at: Timestamp,
        /// When the key is forgotten, once it has a response.
        expires_at: Timestamp,
        /// What the account may have: [`crate::Refusal::KeyQuota`] beyond. For completions only.
        limits: Option<KeyLimits>,
    },
    /// Stores the response of the request that holds the claim; refused when the claim is lost.
    Keep {
        /// The key.
        key: IdempotencyKey,
        /// The fencing token of the claim.
        token: i64,
        /// The response.
        answer: KeptAnswer,
    },
    /// Frees the key of a request without a response. A request that has lost its claim changes nothing.
    Free {
        /// The key.
        key: IdempotencyKey,
        /// The fencing token of the claim.
        token: i64,
    },
    /// Lets a later request take over the claim. Until one does, the claim may still store its response.
    Lapse {
        /// The key.
        key: IdempotencyKey,
        /// The fencing token of the claim.
        token: i64,
    },
    /// Frees the keys whose claims are of the same node and have a smaller token: the requests of the runs before that of this token are
    /// finished.
    FreeBefore {
        /// The first token of a run.
        token: i64,
    },
    /// Lets later requests take over the same claims: their node was recovered, and its spool may have their responses. Until one does, the next run
    /// of the node may store them.
    LapseBefore {
        /// The first token of a run.
        token: i64,
    },
    /// Deletes expired keys with a response, and lapsed claims that have expired: at most `limit`, and none after 16 MiB of bodies. Each claim of a completion deletes two besides.
    Forget {
        /// The time by which they have expired.
        now: Timestamp,
        /// Maximum number of rows deleted at once.
        limit: u32,
    },
}

/// The first fencing token of a run of a node: greater than those of its earlier runs, and than the times and numbers that earlier releases
/// used.
pub fn first_token(node: i64, epoch: i64) -> i64 {
    node_token(node) | epoch << 34
}

/// The least token of a node; all nodes that are alone have the same.
fn node_token(node: i64) -> i64 {
    let one_of_many = match commit_id::has_allotments(node) {
        true => node - commit_id::FIRST_OF_MANY + 1,
        false => 0,
    };
    1 << 62 | one_of_many << 56
}

/// The least token of the node that has made a token. Those of a node that is alone begin with what earlier releases used.
pub(crate) fn least_of_node(token: i64) -> i64 {
    const NODE: i64 = 0x3f << 56;
    match token & NODE {
        0 => i64::MIN,
        node => 1 << 62 | node,
    }
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

/// The keys that an account may have, and the bytes of their bodies; a body that several keys have counts once, for the account whose
/// request stored it first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLimits {
    /// Keys.
    pub keys: u64,
    /// Bytes of bodies. The request that reaches them is still stored.
    pub bytes: u64,
}

/// The limit that an account has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyQuota {
    /// Of keys.
    Keys,
    /// Of bytes.
    Bytes,
}

/// The state of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyRow {
    /// The digest of the request.
    pub request_hash: [u8; 32],
    /// The response; `None` while the request is running.
    pub answer: Option<KeptAnswer>,
    /// When it is forgotten; negative for a claim that has lapsed.
    pub expires_at: Timestamp,
}

impl IdempotencyRow {
    /// Whether its request may be running: its claim was neither freed nor has it lapsed, which the next run of its node sees to.
    pub fn is_under_way(&self) -> bool {
        self.answer.is_none() && self.expires_at > Timestamp::UNIX_EPOCH
    }
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
