//! Clients, requests for authorization, grants, codes and refresh tokens, as they are stored (RFC 6749).

use std::sync::Arc;

use tollgate_money::AccountId;

use crate::error::ReadError;
use crate::rows::{CredentialId, GrantId};

/// A client that has registered, or that a person has allowed something (RFC 7591).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRow {
    /// What it is called by: made here, or the address of a document about it.
    pub id: Arc<str>,
    /// The name it gives itself.
    pub name: Option<Arc<str>>,
    /// Where answers to it may go. None has a line break.
    pub redirect_uris: Vec<Arc<str>>,
    /// Whether it registered for refresh tokens.
    pub refresh: bool,
    /// Whether its id is the address of a document about it.
    pub document: bool,
    /// Unix microseconds.
    pub created_at: i64,
    /// Unix microseconds when it was last allowed something or given a token; `None` before the first time.
    pub used_at: Option<i64>,
}

/// A request for authorization that was found sound, and that a person has yet to decide on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingRow {
    /// Random: whoever knows it first may decide.
    pub id: [u8; 16],
    /// The client.
    pub client: Arc<str>,
    /// The name it gives itself.
    pub client_name: Option<Arc<str>>,
    /// Whether it registered for refresh tokens.
    pub refresh: bool,
    /// Whether the client's id is the address of a document about it.
    pub document: bool,
    /// Where the answer goes, as the request had it.
    pub redirect_uri: Arc<str>,
    /// Given back to the client unchanged.
    pub state: Option<Arc<str>>,
    /// `BASE64URL(SHA256(verifier))` (RFC 7636 section 4.2).
    pub challenge: Arc<str>,
    /// Bit set with the one resource.
    pub resource: u32,
    /// The resource as the client wrote it.
    pub asked: Option<Arc<str>>,
    /// Bit set of the scopes asked for.
    pub scopes: u32,
    /// Digest of the session that may decide; `None` until one has looked at it.
    pub session: Option<[u8; 32]>,
    /// Unix microseconds.
    pub created_at: i64,
    /// Unix microseconds.
    pub expires_at: i64,
}

/// What a person has allowed a client. The head of a family: code, access tokens and refresh tokens belong to it and end with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantRow {
    /// The id.
    pub id: GrantId,
    /// Who allowed it, and pays.
    pub account: AccountId,
    /// The client.
    pub client: Arc<str>,
    /// The name it gave itself then.
    pub client_name: Option<Arc<str>>,
    /// Whether refresh tokens come from it.
    pub refresh: bool,
    /// Where the answer went.
    pub redirect_uri: Arc<str>,
    /// Bit set with the one resource.
    pub resource: u32,
    /// The resource as the client wrote it.
    pub asked: Option<Arc<str>>,
    /// Bit set of the scopes allowed.
    pub scopes: u32,
    /// Unix microseconds.
    pub created_at: i64,
    /// Unix microseconds when something of it was last used, to within minutes.
    pub used_at: i64,
    /// Unix microseconds from which nothing of it works any more by itself.
    pub ends_at: i64,
    /// Unix microseconds; `None` while it holds.
    pub revoked_at: Option<i64>,
}

/// An authorization code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeRow {
    /// What it stands for.
    pub grant: GrantRow,
    /// The challenge that its verifier must meet.
    pub challenge: Arc<str>,
    /// Requests that named it and were refused.
    pub refusals: u32,
    /// Unix microseconds.
    pub expires_at: i64,
    /// Unix microseconds; `None` while it is unused.
    pub used_at: Option<i64>,
}

