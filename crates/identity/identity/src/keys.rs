//! Creation, listing and revocation of API keys.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, Micros, SpendingCap};
use tollgate_store::{
    Admission, CommitError, CredentialChange, CredentialKind, CredentialRow, NewCredential, Part,
    ReadError, Reader, Refusal, Submit, UnitOfWork, commit,
};
use uuid::Uuid;
use zeroize::Zeroizing;

use crate::digest::Digest;
use crate::form::Form;
use crate::session::{Session, required};

const LABEL_CHARS_MAX: usize = 80;

/// An API key to create.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// The paying account.
    pub account: AccountId,
    /// Label: 1 to 80 characters without control characters.
    pub label: String,
    /// Bit set of resources.
    pub resources: u32,
    /// Bit set of scopes.
    pub scopes: u32,
    /// The permitted models; `None` for all.
    pub models: Option<Arc<[Arc<str>]>>,
    /// The spending cap, if any.
    pub spending_cap: Option<SpendingCap>,
    /// The expiry, if any.
    pub expires_at: Option<Timestamp>,
    /// Time of creation.
    pub created_at: Timestamp,
}

/// A new key.
#[derive(Debug)]
pub struct CreatedKey {
    /// Its public id.
    pub id: KeyId,
    /// The secret, stored nowhere.
    pub secret: SecretString,
    /// The displayable part of the secret.
    pub hint: String,
}

/// The public id of a credential: `key_` and 32 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(pub CredentialId);

/// Why a text is not a key id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a key id; write `key_` and 32 hex digits, as `tollgate key list` shows it")]
pub struct KeyIdError;

/// Why a key was not created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateKeyError {
    /// Unknown account.
    #[error("there is no account `{0}`; `tollgate account list` shows them")]
    NoAccount(AccountId),
    /// The label is empty, too long, or has control characters.
    #[error(
        "the name of a key must have 1 to {LABEL_CHARS_MAX} characters and no control characters"
    )]
    Label,
    /// The key has no scope.
    #[error("the key has no scope; give it at least one")]
    NoScope,
    /// The list of models is empty.
    #[error("the list of models is empty; omit it to allow all of them")]
    NoModel,
    /// Not a model id.
    #[error("`{0:?}` is not a model id")]
    Model(Arc<str>),
    /// The spending cap is zero.
    #[error("the spending cap must be above 0; omit it for none")]
    NoSpending,
    /// The id was used before.
    #[error("the key `{0}` already exists")]
    AlreadyMade(KeyId),
    /// The expiry is in the past.
    #[error("the expiry of the key is in the past; use a future one, or none")]
    Expired,
    /// The session of the request was ended meanwhile.
    #[error("the session has ended")]
    SignedOut,
    /// Writing to the store failed.
    #[error("could not write the key")]
    Store(#[source] CommitError),
}

/// Why a key was not revoked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RevokeKeyError {
    /// Unknown key.
    #[error("there is no key `{0}`; `tollgate key list` shows them")]
    NoKey(KeyId),
    /// Writing to the store failed.
    #[error("could not store the revocation of key `{key}`")]
    Store {
        key: KeyId,
        /// The cause.
        #[source]
        source: CommitError,
    },
}

/// New values of a key, including unchanged values.
#[derive(Clone, Debug)]
pub struct KeyChange {
    /// Label: 1 to 80 characters without control characters.
    pub label: String,
    /// The permitted models; `None` for all.
    pub models: Option<Arc<[Arc<str>]>>,
    /// The spending cap, if any.
    pub spending_cap: Option<SpendingCap>,
    /// Spending already counted against the cap.
    pub spent: Micros,
    /// The expiry, if any.
    pub expires_at: Option<Timestamp>,
    /// Time of the change.
    pub at: Timestamp,
}

/// Why a key was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeKeyError {
    /// A value that no key can have.
    #[error(transparent)]
    Value(CreateKeyError),
    /// Changed or revoked since the read, expired, or a key of another account.
    #[error("the key `{0}` was changed meanwhile, or cannot be changed any more")]
    Conflict(KeyId),
    /// The session of the request was ended meanwhile.
    #[error("the session has ended")]
    SignedOut,
    /// Writing to the store failed.
    #[error("could not write the change of key `{key}`")]
    Store {
        key: KeyId,
        /// The cause.
        #[source]
        source: CommitError,
    },
}

