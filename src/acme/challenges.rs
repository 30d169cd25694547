//! Responses to the challenges of an order, at every gateway of a database. The authority's request can reach any of the gateways, because
//! the gateways have equal names.
//!
//! The ordering gateway stores the responses, sealed. The ordering gateway lets the authority validate after a wait, in which the other
//! gateways have read the responses.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;

use super::Context;
use super::records::{Response, SharedResponses};
use crate::config::AcmeOrder;
use crate::proxy::{AcmeChallenges, AnsweredChallenges, ChallengeResponse};
use crate::telemetry;

/// Interval at which responses of other gateways are read.
const READ_INTERVAL: Duration = Duration::from_millis(500);

/// The wait between storing the responses and the authority's validation. Each gateway has read the responses by the end of the wait,
/// unless the gateway has lost its database. A gateway without its database is not ready.
pub(super) const SPREAD: Duration = Duration::from_secs(2);

impl Response {
    /// The response in the form for the authority.
    pub(super) fn to_challenge(&self) -> Result<ChallengeResponse, rcgen::Error> {
        Ok(match self {
            Response::Http { token, body } => ChallengeResponse::Http {
                token: token.as_str().into(),
                body: Bytes::copy_from_slice(body.as_bytes()),
            },
            Response::Tls { name, digest } => ChallengeResponse::Tls {
                key: validation_certificate(name, digest)?,
                name: name.to_ascii_lowercase().into(),
            },
        })
    }
}

/// The self-signed certificate of a validation handshake: the name, and the digest of the key authorization (RFC 8737 section 3).
fn validation_certificate(name: &str, digest: &[u8]) -> Result<Arc<CertifiedKey>, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new([name.to_owned()])?;
    params
        .custom_extensions
        .push(CustomExtension::new_acme_identifier(digest));
    let certificate = params.self_signed(&key)?;
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let signing = rustls::crypto::ring::sign::any_supported_type(&private);
    let signing = signing.map_err(|_| rcgen::Error::RemoteKeyError)?;
    let chain = vec![CertificateDer::from(certificate)];
    Ok(Arc::new(CertifiedKey::new(chain, signing)))
}

/// The challenges of other gateways' orders that this gateway answers, by order. The sealed text differs with each order.
#[derive(Default)]
pub(super) struct OfOthers(HashMap<[u8; 32], (Arc<[u8]>, AnsweredChallenges)>);

impl OfOthers {
    /// Answers only these challenges from now on.
    pub(super) fn replace(&mut self, shared: Vec<SharedResponses>, own: &Arc<AcmeChallenges>) {
        self.0.retain(|id, (sealed, _)| {
            let mut rows = shared.iter().map(|one| &one.row);
            rows.any(|row| row.id == *id && row.sealed == *sealed)
        });
        for one in shared {
            if self.0.contains_key(&one.row.id) {
                continue;
            }
            let responses = one.responses.iter().map(Response::to_challenge);
            match responses.collect::<Result<Vec<_>, _>>() {
                Ok(responses) => {
                    let answers = own.answer(responses);
                    self.0.insert(one.row.id, (one.row.sealed, answers));
                }
                Err(error) => {
                    let cause = telemetry::chain(&error);
                    tracing::warn!(%cause, "answering challenge of another node failed");
                }
            }
        }
    }
}

/// Answers the challenges of other gateways' orders, where this gateway has orders as well, until a cancellation. Returns immediately where
/// no other gateway exists.
pub(super) async fn follow(context: Arc<Context>, orders: watch::Receiver<Vec<Arc<AcmeOrder>>>) {
    if !context.deps.store.has_allotments() {
        return;
    }
    loop {
        tokio::time::sleep(READ_INTERVAL).await;
        if orders.borrow().is_empty() {
            continue;
        }
        match context.records.shared_of(context.deps.clock.now()).await {
            Ok(shared) => context.answer_for_others(shared),
            // Answers known before stay: an old answer does no harm. The store reports its failures.
            Err(error) => tracing::debug!(%error, "reading responses to challenges failed"),
        }
    }
}
