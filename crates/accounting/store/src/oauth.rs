//! OAuth clients, authorization requests, grants, codes and refresh tokens, as stored (RFC 6749).

use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, GrantId};

/// A client that has registered, or that a person has granted access (RFC 7591).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRow {
    /// Its client id: issued here, or the URL of its metadata document.
    pub id: Arc<str>,
    /// Its self-declared name.
    pub name: Option<Arc<str>>,
    /// Its redirect URIs. None contains a line break.
    pub redirect_uris: Vec<Arc<str>>,
    /// Whether it registered for refresh tokens.
    pub refresh: bool,
    /// Whether its id is the URL of its metadata document.
    pub document: bool,
    /// When it was registered.
    pub created_at: Timestamp,
    /// When it was last granted access or issued a token; `None` before the first time.
    pub used_at: Option<Timestamp>,
}

/// A validated authorization request that waits for a person's decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingRow {
    /// Random: the first session that presents it may decide.
    pub id: [u8; 16],
    /// The client.
    pub client: Arc<str>,
    /// The client's self-declared name.
    pub client_name: Option<Arc<str>>,
    /// Whether it registered for refresh tokens.
    pub refresh: bool,
    /// Whether the client's id is the URL of its metadata document.
    pub document: bool,
    /// The redirect URI, as in the request.
    pub redirect_uri: Arc<str>,
    /// The `state` parameter, returned to the client unchanged.
    pub state: Option<Arc<str>>,
    /// `BASE64URL(SHA256(verifier))` (RFC 7636 section 4.2).
    pub challenge: Arc<str>,
    /// Bit set with the one resource.
    pub resource: u32,
    /// The resource as the client wrote it.
    pub asked: Option<Arc<str>>,
    /// Bit set of the requested scopes.
    pub scopes: u32,
    /// Digest of the session that may decide; `None` until a session has opened it.
    pub session: Option<[u8; 32]>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it expires.
    pub expires_at: Timestamp,
}

/// The access a person has granted a client. The head of a token family: code, access tokens and refresh tokens belong to it and end with
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantRow {
    /// The id.
    pub id: GrantId,
    /// The account that granted it, and pays.
    pub account: AccountId,
    /// The client.
    pub client: Arc<str>,
    /// The client's self-declared name at that time.
    pub client_name: Option<Arc<str>>,
    /// Whether refresh tokens are issued from it.
    pub refresh: bool,
    /// The redirect URI used.
    pub redirect_uri: Arc<str>,
    /// Bit set with the one resource.
    pub resource: u32,
    /// The resource as the client wrote it.
    pub asked: Option<Arc<str>>,
    /// Bit set of the granted scopes.
    pub scopes: u32,
    /// When it was granted.
    pub created_at: Timestamp,
    /// When a token of it was last accepted, with a precision of minutes; the time of the grant before the first one.
    pub used_at: Timestamp,
    /// When everything in it has expired.
    pub ends_at: Timestamp,
    /// When it was revoked; `None` while it is valid.
    pub revoked_at: Option<Timestamp>,
}

/// An authorization code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeRow {
    /// The grant it belongs to.
    pub grant: GrantRow,
    /// The PKCE code challenge.
    pub challenge: Arc<str>,
    /// Number of refused requests that named it.
    pub refusals: u32,
    /// When it expires.
    pub expires_at: Timestamp,
    /// When it was used; `None` while it is unused.
    pub used_at: Option<Timestamp>,
}

