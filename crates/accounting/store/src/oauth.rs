//! OAuth clients, authorization requests, grants, codes and refresh tokens, as stored (RFC 6749).

use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, GrantId};

/// A client that has registered, or that a person has granted access (RFC 7591).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRow {
    /// The client id: issued here, or the URL of the client's metadata document.
    pub id: Arc<str>,
    /// The client's self-declared name.
    pub name: Option<Arc<str>>,
    /// The client's redirect URIs, without line breaks.
    pub redirect_uris: Vec<Arc<str>>,
    /// Whether the client registered for refresh tokens.
    pub refresh: bool,
    /// Whether the client id is the URL of a metadata document.
    pub document: bool,
    /// Time of registration.
    pub created_at: Timestamp,
    /// Time of the last grant or token; `None` before the first grant or token.
    pub used_at: Option<Timestamp>,
}

/// A validated authorization request that waits for a person's decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingRow {
    /// Random id: the first session that presents the id may decide.
    pub id: [u8; 16],
    /// The client.
    pub client: Arc<str>,
    /// The client's self-declared name.
    pub client_name: Option<Arc<str>>,
    /// Whether the client registered for refresh tokens.
    pub refresh: bool,
    /// Whether the client's id is the URL of its metadata document.
    pub document: bool,
    /// The redirect URI, as in the request.
    pub redirect_uri: Arc<str>,
    /// The `state` parameter, returned to the client unchanged.
    pub state: Option<Arc<str>>,
    /// `BASE64URL(SHA256(verifier))` (RFC 7636 section 4.2).
    pub challenge: Arc<str>,
    /// Bit set with the single resource.
    pub resource: u32,
    /// The resource as the client wrote it.
    pub asked: Option<Arc<str>>,
    /// Bit set of the requested scopes.
    pub scopes: u32,
    /// Digest of the session that may decide; `None` until a session has opened the request.
    pub session: Option<[u8; 32]>,
    /// Time of the request.
    pub created_at: Timestamp,
    /// The request's expiry.
    pub expires_at: Timestamp,
}

/// The access a person has granted a client. The head of a token family: code, access tokens and refresh tokens belong to the grant and end
/// with the grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantRow {
    /// The id.
    pub id: GrantId,
    /// The account of the person, which pays.
    pub account: AccountId,
    /// The client.
    pub client: Arc<str>,
    /// The client's self-declared name at the time of the grant.
    pub client_name: Option<Arc<str>>,
    /// Whether refresh tokens are issued from the grant.
    pub refresh: bool,
    /// The redirect URI used.
    pub redirect_uri: Arc<str>,
    /// Bit set with the single resource.
    pub resource: u32,
    /// The resource as the client wrote it.
    pub asked: Option<Arc<str>>,
    /// Bit set of the granted scopes.
    pub scopes: u32,
    /// Time of the grant.
    pub created_at: Timestamp,
    /// When a token of the grant was last accepted, with a precision of minutes; the time of the grant before the first acceptance.
    pub used_at: Timestamp,
    /// When everything in the grant has expired.
    pub ends_at: Timestamp,
    /// Time of revocation; `None` while the grant is valid.
    pub revoked_at: Option<Timestamp>,
}

/// An authorization code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeRow {
    /// The grant of the code.
    pub grant: GrantRow,
    /// The PKCE code challenge.
    pub challenge: Arc<str>,
    /// Number of refused requests that named the code.
    pub refusals: u32,
    /// The code's expiry.
    pub expires_at: Timestamp,
    /// Time of use; `None` while the code is unused.
    pub used_at: Option<Timestamp>,
}

/// A refresh token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefreshRow {
    /// The grant of the token.
    pub grant: GrantRow,
    /// The token's expiry.
    pub expires_at: Timestamp,
    /// Time of spending; `None` while the token is unspent.
    pub spent_at: Option<Timestamp>,
    /// Whether the token's successor is spent as well.
    pub successor_spent: bool,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OAuthPart {
    /// Stores a client.
    InsertClient {
        /// The client. Replaces a stored client with its id.
        client: ClientRow,
        /// Digest of the network that sent the registration; `None` where no network is counted.
        network: Option<[u8; 16]>,
        /// Maximum number of clients without a grant. Above the maximum the network with the most such clients loses its oldest client. A
        /// client with a request that waits for a decision stays.
        unused_max: u32,
    },
    /// Marks a client as granted. Refused when the client does not exist.
    UseClient {
        /// The client's id.
        id: Arc<str>,
        /// Time of the grant.
        at: Timestamp,
    },
    /// Stores a request.
    InsertPending {
        /// The request.
        pending: PendingRow,
        /// Maximum number of requests; the oldest requests beyond the maximum are deleted.
        pending_max: u32,
    },
    /// Binds a request to the first session that opens it. Refused for every later session.
    BindPending {
        /// The request's id.
        id: [u8; 16],
        /// Digest of the session.
        session: [u8; 32],
        /// The time of the request.
        now: Timestamp,
    },
    /// Removes a decided request. Refused when the request does not exist, or belongs to another session.
    TakePending {
        /// The request's id.
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
        /// The code's expiry.
        expires_at: Timestamp,
    },
    /// Counts a refused request that named a code.
    RefuseCode {
        /// SHA-256 of the code.
        hash: [u8; 32],
    },
    /// Uses a code. Refused for a used or expired code, beyond the attempt limit, or after the grant's revocation.
    TakeCode {
        /// SHA-256 of the code.
        hash: [u8; 32],
        /// Number of refusals after which the code is invalid.
        refusals_max: u32,
        /// The time of the request.
        at: Timestamp,
    },
    /// Stores a refresh token of a grant. A stored token stays unchanged.
    InsertRefresh {
        /// SHA-256 of the token.
        hash: [u8; 32],
        /// The grant.
        grant: GrantId,
        /// The token's expiry.
        expires_at: Timestamp,
    },
    /// Spends a refresh token. Refused for an expired token, after the grant's revocation, or after an earlier use beyond the grace period.
    SpendRefresh {
        /// SHA-256 of the token.
        hash: [u8; 32],
        /// SHA-256 of the token's successor.
        successor: [u8; 32],
        /// Grace period within which a spent token may be spent again, while its successor is unspent.
        grace: Duration,
        /// The time of the request.
        at: Timestamp,
    },
    /// Extends the expiry of a grant.
    ProlongGrant {
        /// The grant's id.
        id: GrantId,
        /// Expiry of the last token of the grant.
        ends_at: Timestamp,
    },
    /// Revokes a grant with everything issued from the grant. No effect on a revoked or unknown grant.
    RevokeGrant {
        /// The grant's id.
        id: GrantId,
        /// The account.
        account: AccountId,
        /// Time of revocation.
        at: Timestamp,
    },
    /// Revokes the grants of an account, with everything issued from the grants.
    RevokeGrants {
        /// The account.
        account: AccountId,
        /// The client whose grants are revoked; `None` for every client.
        client: Option<Arc<str>>,
        /// Time of revocation.
        at: Timestamp,
    },
    /// Records when credentials were last accepted.
    NoteUses(Vec<(CredentialId, Timestamp)>),
    /// Deletes obsolete rows, at most `limit` per kind.
    Forget {
        /// The present time, for the expiry of requests.
        now: Timestamp,
        /// Registration time below which a client without a grant, and without a request that waits for a decision, is deleted.
        unused_before: Timestamp,
        /// Time of last use below which a client is deleted.
        used_before: Timestamp,
        /// Time of ending below which grants and tokens are deleted.
        ended_before: Timestamp,
        /// Maximum number of rows per kind.
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
