//! Making and revoking access tokens.

use std::sync::Arc;

use tollgate_money::AccountId;
use tollgate_store::{
    Admission, CommitError, CredentialId, NewCredential, Part, Refusal, Store, UnitOfWork, commit,
};
use zeroize::Zeroizing;

use crate::digest::Digest;
use crate::form::Form;
use crate::keys::id_bytes;
use crate::secret::Secret;
use crate::session::{Session, required};

/// An access token to be made (RFC 6749 section 1.4): bound to resources, with scopes and an end.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// Who pays for what it does.
    pub account: AccountId,
    /// The OAuth client it is for; `None` for one that the service gives to itself.
    pub client: Option<Arc<str>>,
    /// The grant it comes from, with which it is revoked.
    pub grant: Option<[u8; 16]>,
    /// Bit set of the resources it is good for.
    pub resources: u32,
    /// Bit set of its scopes.
    pub scopes: u32,
    /// Unix microseconds.
    pub created_at: i64,
    /// Unix microseconds; it works before this instant.
    pub expires_at: i64,
}

/// A token just made.
#[derive(Debug)]
pub struct IssuedToken {
    /// What it is called by ever after.
    pub id: CredentialId,
    /// The token itself, which exists nowhere else.
    pub secret: Secret,
    /// Unix microseconds.
    pub expires_at: i64,
}

/// Why a token was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IssueTokenError {
    /// There is no such account.
    #[error("there is no account `{0}`")]
    NoAccount(AccountId),
    /// The token would do nothing.
    #[error("the token would have no scope or no resource; give it one at least")]
    Powerless,
    /// The token would have expired before it exists.
    #[error("the token would expire before it is made; give an end in the future")]
    Expired,
    /// Whoever the token is for was signed out meanwhile.
    #[error("the session is over")]
    SignedOut,
    /// The store did not write it.
    #[error("could not write the token")]
    Store(#[source] CommitError),
}

/// Makes an access token of this form. It works when this returns. `draw` fills a slice with random bytes.
pub async fn issue_token(
    store: &dyn Store,
    form: &Form,
    token: NewToken,
    mut draw: impl FnMut(&mut [u8]) + Send,
) -> Result<IssuedToken, IssueTokenError> {
    let id = token_id(token.created_at, &mut draw);
    write_token(store, form, id, token, None, draw).await
}

/// Makes an access token for a session, if that still lasts when the token is written. Its id was drawn before, so that whoever ends the
/// session can know of a token that is under way.
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

/// The id of a token to be made. `draw` fills a slice with random bytes.
pub fn token_id(created_at: i64, mut draw: impl FnMut(&mut [u8])) -> CredentialId {
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
    match commit(store, UnitOfWork::of_all(parts, Admission::Begins)).await {
        Ok(_) => Ok(issued),
        Err(CommitError::Refused(Refusal::NoAccount(account))) => {
            Err(IssueTokenError::NoAccount(account))
        }
        Err(CommitError::Refused(Refusal::SessionOver)) => Err(IssueTokenError::SignedOut),
        Err(error) => Err(IssueTokenError::Store(error)),
    }
}

/// Revokes a token. It no longer works when this returns; one that is not there, or revoked, changes nothing. `at` is Unix microseconds.
pub async fn revoke_token(
    store: &dyn Store,
    token: CredentialId,
    at: i64,
) -> Result<(), CommitError> {
    let part = Part::RevokeCredential { id: token, at };
    match commit(store, UnitOfWork::of(part, Admission::Ends)).await {
        Ok(_) | Err(CommitError::Refused(Refusal::NoCredential(_))) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A token, and the part that stores it: for units of work that do more than that.
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
        hash: *Digest::of(secret.expose().as_bytes()).as_bytes(),
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