/// A refresh token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefreshRow {
    /// The grant it belongs to.
    pub grant: GrantRow,
    /// When it expires.
    pub expires_at: Timestamp,
    /// When it was spent; `None` while it is unspent.
    pub spent_at: Option<Timestamp>,
    /// Whether its successor is spent as well.
    pub successor_spent: bool,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OAuthPart {
    /// Stores a client.
    InsertClient {
        /// The client. Replaces an existing one.
        client: ClientRow,
        /// Digest of the network that it was registered from; `None` where none is counted.
        network: Option<[u8; 16]>,
        /// Maximum number of clients without a grant. Above it the network with the most of them loses its oldest, but none with a request that
        /// waits for a decision.
        unused_max: u32,
    },
    /// Marks a client as granted. Refused when the client does not exist.
    UseClient {
        /// Which.
        id: Arc<str>,
        /// When it is granted.
        at: Timestamp,
    },
    /// Stores a request.
    InsertPending {
        /// The request.
        pending: PendingRow,
        /// Maximum number of requests; the oldest above it are deleted.
        pending_max: u32,
    },
    /// Binds a request to the first session that opens it. Refused for every other session.
    BindPending {
        /// Which.
        id: [u8; 16],
        /// Digest of the session.
        session: [u8; 32],
        /// The time of the request.
        now: Timestamp,
    },
    /// Removes a decided request. Refused when it does not exist, or belongs to another session.
    TakePending {
        /// Which.
        id: [u8; 16],
        /// Digest of the session.
        session: [u8; 32],
        /// The time of the decision.
        now: Timestamp,
    },
    /// Stores a grant.
    InsertGrant(GrantRow),
    /// Stores a code of a grant.
    InsertCode {
        /// SHA-256 of the code.
        hash: [u8; 32],
        /// The grant.
        grant: GrantId,
        /// The PKCE code challenge.
        challenge: Arc<str>,
        /// When it expires.
        expires_at: Timestamp,
    },
    /// Counts a refused request that named a code.
    RefuseCode {
        /// SHA-256 of the code.
        hash: [u8; 32],
    },
    /// Uses a code. Refused when it is used already, expired, over its attempt limit, or its grant is revoked.
    TakeCode {
        /// SHA-256 of the code.
        hash: [u8; 32],
        /// Number of refusals after which it is invalid.
        refusals_max: u32,
        /// The time of the request.
        at: Timestamp,
    },
    /// Stores a refresh token of a grant. An existing one stays unchanged.
    InsertRefresh {
        /// SHA-256 of the token.
        hash: [u8; 32],
        /// The grant.
        grant: GrantId,
        /// When it expires.
        expires_at: Timestamp,
    },
    /// Spends a refresh token. Refused when it is expired, its grant revoked, or it was spent before and the grace period is over.
    SpendRefresh {
        /// SHA-256 of the token.
        hash: [u8; 32],
        /// SHA-256 of its successor.
        successor: [u8; 32],
        /// Grace period within which a spent token may be spent again, while its successor is unspent.
        grace: Duration,
        /// The time of the request.
        at: Timestamp,
    },
    /// Extends the expiry of a grant.
    ProlongGrant {
        /// Which.
        id: GrantId,
        /// The time until which something of it is valid.
        ends_at: Timestamp,
    },
    /// Revokes a grant with everything issued from it. Revoking it again changes nothing; nor does revoking an unknown one.
    RevokeGrant {
        /// Which.
        id: GrantId,
        /// The account.
        account: AccountId,
        /// When it is revoked.
        at: Timestamp,
    },
    /// Revokes the grants of an account, with everything issued from them.
    RevokeGrants {
        /// The account.
        account: AccountId,
        /// Those of this client; `None` for all.
        client: Option<Arc<str>>,
        /// When they are revoked.
        at: Timestamp,
    },
    /// Records when credentials were last accepted.
    NoteUses(Vec<(CredentialId, Timestamp)>),
    /// Deletes rows that are no longer needed, at most `limit` of each kind.
    Forget {
        /// The time by which requests have expired.
        now: Timestamp,
        /// Clients without a grant, nor a request that waits for a decision, that are older than this.
        unused_before: Timestamp,
        /// Clients that were last used before this.
        used_before: Timestamp,
        /// Grants and tokens that ended before this.
        ended_before: Timestamp,
        /// Maximum number of rows of one kind.
        limit: u32,
    },
}

/// Why the stored data does not permit a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OAuthRefusal {
    /// The client does not exist.
    #[error("there is no such client")]
    NoClient,
    /// The request was decided or has expired.
    #[error("there is no such authorization request")]
    PendingGone,
    /// The request belongs to another session.
    #[error("the request for authorization belongs to another session")]
    PendingElsewhere,
    /// The code was used before.
    #[error("the code was used before")]
    CodeUsed,
    /// The code is unknown, expired or over its attempt limit.
    #[error("the code does not work")]
    CodeDead,
    /// The refresh token was spent before.
    #[error("the refresh token was spent before")]
    RefreshSpent,
    /// The refresh token is unknown or expired.
    #[error("the refresh token does not work")]
    RefreshDead,
    /// The grant was revoked.
    #[error("the grant is revoked")]
    GrantRevoked,
}