/// Changes a key of the session's account, if key and session are as they were read. The change is in force on return.
pub async fn change_key_as(
    store: &dyn Submit,
    key: KeyId,
    version: i64,
    change: KeyChange,
    session: &Session,
) -> Result<(), ChangeKeyError> {
    check_values(
        &change.label,
        change.models.as_deref(),
        change.spending_cap,
        (change.expires_at, change.at),
    )
    .map_err(ChangeKeyError::Value)?;
    let part = Part::ChangeCredential(Box::new(CredentialChange {
        id: key.0,
        account: session.account,
        version,
        label: Arc::from(change.label),
        models: change.models,
        spending_cap: change.spending_cap,
        spent: change.spent,
        expires_at: change.expires_at,
        at: change.at,
    }));
    let parts = [required(session.digest, change.at), part];
    match commit(store, UnitOfWork::of_all(parts, Admission::Normal)).await {
        Ok(_) => Ok(()),
        Err(CommitError::Refused(Refusal::CredentialConflict(_))) => {
            Err(ChangeKeyError::Conflict(key))
        }
        Err(CommitError::Refused(Refusal::SessionEnded)) => Err(ChangeKeyError::SignedOut),
        Err(source) => Err(ChangeKeyError::Store { key, source }),
    }
}

/// Creates a key of this form, live on return. `draw` fills a slice with random bytes.
pub async fn create_key(
    store: &dyn Submit,
    form: &Form,
    key: NewKey,
    mut draw: impl FnMut(&mut [u8]) + Send,
) -> Result<CreatedKey, CreateKeyError> {
    let id = KeyId::draw(key.created_at, &mut draw);
    make_key(store, form, id, key, None, draw).await
}

/// Creates a key for a session that is live at the time of the write. The id was drawn before, so a request sent twice creates one key.
pub async fn create_key_as(
    store: &dyn Submit,
    form: &Form,
    id: KeyId,
    key: NewKey,
    session: &Session,
    draw: impl FnMut(&mut [u8]) + Send,
) -> Result<CreatedKey, CreateKeyError> {
    make_key(store, form, id, key, Some(session), draw).await
}

async fn make_key(
    store: &dyn Submit,
    form: &Form,
    id: KeyId,
    key: NewKey,
    session: Option<&Session>,
    mut draw: impl FnMut(&mut [u8]) + Send,
) -> Result<CreatedKey, CreateKeyError> {
    check(&key)?;
    let signed_in = session.map(|session| required(session.digest, key.created_at));
    let id = id.0;
    let secret = {
        let mut random = Zeroizing::new([0; 32]);
        draw(&mut *random);
        form.make(&random)
    };
    let hint = form.hint(&secret);
    let made = NewCredential {
        id,
        hash: *Digest::of(secret.expose_secret().as_bytes()).as_bytes(),
        kind: form.kind(),
        account: key.account,
        client_id: None,
        grant_id: None,
        resource: key.resources,
        scopes: key.scopes,
        label: Some(Arc::from(key.label)),
        hint: Some(Arc::from(&*hint)),
        models: key.models,
        spending_cap: key.spending_cap,
        created_at: key.created_at,
        expires_at: key.expires_at,
    };
    let part = Part::InsertCredential(Box::new(made));
    let parts = signed_in.into_iter().chain([part]);
    match commit(store, UnitOfWork::of_all(parts, Admission::Normal)).await {
        Ok(_) => Ok(CreatedKey {
            id: KeyId(id),
            secret,
            hint,
        }),
        Err(CommitError::Refused(Refusal::NoAccount(account))) => {
            Err(CreateKeyError::NoAccount(account))
        }
        Err(CommitError::Refused(Refusal::CredentialExists(id))) => {
            Err(CreateKeyError::AlreadyMade(KeyId(id)))
        }
        Err(CommitError::Refused(Refusal::SessionEnded)) => Err(CreateKeyError::SignedOut),
        Err(error) => Err(CreateKeyError::Store(error)),
    }
}

/// The API keys of an account, including revoked and expired ones, oldest first. Reads from disk.
pub fn list_keys(store: &Reader, account: AccountId) -> Result<Vec<Key>, ReadError> {
    let rows = store.account_credentials(account)?;
    Ok(rows
        .into_iter()
        .filter(|row| row.made.kind == CredentialKind::ApiKey)
        .map(Key::from)
        .collect())
}

/// The API key with this secret, and its account; also one that is revoked or has expired. Reads from disk.
pub fn find_key(store: &Reader, secret: &str) -> Result<Option<(AccountId, Key)>, ReadError> {
    let row = store.credential_by_hash(Digest::of(secret.as_bytes()).as_bytes())?;
    Ok(row
        .filter(|row| row.made.kind == CredentialKind::ApiKey)
        .map(|row| (row.made.account, Key::from(row))))
}

/// Revokes a key; no longer live on return. Idempotent.
pub async fn revoke_key(
    store: &dyn Submit,
    key: KeyId,
    at: Timestamp,
) -> Result<(), RevokeKeyError> {
    let part = Part::RevokeCredential { id: key.0, at };
    match commit(store, UnitOfWork::of(part, Admission::Always)).await {
        Ok(_) => Ok(()),
        Err(CommitError::Refused(Refusal::NoCredential(_))) => Err(RevokeKeyError::NoKey(key)),
        Err(source) => Err(RevokeKeyError::Store { key, source }),
    }
}

