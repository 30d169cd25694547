//! Certificates that sign webhook events: fetched from PayPal only, and verified against the public roots.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};
use tokio::sync::Semaphore;
use tollgate_clock::Timestamp;
use webpki::{EndEntityCert, KeyUsage};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Lifetime of a cached certificate.
const CACHE_TTL: Duration = Duration::from_secs(24 * 3600);

/// Cache size; PayPal signs with one or two certificates.
const CACHE_ENTRIES_MAX: usize = 8;

/// Concurrent fetches: bounds the calls to PayPal that forged events can cause.
const FETCHES_MAX: usize = 2;

/// Suffix of the common name of a signing certificate.
const NAME: &str = ".paypal.com";

/// Cache of certificate chains, by URL.
#[derive(Debug)]
pub(crate) struct Certificates {
    roots: RootCertStore,
    cache: Mutex<HashMap<String, (Chain, Duration)>>,
    pub(crate) fetches: Semaphore,
}

/// A certificate with its intermediates.
#[derive(Clone, Debug)]
pub(crate) struct Chain(Arc<[CertificateDer<'static>]>);

/// Why a certificate does not authenticate an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CertificateError {
    /// Malformed, expired, or not PayPal's.
    Invalid(&'static str),
    /// Valid, but the signature is not over this text.
    BadSignature,
    /// No path to a root was found; an intermediate may be missing.
    NoPath,
}

impl Certificates {
    pub(crate) fn new(roots: RootCertStore) -> Certificates {
        Certificates {
            roots,
            cache: Mutex::default(),
            fetches: Semaphore::new(FETCHES_MAX),
        }
    }

    pub(crate) fn cached(&self, address: &str, now: Duration) -> Option<Chain> {
        let cache = self.cache.lock();
        let (chain, until) = cache.get(address)?;
        (now < *until).then(|| chain.clone())
    }

    /// Caches a valid chain, even after a bad signature: forged events cause one fetch only.
    pub(crate) fn insert(&self, address: &str, chain: Chain, now: Duration) {
        let mut cache = self.cache.lock();
        cache.retain(|_, (_, until)| now < *until);
        if cache.len() >= CACHE_ENTRIES_MAX {
            cache.clear();
        }
        cache.insert(address.to_owned(), (chain, now + CACHE_TTL));
    }

    /// Verifies dates, chain and name of a certificate, and its signature (RSA PKCS #1 v1.5 with SHA-256, RFC 8017 section 8.2) over the
    /// text.
    pub(crate) fn check(
        &self,
        chain: &Chain,
        now: Timestamp,
        text: &[u8],
        signature: &[u8],
    ) -> Result<(), CertificateError> {
        let [first, between @ ..] = &*chain.0 else {
            return Err(CertificateError::Invalid("no certificate"));
        };
        let (_, parsed) = X509Certificate::from_der(first)
            .map_err(|_| CertificateError::Invalid("no certificate"))?;
        let mut names = parsed.subject().iter_common_name();
        let name = names.next().and_then(|name| name.as_str().ok());
        if !name.is_some_and(|name| name.ends_with(NAME)) || names.next().is_some() {
            return Err(CertificateError::Invalid("the certificate is not PayPal's"));
        }
        let certificate = EndEntityCert::try_from(first)
            .map_err(|_| CertificateError::Invalid("no certificate"))?;
        certificate
            .verify_for_usage(
                webpki::ALL_VERIFICATION_ALGS,
                &self.roots.roots,
                between,
                UnixTime::since_unix_epoch(now.duration_since(Timestamp::UNIX_EPOCH)),
                KeyUsage::server_auth(),
                None,
                None,
            )
            .map_err(|error| match error {
                webpki::Error::CertExpired { .. } | webpki::Error::CertNotValidYet { .. } => {
                    CertificateError::Invalid("the certificate is out of date")
                }
                _ => CertificateError::NoPath,
            })?;
        certificate
            .verify_signature(webpki::ring::RSA_PKCS1_2048_8192_SHA256, text, signature)
            .map_err(|_| CertificateError::BadSignature)
    }
}

impl Chain {
    /// Parses the certificates of a PEM text, at most ten.
    pub(crate) fn read(pem: &[u8]) -> Option<Chain> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(pem)
            .take(10)
            .collect::<Result<_, _>>()
            .ok()?;
        (!chain.is_empty()).then(|| Chain(chain.into()))
    }
}
