//! Accounts at certificate authorities and certificates by ACME (RFC 8555): the state for a restart, or for another gateway.

use std::sync::Arc;

use tollgate_clock::Timestamp;

/// A stored account at a certificate authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeAccountRow {
    /// The URL of the authority's directory.
    pub directory: Arc<str>,
    /// The id of the bound external account; empty for no external account.
    pub key_id: Arc<str>,
    /// Row version from 0, for optimistic locking.
    pub version: i64,
    /// The account's URL and private key, sealed.
    pub sealed: Arc<[u8]>,
    /// Time of storing.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
}

/// A stored certificate, or the attempts to obtain a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeCertificateRow {
    /// The digest of directory and names.
    pub id: [u8; 32],
    /// The URL of the authority's directory.
    pub directory: Arc<str>,
    /// The names, in order, separated by spaces.
    pub names: Arc<str>,
    /// Row version from 0, for optimistic locking: a change names the version of the row it changes.
    pub version: i64,
    /// The private key and the chain, sealed; `None` before the first order has succeeded.
    pub sealed: Option<Arc<[u8]>>,
    /// The certificate's expiry.
    pub expires_at: Option<Timestamp>,
    /// Time of renewal.
    pub renew_at: Option<Timestamp>,
    /// Orders begun since the last success. Every order has failed, except an order under way.
    pub failures: u32,
    /// No order is begun before.
    pub next_attempt_at: Timestamp,
    /// Why the last order failed.
    pub note: Option<Arc<str>>,
    /// Time of storing.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
}

/// The responses to the challenges of an order that is under way, for every gateway of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeChallengesRow {
    /// The id of the certificate.
    pub id: [u8; 32],
    /// The responses, sealed: who can write to the database alone must not prove control over a name.
    pub sealed: Arc<[u8]>,
    /// When the order has ended at the latest.
    pub expires_at: Timestamp,
}

/// A change of an account or a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcmePart {
    /// Stores an account: [`crate::Refusal::AcmeConflict`] when the account is stored already.
    InsertAccount(AcmeAccountRow),
    /// Replaces the previous version of an account: [`crate::Refusal::AcmeConflict`] after a concurrent change.
    ReplaceAccount(AcmeAccountRow),
    /// Stores a certificate: [`crate::Refusal::AcmeConflict`] when the certificate is stored already.
    InsertCertificate(AcmeCertificateRow),
    /// Replaces the previous version of a certificate: [`crate::Refusal::AcmeConflict`] after a concurrent change.
    ReplaceCertificate(AcmeCertificateRow),
    /// Stores the responses of an order, in place of earlier responses.
    StoreChallenges(AcmeChallengesRow),
    /// Deletes the responses of an order.
    DeleteChallenges {
        /// The id of the certificate.
        id: [u8; 32],
    },
    /// Deletes certificates that expired before a time, with their keys, and rows without a certificate whose last attempt was before the
    /// time.
    Forget {
        /// The time.
        before: Timestamp,
    },
}
