//! Creation and revocation of access tokens.

use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId};
use tollgate_store::{
    Admission, CommitError, CredentialKind, CredentialRow, NewCredential, Part, ReadError, Refusal,
    Store, UnitOfWork, commit, reading,
};
use zeroize::Zeroizing;

use crate::digest::Digest;
use crate::form::Form;
use crate::keys::id_bytes;
use crate::session::{Session, required};

/// The beginning of the label of a token that ends with a session.
const SESSION_LABEL: &str = "session ";

/// An access token to create (RFC 6749 section 1.4): with resources, scopes and an expiry.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// The paying account.
    pub account: AccountId,
    /// The OAuth client; `None` for a token of the service itself.
    pub client: Option<Arc<str>>,
    /// The grant. Its revocation revokes the token.
    pub grant: Option<[u8; 16]>,
    /// Bit set of resources.
    pub resources: u32,
    /// Bit set of scopes.
    pub scopes: u32,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Expiry: the token is live before this instant.
    pub expires_at: Timestamp,
}

/// A new token.
#[derive(Debug)]
pub struct IssuedToken {
    /// Its public id.
    pub id: CredentialId,
    /// The secret, stored nowhere.
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

/// Creates an access token of this form, live on return. `draw` fills a slice with random bytes.
pub async fn issue_token(
    store: &dyn Store,
    form: &Form,
    token: NewToken,
    draw: impl FnMut(&mut [u8]) + Send,
) -> Result<IssuedToken, IssueTokenError> {
    write_token(store, form, token, None, draw).await
}

/// Creates an access token for a session that is live at the time of the write. [`session_tokens`] finds the token at every node.
pub async fn issue_token_as(
    store: &dyn Store,
    form: &Form,
    token: NewToken,
    session: &Session,
    draw: impl FnMut(&mut [u8]) + Send,
) -> Result<IssuedToken, IssueTokenError> {
    write_token(store, form, token, Some(session), draw).await
}

/// The live tokens of a session of an account, or of all sessions, oldest first. A read after the end of a session has every token issued
/// for the session, even by another node.
pub async fn session_tokens(
    store: &Arc<dyn Store>,
    account: AccountId,
    session: Option<&Session>,
    now: Timestamp,
) -> Result<Vec<CredentialId>, ReadError> {
    let rows = reading(store, move |store| store.account_credentials(account)).await?;
    let label = session.map(session_label);
    let is_of_session = |row: &&CredentialRow| {
        let own = row.made.label.as_deref();
        row.made.kind == CredentialKind::AccessToken
            && own.is_some_and(|own| match &label {
                Some(label) => own == label,
                None => own.starts_with(SESSION_LABEL),
            })
    };
    let is_live = |row: &&CredentialRow| {
        row.revoked_at.is_none() && row.made.expires_at.is_none_or(|at| at > now)
    };
    let live = rows.iter().filter(is_of_session).filter(is_live);
    let mut live: Vec<_> = live.map(|row| (row.made.created_at, row.made.id)).collect();
    live.sort_unstable();
    Ok(live.into_iter().map(|(_, id)| id).collect())
}

/// The label of a session's tokens: the digest of the lineage, sufficient for comparison. The lineage itself is not stored.
fn session_label(session: &Session) -> String {
    let digest = Digest::of(&session.lineage());
    let digest = base16ct::lower::encode_string(&digest.as_bytes()[..16]);
    format!("{SESSION_LABEL}{digest}")
}

fn token_id(created_at: Timestamp, mut draw: impl FnMut(&mut [u8])) -> CredentialId {
    CredentialId::from_bytes(id_bytes(created_at, &mut draw))
}

async fn write_token(
    store: &dyn Store,
    form: &Form,
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
    let label = session.map(|session| Arc::from(session_label(session)));
    let (issued, part) = token_part_as(form, label, token, &mut draw);
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

/// Revokes a token; no longer live on return. Idempotent.
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

/// A token and the part that stores the token, for a larger unit of work.
pub(crate) fn token_part(
    form: &Form,
    token: NewToken,
    draw: &mut (impl FnMut(&mut [u8]) + ?Sized),
) -> (IssuedToken, Part) {
    token_part_as(form, None, token, draw)
}

fn token_part_as(
    form: &Form,
    label: Option<Arc<str>>,
    token: NewToken,
    draw: &mut (impl FnMut(&mut [u8]) + ?Sized),
) -> (IssuedToken, Part) {
    let id = token_id(token.created_at, &mut *draw);
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
        label,
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
