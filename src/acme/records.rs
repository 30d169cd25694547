//! The stored account and certificates: read, written, and sealed.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use tollgate_clock::Timestamp;
use tollgate_store::{
    AcmeAccountRow, AcmeCertificateRow, AcmeChallengesRow, AcmePart, Admission, CommitError, Part,
    ReadError, Sealer, Store, UnitOfWork, commit, reading,
};
use zeroize::{Zeroize, Zeroizing};

use crate::config::{AcmeOrder, Certificate};

/// The kind of the sealed texts in the store.
const SEALED_KIND: &str = "tollgate acme keys";

const CHALLENGES_KIND: &str = "tollgate acme challenges";

/// A key and a chain are bound to their row and to nothing else.
const NO_DIGEST: [u8; 32] = [0; 32];

/// The rows of accounts and certificates.
pub(super) struct Records {
    store: Arc<dyn Store>,
    sealer: Sealer,
    /// Of responses to challenges.
    challenges: Sealer,
}

/// A response to a challenge, before there is a certificate for the handshake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Response {
    /// The key authorization, at the path of this token.
    Http { token: String, body: String },
    /// The digest of the key authorization, for the handshake of this name.
    Tls { name: String, digest: Vec<u8> },
}

/// The responses of an order, as stored.
pub(super) struct SharedResponses {
    pub(super) row: AcmeChallengesRow,
    pub(super) responses: Vec<Response>,
}

/// The sealed content of an account's row.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct StoredAccount {
    /// Of `instant_acme`: the account's URL and key.
    pub(super) credentials: serde_json::Value,
    pub(super) contact: Vec<String>,
}

/// The sealed content of a certificate's row.
#[derive(Serialize, Deserialize)]
struct StoredCertificate {
    /// PKCS #8 in DER, as base64.
    key: String,
    /// PEM.
    chain: String,
}

impl Records {
    pub(super) fn new(store: Arc<dyn Store>) -> Records {
        Records {
            sealer: Sealer::new(&store.root_secret(), SEALED_KIND),
            challenges: Sealer::new(&store.root_secret(), CHALLENGES_KIND),
            store,
        }
    }

    /// The certificate of an order. Without a certificate, the valid certificate of the order's authority with most of the order's names:
    /// names added to an entry leave the earlier names their certificate. Blocks.
    pub(super) fn best(
        &self,
        order: &AcmeOrder,
        now: Timestamp,
    ) -> Result<Option<Certificate>, ReadError> {
        let rows = self.store.acme_certificates(&order.directory)?;
        let id = order.id();
        let common = |row: &AcmeCertificateRow| {
            let mut names = row.names.split(' ').filter(|name| {
                let mut own = order.names.iter();
                own.any(|own| **own == **name)
            });
            names.by_ref().count()
        };
        let own = rows.iter().find(|row| row.id == id);
        let other = || {
            let valid = rows.iter().filter(|row| row.expires_at > Some(now));
            // Of certificates with as many names, the first: the latest to expire.
            let valid = valid.map(|row| (common(row), row)).rev();
            let best = valid.filter(|(count, _)| *count > 0);
            best.max_by_key(|(count, _)| *count).map(|(_, row)| row)
        };
        let found = own.or_else(other);
        Ok(found.and_then(|row| self.certificate(order, row)))
    }

    /// As [`Records::best`], for callers that must not block.
    pub(super) async fn best_of(
        self: &Arc<Records>,
        order: &Arc<AcmeOrder>,
        now: Timestamp,
    ) -> Result<Option<Certificate>, ReadError> {
        let (records, order) = (self.clone(), order.clone());
        reading(&self.store, move |_| records.best(&order, now)).await
    }

    /// The row of an order.
    pub(super) async fn row(
        &self,
        order: &AcmeOrder,
    ) -> Result<Option<AcmeCertificateRow>, ReadError> {
        let id = order.id();
        reading(&self.store, move |read| read.acme_certificate(&id)).await
    }

    /// The certificate in a row; `None` for a row without a certificate, or with a certificate that cannot be opened.
    pub(super) fn certificate(
        &self,
        order: &AcmeOrder,
        row: &AcmeCertificateRow,
    ) -> Option<Certificate> {
        let sealed = row.sealed.as_ref()?;
        let opened = self.sealer.open(&row.id, &NO_DIGEST, sealed);
        let opened = opened.map(Zeroizing::new);
        let stored = opened
            .and_then(|text| serde_json::from_slice::<StoredCertificate>(&text).ok())
            .ok_or_else(|| "it was sealed by another store".to_owned());
        let certificate = stored.and_then(|stored| {
            let text = Zeroizing::new(stored.key);
            let key = BASE64_STANDARD_NO_PAD.decode(text.as_bytes());
            let key = key.map_err(|error| error.to_string())?;
            parse(order, stored.chain.as_bytes(), key)
        });
        certificate
            .inspect_err(|cause| {
                tracing::error!(certificate = %order.label(), %cause, "reading stored certificate failed, it is obtained again");
            })
            .ok()
    }