/// A key in the owner's view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its public id.
    pub id: KeyId,
    pub label: Option<Arc<str>>,
    /// The displayable part of the secret.
    pub hint: Option<Arc<str>>,
    /// Bit set of scopes.
    pub scopes: u32,
    /// The permitted models; `None` for all.
    pub models: Option<Arc<[Arc<str>]>>,
    /// The spending cap, if any.
    pub spending_cap: Option<SpendingCap>,
    /// Time of creation.
    pub created_at: Timestamp,
    /// The expiry, if any.
    pub expires_at: Option<Timestamp>,
    /// Time of revocation, if any.
    pub revoked_at: Option<Timestamp>,
    /// Last use, one or two minutes behind; `None` for never.
    pub used_at: Option<Timestamp>,
    /// Number of changes.
    pub version: i64,
}

impl From<CredentialRow> for Key {
    fn from(row: CredentialRow) -> Key {
        Key {
            id: KeyId(row.made.id),
            label: row.made.label,
            hint: row.made.hint,
            scopes: row.made.scopes,
            models: row.made.models,
            spending_cap: row.made.spending_cap,
            created_at: row.made.created_at,
            expires_at: row.made.expires_at,
            revoked_at: row.revoked_at,
            used_at: row.used_at,
            version: row.version,
        }
    }
}

fn check(key: &NewKey) -> Result<(), CreateKeyError> {
    if key.scopes == 0 {
        return Err(CreateKeyError::NoScope);
    }
    check_values(
        &key.label,
        key.models.as_deref(),
        key.spending_cap,
        (key.expires_at, key.created_at),
    )
}

/// The values that can be changed later; `ends` is an expiry, and the present time.
fn check_values(
    label: &str,
    models: Option<&[Arc<str>]>,
    spending_cap: Option<SpendingCap>,
    ends: (Option<Timestamp>, Timestamp),
) -> Result<(), CreateKeyError> {
    let chars = label.chars().count();
    if !(1..=LABEL_CHARS_MAX).contains(&chars) || label.chars().any(char::is_control) {
        return Err(CreateKeyError::Label);
    }
    if let Some(models) = models {
        if models.is_empty() {
            return Err(CreateKeyError::NoModel);
        }
        let no_id = |model: &&Arc<str>| model.is_empty() || model.chars().any(char::is_control);
        if let Some(model) = models.iter().find(no_id) {
            return Err(CreateKeyError::Model(model.clone()));
        }
    }
    if spending_cap.is_some_and(|cap| !cap.max.is_positive()) {
        return Err(CreateKeyError::NoSpending);
    }
    match ends {
        (Some(end), now) if end <= now => Err(CreateKeyError::Expired),
        _ => Ok(()),
    }
}

/// The 16 bytes of a version 7 id (RFC 9562 section 5.7).
pub(crate) fn id_bytes(at: Timestamp, draw: &mut (impl FnMut(&mut [u8]) + ?Sized)) -> [u8; 16] {
    let mut random = [0; 10];
    draw(&mut random);
    let millis = u64::try_from(at.as_millis()).unwrap_or(0);
    uuid::Builder::from_unix_timestamp_millis(millis, &random)
        .into_uuid()
        .into_bytes()
}

impl KeyId {
    /// A new id, made at `at`. `draw` fills a slice with random bytes.
    pub fn draw(at: Timestamp, mut draw: impl FnMut(&mut [u8])) -> KeyId {
        KeyId(CredentialId::from_bytes(id_bytes(at, &mut draw)))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key_{}", self.0)
    }
}

impl FromStr for KeyId {
    type Err = KeyIdError;

    // The error does not contain the text: a secret passed in place of an id must not reach a log.
    fn from_str(text: &str) -> Result<KeyId, KeyIdError> {
        text.strip_prefix("key_")
            .filter(|hex| hex.len() == uuid::fmt::Simple::LENGTH)
            .and_then(|hex| Uuid::try_parse(hex).ok())
            .map(|id| KeyId(CredentialId::from_bytes(id.into_bytes())))
            .ok_or(KeyIdError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_id_parses_back_and_a_secret_is_not_repeated() {
        let mut next = 0;
        let mut draw = |out: &mut [u8]| {
            next += 1;
            out.fill(next);
        };
        let early = KeyId::draw(Timestamp::from_secs(1), &mut draw);
        let late = KeyId::draw(Timestamp::from_secs(2), &mut draw);
        assert!(early < late, "an id made later sorts later");
        assert_eq!(early.to_string().len(), 36);
        assert_eq!(early.to_string().parse(), Ok(early));
        let mistaken = "sk-svc-7Hq2mZ0cVx9LkR4sTn8YwBd1GfJp6EaUoXiCvK3M06o8FL".parse::<KeyId>();
        let message = mistaken.expect_err("no id").to_string();
        assert!(!message.contains("7Hq2"), "{message}");
    }
}
