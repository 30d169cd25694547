//! Revocation of a key by a request with the key, for the finder of a leaked key, who has no session.

use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_store::{
    Admission, AuditEvent, AuditOutcome, CommitError, CredentialKind, CredentialRow, LoginKind,
    LoginRow, MessageId, NewNotice, NoticeKind, Part, ReadError, Refusal, SigninPart, Store,
    UnitOfWork, commit, reading,
};

use crate::digest::Digest;
use crate::keys::{KeyId, id_bytes};

/// The actor in the audit log.
const ACTOR: &str = "holder of the key";

/// How long the delivery of a notice is tried.
const NOTICE_LIFE: Duration = Duration::from_secs(3 * 24 * 3600);

/// Why a presented key could not be revoked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RevokePresentedError {
    /// Reading the store failed.
    #[error("could not read the key")]
    Read(#[from] ReadError),
    /// Writing to the store failed.
    #[error("could not store the revocation of the key")]
    Store(#[from] CommitError),
}

/// Revokes the API key with this digest, writes a record of the audit log for `request`, and queues a notice to each mail address of the
/// account, as one unit. The key is no longer live on return.
///
/// For an unknown, expired or already revoked key the call has no effect and is no error. Of several concurrent requests, even to several
/// nodes, one revokes the key. `draw` fills a slice with random bytes.
pub async fn revoke_presented_key(
    store: &Arc<dyn Store>,
    digest: Digest,
    request: &str,
    now: Timestamp,
    mut draw: impl FnMut(&mut [u8]) + Send,
) -> Result<(), RevokePresentedError> {
    let hash = *digest.as_bytes();
    let found = reading(store, move |read| -> Result<_, ReadError> {
        let Some(row) = read.credential_by_hash(&hash)? else {
            return Ok(None);
        };
        let logins = read.logins(row.made.account)?;
        Ok(Some((row, logins)))
    });
    let Some((key, logins)) = found.await?.filter(|(row, _)| is_live_key(row, now)) else {
        return Ok(());
    };
    let id = key.made.id;
    let part = |part| Part::Signin(Box::new(part));
    let mut parts = vec![
        part(SigninPart::RequireUnrevoked { credential: id }),
        Part::RevokeCredential { id, at: now },
        Part::Audit(Box::new(AuditEvent {
            at: now,
            actor: Arc::from(ACTOR),
            action: Arc::from("key_revoke"),
            subject: Some(KeyId(id).to_string().into()),
            request: Arc::from(request),
            outcome: AuditOutcome::Done,
            detail: Arc::from("{}"),
        })),
    ];
    let by_mail = |login: &&LoginRow| login.kind == LoginKind::Email;
    parts.extend(logins.iter().filter(by_mail).map(|login| {
        part(SigninPart::QueueNotice(NewNotice {
            id: MessageId(id_bytes(now, &mut draw)),
            kind: NoticeKind::KeyRevoked,
            login: login.id,
            credential: id,
            created_at: now,
            expires_at: now + NOTICE_LIFE,
        }))
    }));
    match commit(&**store, UnitOfWork::of_all(parts, Admission::Always)).await {
        // Another request has revoked the key since the read.
        Ok(_) | Err(CommitError::Refused(Refusal::CredentialConflict(_))) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn is_live_key(row: &CredentialRow, now: Timestamp) -> bool {
    row.made.kind == CredentialKind::ApiKey
        && row.revoked_at.is_none()
        && row.made.expires_at.is_none_or(|end| now < end)
}
