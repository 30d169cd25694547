//! Idempotency keys: one response per key, however often the request is repeated.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::AccountId;

use crate::codes::Endpoint;
use crate::commit_id;

/// An idempotency key, scoped to one account and endpoint. A client repeats the key to receive the stored response.
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
/// A key is free, claimed by a running request, or holds a response. A fencing token identifies a claim among the claims of a key. No two
/// claims share a token, and a later run has greater tokens ([`first_token`]). A claim ends when the claim is freed, or is taken over after
/// a lapse. A claim does not end by time: times here are wall-clock times, and the clock may be set while the request runs.
///
/// The token is in the column `locked_until`, which an earlier release compared with a clock. Every value stored by the earlier release is
/// less than the tokens of this release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdempotencyPart {
    /// Claims a key for one request: [`crate::Refusal::KeyInUse`] unless the key is free.
    Claim {
        /// The key.
        key: IdempotencyKey,
        /// A digest of the request; another digest means another request.
        request_hash: [u8; 32],
        /// The fencing token of the claim.
        token: i64,
        /// Time of the claim.
        at: Timestamp,
        /// Expiry of the key, after the key has a response.
        expires_at: Timestamp,
        /// The account's limits: [`crate::Refusal::KeyQuota`] beyond the limits. For completions only.
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
    /// Frees the key of a request without a response. No effect after the claim was lost.
    Free {
        /// The key.
        key: IdempotencyKey,
        /// The fencing token of the claim.
        token: i64,
    },
    /// Lets a later request take over the claim. Before a takeover the claim may still store its response.
    Lapse {
        /// The key.
        key: IdempotencyKey,
        /// The fencing token of the claim.
        token: i64,
    },
    /// Frees the keys of the node's claims with a smaller token. The requests of the runs before the token's run are finished.
    FreeBefore {
        /// The first token of a run.
        token: i64,
    },
    /// Lets later requests take over the node's claims with a smaller token, after the recovery of the node. The node's spool may have
    /// responses of the claims. Before a takeover the next run of the node may store the responses.
    LapseBefore {
        /// The first token of a run.
        token: i64,
    },
    /// Deletes expired keys with a response, and expired lapsed claims: at most `limit`, and no further rows after 16 MiB of bodies. Every
    /// claim of a completion also deletes two rows.
    Forget {
        /// The present time, for the expiry.
        now: Timestamp,
        /// Maximum number of rows deleted at once.
        limit: u32,
    },
}

/// The first fencing token of a run of a node. Greater than the tokens of the node's earlier runs, and than the times and numbers used by
/// earlier releases.
pub fn first_token(node: i64, epoch: i64) -> i64 {
    node_token(node) | epoch << 34
}

/// The least token of a node; all lone nodes share a least token.
fn node_token(node: i64) -> i64 {
    let one_of_many = match commit_id::has_allotments(node) {
        true => node - commit_id::FIRST_OF_MANY + 1,
        false => 0,
    };
    1 << 62 | one_of_many << 56
}

/// The least token of the node that has made a token. A lone node's tokens begin with the values of earlier releases.
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
    /// Further parts of the response, in the format of the caller that stores the response.
    pub headers: Arc<str>,
    /// The body; `None` when the body was too large to store.
    pub body: Option<Arc<[u8]>>,
}

/// Limits on an account's keys, and on the bytes of their bodies. A body shared by several keys counts once, for the account whose request
/// stored the body first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLimits {
    /// Keys.
    pub keys: u64,
    /// Bytes of bodies. The request that reaches the limit is still stored.
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
    /// The key's expiry; negative for a lapsed claim.
    pub expires_at: Timestamp,
}

impl IdempotencyRow {
    /// Whether the key's request may be running: the claim was not freed and has not lapsed. The next run of the node lapses or frees the
    /// claim.
    pub fn is_under_way(&self) -> bool {
        self.answer.is_none() && self.expires_at > Timestamp::UNIX_EPOCH
    }
}

/// Why a key is not free for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyUse {
    /// The key belongs to another request.
    OtherRequest,
    /// The key's request is running.
    UnderWay,
    /// The key's request has a response.
    Answered,
    /// The claim was lost to a later request.
    Lost,
}

/// The stored codes of a key's state.
pub(crate) mod state {
    pub(crate) const CLAIMED: i64 = 0;
    pub(crate) const ANSWERED: i64 = 1;
}
