//! Pending authorization requests and the decisions on them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use secrecy::ExposeSecret;
use tollgate_money::{AccountId, GrantId};
use tollgate_store::{
    ClientRow, CommitError, GrantRow, OAuthPart, OAuthRefusal, PendingRow, ReadError, Refusal,
    reading,
};
use zeroize::Zeroizing;

use super::authorization_response::{AuthorizationError, response_url};
use super::pkce::Challenge;
use super::redirect::{Destination, form_action_source};
use super::{
    AuthorizationServer, CODE_LIFETIME, IntoPart as _, PENDING_LIFETIME, PENDING_MAX, refusal,
};
use crate::digest::Digest;
use crate::keys::id_bytes;
use crate::session::{Session, required};

/// A validated authorization request.
#[derive(Clone, Debug)]
pub struct AuthorizationRequest {
    /// The client id.
    pub client: Arc<str>,
    /// The client's self-chosen name.
    pub client_name: Option<Arc<str>>,
    /// Whether the client registered for refresh tokens.
    pub refresh: bool,
    /// Whether the client id is the URL of a client metadata document.
    pub document: bool,
    /// The redirect URI, matched against the registered URIs.
    pub redirect_uri: Arc<str>,
    /// Returned unchanged.
    pub state: Option<Arc<str>>,
    /// The PKCE challenge.
    pub challenge: Challenge,
    /// Bit set with a single resource.
    pub resource: u32,
    /// The resource in the client's spelling.
    pub asked: Option<Arc<str>>,
    /// Bit set of the scopes; at least one.
    pub scopes: u32,
}

/// The id of a pending request: 128 random bits, 32 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PendingId([u8; 16]);

impl fmt::Display for PendingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", base16ct::HexDisplay(&self.0))
    }
}

/// The text is no id of a pending request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id of an authorization request has 32 lower-case hex digits")]
pub struct PendingIdError;

impl FromStr for PendingId {
    type Err = PendingIdError;

    fn from_str(text: &str) -> Result<PendingId, PendingIdError> {
        let mut id = [0; 16];
        let is_id = text.len() == 32 && base16ct::lower::decode(text, &mut id).is_ok();
        is_id.then_some(PendingId(id)).ok_or(PendingIdError)
    }
}

/// A pending request as shown to the account owner.
#[derive(Clone, Debug)]
pub struct Pending {
    pub id: PendingId,
    row: PendingRow,
}

impl Pending {
    /// The client's self-chosen name.
    pub fn client_name(&self) -> Option<&str> {
        self.row.client_name.as_deref()
    }

    /// The client id.
    pub fn client(&self) -> &str {
        &self.row.client
    }

    /// Whether the client id is the URL of a client metadata document.
    pub fn document(&self) -> bool {
        self.row.document
    }

    /// Where the response goes.
    pub fn destination(&self) -> Destination {
        Destination::of(&self.row.redirect_uri)
    }

    /// The source that the page's `form-action` must allow.
    pub fn form_action(&self) -> String {
        form_action_source(&self.row.redirect_uri)
    }

    /// Bit set with a single resource.
    pub fn resource(&self) -> u32 {
        self.row.resource
    }

    /// Bit set of the requested scopes.
    pub fn scopes(&self) -> u32 {
        self.row.scopes
    }

    /// Whether refresh tokens are issued too.
    pub fn refresh(&self) -> bool {
        self.row.refresh
    }
}

/// The deciding session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decider {
    /// The digest of the session, which has to be live when the decision is written.
    pub session: [u8; 32],
    /// The lineage of the session, which survives a change of the session's value: the request is bound to the lineage.
    pub lineage: [u8; 32],
    pub account: AccountId,
}

impl From<&Session> for Decider {
    fn from(session: &Session) -> Decider {
        Decider {
            session: session.digest,
            lineage: session.lineage(),
            account: session.account,
        }
    }
}