/// A refresh token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefreshRow {
    /// What it stands for.
    pub grant: GrantRow,
    /// Unix microseconds.
    pub expires_at: i64,
    /// Unix microseconds; `None` while it is unspent.
    pub spent_at: Option<i64>,
    /// Whether the token that took its place is spent as well.
    pub successor_spent: bool,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OAuthPart {
    /// Stores a client.
    InsertClient {
        /// The client. One that is there is replaced.
        client: ClientRow,
        /// The most clients that nobody has allowed anything; the oldest above it go.
        unused_max: u32,
    },
    /// Notes that a client was allowed something. Refused when there is no such client.
    UseClient {
        /// Which.
        id: Arc<str>,
        /// Unix microseconds.
        at: i64,
    },
    /// Stores a request.
    InsertPending {
        /// The request.
        pending: PendingRow,
        /// The most requests at once; the oldest above it go.
        pending_max: u32,
    },
    /// Gives a request to the session that looks at it first. Refused for every other.
    BindPending {
        /// Which.
        id: [u8; 16],
        /// Digest of the session.
        session: [u8; 32],
        /// Unix microseconds.
        now: i64,
    },
    /// Takes a request away, decided. Refused when it is gone, or another session's.
    TakePending {
        /// Which.
        id: [u8; 16],
        /// Digest of the session.
        session: [u8; 32],
        /// Unix microseconds.
        now: i64,
    },
    /// Stores a grant.
    InsertGrant(GrantRow),
    /// Stores a code of a grant.
    InsertCode {
        /// SHA-256 of the code.
        hash: [u8; 32],
        /// The grant.
        grant: GrantId,
        /// The challenge that its verifier must meet.
        challenge: Arc<str>,
        /// Unix microseconds.
        expires_at: i64,
    },
    /// Counts a request that named a code and was refused.
    RefuseCode {
        /// SHA-256 of the code.
        hash: [u8; 32],
    },
    /// Uses a code. Refused when it is used already, expired, worn out, or its grant is revoked.
    TakeCode {
        /// SHA-256 of the code.
        hash: [u8; 32],
        /// The refusals after which it works no more.
        refusals_max: u32,
        /// Unix microseconds.
        at: i64,
    },
    /// Stores a refresh token of a grant. One that is there stays as it is.
    InsertRefresh {
        /// SHA-256 of the token.
        hash: [u8; 32],
        /// The grant.
        grant: GrantId,
        /// Unix microseconds.
        expires_at: i64,
    },
    /// Spends a refresh token. Refused when it is expired, its grant revoked, or it was spent before and the grace is over.
    SpendRefresh {
        /// SHA-256 of the token.
        hash: [u8; 32],
        /// SHA-256 of the token that takes its place.
        successor: [u8; 32],
        /// A spent token may be spent again for so many microseconds, while its successor is unspent.
        grace_us: i64,
        /// Unix microseconds.
        at: i64,
    },
    /// Moves the end of a grant further on, and notes that it was used.
    ProlongGrant {
        /// Which.
        id: GrantId,
        /// Unix microseconds until which something of it works.
        ends_at: i64,
        /// Unix microseconds.
        at: i64,
    },
    /// Revokes a grant with all that came from it. Revoking it again changes nothing; one that is not there neither.
    RevokeGrant {
        /// Which.
        id: GrantId,
        /// Whose.
        account: AccountId,
        /// Unix microseconds.
        at: i64,
    },
    /// Revokes the grants of an account, with all that came from them.
    RevokeGrants {
        /// Whose.
        account: AccountId,
        /// Those of this client; `None` for all.
        client: Option<Arc<str>>,
        /// Unix microseconds.
        at: i64,
    },
    /// Notes when credentials were last let in.
    NoteUses(Vec<(CredentialId, i64)>),
    /// Forgets what can no longer matter, at most so many rows of each kind.
    Forget {
        /// Unix microseconds.
        now: i64,
        /// Clients that were never allowed anything and are older than this, in Unix microseconds.
        unused_before: i64,
        /// Clients that were last used before this, in Unix microseconds.
        used_before: i64,
        /// Grants and tokens that ended before this, in Unix microseconds.
        ended_before: i64,
        /// The most rows of one kind.
        limit: u32,
    },
}

/// What in the data stands against a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OAuthRefusal {
    /// There is no such client.
    #[error("the client is gone")]
    NoClient,
    /// The request was decided, or its time is over.
    #[error("the request for authorization is gone")]
    PendingGone,
    /// The request belongs to another session.
    #[error("the request for authorization belongs to another session")]
    PendingElsewhere,
    /// The code was used before.
    #[error("the code was used before")]
    CodeUsed,
    /// The code is unknown, expired or worn out.
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

/// Reads of this part of the data.
pub trait OAuthRead {
    /// One client.
    fn oauth_client(&self, id: &str) -> Result<Option<ClientRow>, ReadError>;

    /// One request that nobody has decided on, expired or not.
    fn oauth_pending(&self, id: &[u8; 16]) -> Result<Option<PendingRow>, ReadError>;

    /// The code with this digest, used and expired ones too.
    fn oauth_code(&self, hash: &[u8; 32]) -> Result<Option<CodeRow>, ReadError>;

    /// The refresh token with this digest, spent and expired ones too.
    fn oauth_refresh(&self, hash: &[u8; 32]) -> Result<Option<RefreshRow>, ReadError>;

    /// One grant, revoked and ended ones too.
    fn oauth_grant(&self, id: GrantId) -> Result<Option<GrantRow>, ReadError>;

    /// The grants of an account that hold at `now` (Unix microseconds), oldest first.
    fn oauth_grants(&self, account: AccountId, now: i64) -> Result<Vec<GrantRow>, ReadError>;
}