    /// A chain and its key, sealed for a row.
    pub(super) fn seal(&self, id: &[u8; 32], chain: String, key: &[u8]) -> Arc<[u8]> {
        let mut stored = StoredCertificate {
            key: BASE64_STANDARD_NO_PAD.encode(key),
            chain,
        };
        let text = Zeroizing::new(serde_json::to_vec(&stored).expect("texts are JSON"));
        stored.key.zeroize();
        self.sealer.seal(id, &NO_DIGEST, &text).into()
    }

    /// The account at the authority of an order, with the version of its row.
    pub(super) async fn account(
        &self,
        order: &AcmeOrder,
    ) -> Result<Option<(AcmeAccountRow, StoredAccount)>, ReadError> {
        let (directory, key_id) = account_key(order);
        let (of_directory, of_key) = (directory.clone(), key_id.clone());
        let row = reading(&self.store, move |read| {
            read.acme_account(&of_directory, &of_key)
        });
        Ok(row.await?.and_then(|row| {
            let name = account_name(&directory, &key_id);
            let opened = self.sealer.open(&name, &NO_DIGEST, &row.sealed);
            let opened = opened.map(Zeroizing::new)?;
            Some((row, serde_json::from_slice(&opened).ok()?))
        }))
    }

    /// Stores an account in place of an earlier account, if any.
    pub(super) async fn store_account(
        &self,
        order: &AcmeOrder,
        earlier: Option<&AcmeAccountRow>,
        account: &StoredAccount,
        now: Timestamp,
    ) -> Result<(), CommitError> {
        let (directory, key_id) = account_key(order);
        let text = Zeroizing::new(serde_json::to_vec(account).expect("texts are JSON"));
        let name = account_name(&directory, &key_id);
        let row = AcmeAccountRow {
            version: earlier.map_or(0, |row| row.version + 1),
            sealed: self.sealer.seal(&name, &NO_DIGEST, &text).into(),
            created_at: earlier.map_or(now, |row| row.created_at),
            updated_at: now,
            directory,
            key_id,
        };
        self.write(match earlier {
            None => AcmePart::InsertAccount(row),
            Some(_) => AcmePart::ReplaceAccount(row),
        })
        .await
    }

    /// Stores the responses of an order for the other gateways of the database.
    pub(super) async fn share(
        &self,
        order: &AcmeOrder,
        responses: &[Response],
        expires_at: Timestamp,
    ) -> Result<(), CommitError> {
        let id = order.id();
        let text = serde_json::to_vec(responses).expect("texts are JSON");
        let sealed = self.challenges.seal(&id, &NO_DIGEST, &text).into();
        let row = AcmeChallengesRow {
            id,
            sealed,
            expires_at,
        };
        self.write(AcmePart::StoreChallenges(row)).await
    }

    /// The responses of every order under way, without responses that cannot be opened. Blocks.
    pub(super) fn shared(&self, now: Timestamp) -> Result<Vec<SharedResponses>, ReadError> {
        let rows = self.store.acme_challenges(now)?.into_iter();
        let opened = rows.filter_map(|row| {
            let text = self.challenges.open(&row.id, &NO_DIGEST, &row.sealed)?;
            let responses = serde_json::from_slice(&text).ok()?;
            Some(SharedResponses { row, responses })
        });
        Ok(opened.collect())
    }

    /// As [`Records::shared`], for callers that must not block.
    pub(super) async fn shared_of(
        self: &Arc<Records>,
        now: Timestamp,
    ) -> Result<Vec<SharedResponses>, ReadError> {
        let records = self.clone();
        reading(&self.store, move |_| records.shared(now)).await
    }

    /// Writes a change.
    pub(super) async fn write(&self, part: AcmePart) -> Result<(), CommitError> {
        let part = Part::Acme(Box::new(part));
        let written = commit(&*self.store, UnitOfWork::of(part, Admission::Always));
        written.await.map(|_| ())
    }
}

/// A certificate from a chain (PEM) and a key (PKCS #8 in DER).
pub(super) fn parse(order: &AcmeOrder, chain: &[u8], key: Vec<u8>) -> Result<Certificate, String> {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key));
    let provider = rustls::crypto::ring::default_provider();
    Certificate::issued(order.label().into(), chain, key, &provider)
}

fn account_key(order: &AcmeOrder) -> (Arc<str>, Arc<str>) {
    let external = order.external_account.as_ref();
    let key_id = external.map_or_else(|| "".into(), |account| account.key_id.clone());
    (order.directory.clone(), key_id)
}

fn account_name(directory: &str, key_id: &str) -> Vec<u8> {
    [directory, key_id].join("\n").into_bytes()
}