/// Why no decision was made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecideError {
    /// Decided before, or expired.
    #[error(
        "this request was already decided or has expired after ten minutes; start again in the app"
    )]
    Gone,
    /// Bound to another session.
    #[error("this request is open in another browser session; start again in the app")]
    OtherSession,
    /// The client was deleted.
    #[error("the app is no longer registered; start again in the app")]
    NoClient,
    /// The session was ended meanwhile.
    #[error("the session has ended; sign in again")]
    SignedOut,
    /// More scopes than requested, or none.
    #[error("choose at least one of the requested scopes, and no others")]
    Scopes,
    /// Reading the store failed.
    #[error("could not read the request")]
    Read(#[source] ReadError),
    /// Writing to the store failed.
    #[error("could not write the decision")]
    Store(#[source] CommitError),
}

impl From<CommitError> for DecideError {
    fn from(error: CommitError) -> DecideError {
        if matches!(error, CommitError::Refused(Refusal::SessionEnded)) {
            return DecideError::SignedOut;
        }
        match refusal(&error) {
            Some(OAuthRefusal::PendingElsewhere) => DecideError::OtherSession,
            Some(OAuthRefusal::NoClient) => DecideError::NoClient,
            Some(_) => DecideError::Gone,
            None => DecideError::Store(error),
        }
    }
}

impl AuthorizationServer {
    /// Stores a request as pending, for ten minutes.
    pub async fn store_request(
        &self,
        request: AuthorizationRequest,
    ) -> Result<PendingId, CommitError> {
        let mut id = [0; 16];
        (self.draw)(&mut id);
        let now = self.clock.now();
        let pending = PendingRow {
            id,
            client: request.client,
            client_name: request.client_name,
            refresh: request.refresh && self.settings.refresh.is_some(),
            document: request.document,
            redirect_uri: request.redirect_uri,
            state: request.state,
            challenge: request.challenge.into(),
            resource: request.resource,
            asked: request.asked,
            scopes: request.scopes,
            session: None,
            created_at: now,
            expires_at: now + PENDING_LIFETIME,
        };
        self.commit([OAuthPart::InsertPending {
            pending,
            pending_max: PENDING_MAX,
        }
        .into_part()])
            .await?;
        Ok(PendingId(id))
    }

    /// Opens a pending request in a session, and binds the request: no other session may decide. `session` is the session's digest.
    pub async fn open_request(
        &self,
        id: PendingId,
        session: &[u8; 32],
    ) -> Result<Pending, DecideError> {
        let row = self.pending(id, session).await?;
        if row.session.is_none() {
            self.commit([OAuthPart::BindPending {
                id: id.0,
                session: *session,
                now: self.clock.now(),
            }
            .into_part()])
                .await?;
        }
        Ok(Pending { id, row })
    }

    /// The client's name in an unbound pending request, for a page before sign-in; `None` for an unknown request, or a client without a
    /// name. Does not bind the request.
    pub async fn pending_client_name(&self, id: PendingId) -> Result<Option<Arc<str>>, ReadError> {
        let row = reading(&self.store, move |read| read.oauth_pending(&id.0)).await?;
        let waits = row.filter(|row| self.clock.now() < row.expires_at && row.session.is_none());
        Ok(waits.and_then(|row| row.client_name))
    }

    /// Allows a request with `scopes`, a non-empty subset of the requested scopes. Returns the redirect URL with a code for the client.
    pub async fn allow(
        &self,
        id: PendingId,
        decider: &Decider,
        scopes: u32,
    ) -> Result<String, DecideError> {
        let row = self.pending(id, &decider.lineage).await?;
        if scopes == 0 || scopes & !row.scopes != 0 {
            return Err(DecideError::Scopes);
        }
        let now = self.clock.now();
        let code_end = now + CODE_LIFETIME;
        let code = {
            let mut random = Zeroizing::new([0; 32]);
            (self.draw)(&mut *random);
            self.code_form.make(&random)
        };
        let grant = GrantId::from_bytes(id_bytes(now, &mut &*self.draw));
        let client = match row.document {
            true => OAuthPart::InsertClient {
                client: ClientRow {
                    id: row.client.clone(),
                    name: row.client_name.clone(),
                    redirect_uris: vec![row.redirect_uri.clone()],
                    refresh: row.refresh,
                    document: true,
                    created_at: now,
                    used_at: Some(now),
                },
                network: None,
                unused_max: self.settings.unused_clients_max,
            },
            false => OAuthPart::UseClient {
                id: row.client.clone(),
                at: now,
            },
        };
        let parts = [
            OAuthPart::TakePending {
                id: id.0,
                session: decider.lineage,
                now,
            },
            client,
            OAuthPart::InsertGrant(GrantRow {
                id: grant,
                account: decider.account,
                client: row.client.clone(),
                client_name: row.client_name.clone(),
                refresh: row.refresh,
                redirect_uri: row.redirect_uri.clone(),
                resource: row.resource,
                asked: row.asked.clone(),
                scopes,
                created_at: now,
                used_at: now,
                ends_at: code_end,
                revoked_at: None,
            }),
            OAuthPart::InsertCode {
                hash: *Digest::of(code.expose_secret().as_bytes()).as_bytes(),
                grant,
                challenge: row.challenge.clone(),
                expires_at: code_end,
            },
        ];
        let signed_in = required(decider.session, now);
        let parts = parts.map(OAuthPart::into_part);
        self.commit(std::iter::once(signed_in).chain(parts)).await?;
        Ok(self.address(&row, Ok(code.expose_secret())))
    }

    /// Denies a request. Returns the redirect URL with the error for the client.
    pub async fn deny(&self, id: PendingId, session: &[u8; 32]) -> Result<String, DecideError> {
        let row = self.pending(id, session).await?;
        self.commit([OAuthPart::TakePending {
            id: id.0,
            session: *session,
            now: self.clock.now(),
        }
        .into_part()])
            .await?;
        Ok(self.address(&row, Err(AuthorizationError::AccessDenied)))
    }

    /// Replaces a pending request by an equal request under a new id, unopened by any session, so that another account can decide. The
    /// expiry stays.
    pub async fn reissue(
        &self,
        id: PendingId,
        session: &[u8; 32],
    ) -> Result<PendingId, DecideError> {
        let row = self.pending(id, session).await?;
        let mut new = [0; 16];
        (self.draw)(&mut new);
        let parts = [
            OAuthPart::TakePending {
                id: id.0,
                session: *session,
                now: self.clock.now(),
            },
            OAuthPart::InsertPending {
                pending: PendingRow {
                    id: new,
                    session: None,
                    ..row
                },
                pending_max: PENDING_MAX,
            },
        ];
        self.commit(parts.map(OAuthPart::into_part)).await?;
        Ok(PendingId(new))
    }

    /// The redirect URL that reports an internal error to the client.
    pub fn failure_address(&self, pending: &Pending, error: AuthorizationError) -> String {
        self.address(&pending.row, Err(error))
    }

    fn address(&self, row: &PendingRow, answer: Result<&str, AuthorizationError>) -> String {
        response_url(
            &row.redirect_uri,
            answer,
            row.state.as_deref(),
            &self.issuer,
        )
    }

    /// A live pending request open to this session's decision.
    async fn pending(&self, id: PendingId, session: &[u8; 32]) -> Result<PendingRow, DecideError> {
        let row = reading(&self.store, move |read| read.oauth_pending(&id.0))
            .await
            .map_err(DecideError::Read)?
            .filter(|row| self.clock.now() < row.expires_at)
            .ok_or(DecideError::Gone)?;
        match row.session {
            Some(owner) if owner != *session => Err(DecideError::OtherSession),
            _ => Ok(row),
        }
    }
}
