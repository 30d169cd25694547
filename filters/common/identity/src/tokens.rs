//! Creation and revocation of access tokens.

use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId};
use tollgate_store::{
    Admission, CommitError, NewCredential, Part, Refusal, Store, UnitOfWork, commit,
};
use zeroize::Zeroizing;

use crate::digest::Digest;
use crate::form::Form;
use crate::keys::id_bytes;
use crate::session::{Session, required};

/// An access token to create (RFC 6749 section 1.4): with resources, scopes and an expiry.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// The account that pays for its use.
    pub account: AccountId,
    /// Its OAuth client; `None` for a token of the service itself.
    pub client: Option<Arc<str>>,
    /// Its grant, whose revocation revokes it.
    pub grant: Option<[u8; 16]>,
    /// Bit set of its resources.
    pub resources: u32,
    /// Bit set of its scopes.
    pub scopes: u32,
    /// When it is created.
    pub created_at: Timestamp,
    /// Expiry: it is live before this instant.
    pub expires_at: Timestamp,
}

/// A new token.
#[derive(Debug)]
pub struct IssuedToken {
    /// Its public id.
    pub id: CredentialId,
    /// The secret, which is stored nowhere.
    pub secret: SecretString,
    /// Expiry.
    pub expires_at: Timestamp,
}

/// Why a token was not created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IssueTokenError {
    /// Unknown account.
    #[error("there is no account `{0}`")]
    NoAccount(AccountId),
    /// The token has no scope or no resource.
    #[error("the token has no scope or no resource; give it at least one of each")]
    Powerless,
    /// The expiry is in the past.
    #[error("the expiry of the token is in the past; use a future one")]
    Expired,
    /// The session of the request was ended meanwhile.
    #[error("the session has ended")]
    SignedOut,
    /// Writing to the store failed.
    #[error("could not write the token")]
    Store(#[source] CommitError),
}

/// Creates an access token of this form. It is live on return. `draw` fills a slice with random bytes.
pub async fn issue_token(
    store: &dyn Store,
    form: &Form,
    token: NewToken,
    mut draw: impl FnMut(&mut [u8]) + Send,
) -> Result<IssuedToken, IssueTokenError> {
    let id = token_id(token.created_at, &mut draw);
    write_token(store, form, id, token, None, draw).await
}

/// Creates an access token for a session, if that is still live when the token is written. Its id was drawn before, so that the end of the
/// session can also revoke a token that is being created.
pub async fn issue_token_as(
    store: &dyn Store,
    form: &Form,
    id: CredentialId,
    token: NewToken,
    session: &Session,
    draw: impl FnMut(&mut [u8]) + Send,
) -> Result<IssuedToken, IssueTokenError> {
    write_token(store, form, id, token, Some(session), draw).await
}

/// A token id. `draw` fills a slice with random bytes.
pub fn token_id(created_at: Timestamp, mut draw: impl FnMut(&mut [u8])) -> CredentialId {
    CredentialId::from_bytes(id_bytes(created_at, &mut draw))
}

async fn write_token(
    store: &dyn Store,
    form: &Form,
    id: CredentialId,
    token: NewToken,
    session: Option<&Session>,
    mut draw: impl FnMut(&mut [u8]) + Send,
) -> Result<IssuedToken, IssueTokenError> {
    if token.scopes == 0 || token.resources == 0 {
        return Err(IssueTokenError::Powerless);
    }
    if token.expires_at <= token.created_at {
        return Err(IssueTokenError::Expired);
    }
    let signed_in = session.map(|session| required(session.digest, token.created_at));
    let (issued, part) = token_part_as(form, id, token, &mut draw);
    let parts = signed_in.into_iter().chain([part]);
    match commit(store, UnitOfWork::of_all(parts, Admission::Normal)).await {
        Ok(_) => Ok(issued),
        Err(CommitError::Refused(Refusal::NoAccount(account))) => {
            Err(IssueTokenError::NoAccount(account))
        }
        Err(CommitError::Refused(Refusal::SessionEnded)) => Err(IssueTokenError::SignedOut),
        Err(error) => Err(IssueTokenError::Store(error)),
    }
}

/// Revokes a token. It is no longer live on return; idempotent.
pub async fn revoke_token(
    store: &dyn Store,
    token: CredentialId,
    at: Timestamp,
) -> Result<(), CommitError> {
    let part = Part::RevokeCredential { id: token, at };
    match commit(store, UnitOfWork::of(part, Admission::Always)).await {
        Ok(_) | Err(CommitError::Refused(Refusal::NoCredential(_))) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A token and the part that stores it, for a larger unit of work.
pub(crate) fn token_part(
    form: &Form,
    token: NewToken,
    draw: &mut (impl FnMut(&mut [u8]) + ?Sized),
) -> (IssuedToken, Part) {
    let id = token_id(token.created_at, &mut *draw);
    token_part_as(form, id, token, draw)
}

fn token_part_as(
    form: &Form,
    id: CredentialId,
    token: NewToken,
    draw: &mut (impl FnMut(&mut [u8]) + ?Sized),
) -> (IssuedToken, Part) {
    let secret = {
        let mut random = Zeroizing::new([0; 32]);
        draw(&mut *random);
        form.make(&random)
    };
    let made = NewCredential {
        id,
        hash: *Digest::of(secret.expose_secret().as_bytes()).as_bytes(),
        kind: form.kind(),
        account: token.account,
        client_id: token.client,
        grant_id: token.grant,
        resource: token.resources,
        scopes: token.scopes,
        label: None,
        hint: Some(Arc::from(form.hint(&secret))),
        models: None,
        spending_cap: None,
        created_at: token.created_at,
        expires_at: Some(token.expires_at),
    };
    let issued = IssuedToken {
        id,
        secret,
        expires_at: token.expires_at,
    };
    (issued, Part::InsertCredential(Box::new(made)))
}
