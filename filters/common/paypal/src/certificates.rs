//! Certificates that sign notices: fetched from PayPal alone, believed when a public root stands behind them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};
use tokio::sync::Semaphore;
use webpki::{EndEntityCert, KeyUsage};
use x509_parser::prelude::{FromDer, X509Certificate};

/// How long a certificate is kept.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// Certificates kept at once; PayPal signs with one or two.
const KEPT_MAX: usize = 8;

/// Fetches at once. Whoever sends notices that nobody signed makes us ask PayPal; not more than this.
const FETCHES_MAX: usize = 2;

/// What the name of a certificate that signs notices ends in.
const NAME: &str = ".paypal.com";

/// Certificates by their address.
#[derive(Debug)]
pub(crate) struct Certificates {
    roots: RootCertStore,
    kept: Mutex<HashMap<String, (Chain, Duration)>>,
    pub(crate) fetches: Semaphore,
}

/// A certificate and those that lead from it to a root.
#[derive(Clone, Debug)]
pub(crate) struct Chain(Arc<[CertificateDer<'static>]>);

/// Why a certificate does not speak for PayPal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// It does not: it is no certificate, out of date, or of somebody else.
    Bad(&'static str),
    /// It does, but has not signed this.
    Forged,
    /// No way to a root was found; it may be that one in between is missing.
    NoWay,
}

impl Certificates {
    pub(crate) fn new(roots: RootCertStore) -> Certificates {
        Certificates {
            roots,
            kept: Mutex::default(),
            fetches: Semaphore::new(FETCHES_MAX),
        }
    }

    pub(crate) fn kept(&self, address: &str, now: Duration) -> Option<Chain> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (chain, until) = kept.get(address)?;
        (now < *until).then(|| chain.clone())
    }

    /// Keeps a chain that was found good, whatever it has signed: whoever sends forgeries makes us fetch it once.
    pub(crate) fn keep(&self, address: &str, chain: Chain, now: Duration) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|_, (_, until)| now < *until);
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(address.to_owned(), (chain, now + KEPT));
    }

    /// Checks dates, chain and name of a certificate, and that it made the signature (RSA PKCS #1 v1.5 with SHA-256, RFC 8017
    /// section 8.2) over the text.
    pub(crate) fn check(
        &self,
        chain: &Chain,
        unix_secs: u64,
        text: &[u8],
        signature: &[u8],
    ) -> Result<(), Doubt> {
        let [first, between @ ..] = &*chain.0 else {
            return Err(Doubt::Bad("no certificate"));
        };
        let (_, parsed) =
            X509Certificate::from_der(first).map_err(|_| Doubt::Bad("no certificate"))?;
        let mut names = parsed.subject().iter_common_name();
        let name = names.next().and_then(|name| name.as_str().ok());
        if !name.is_some_and(|name| name.ends_with(NAME)) || names.next().is_some() {
            return Err(Doubt::Bad("the certificate is not PayPal's"));
        }
        let certificate =
            EndEntityCert::try_from(first).map_err(|_| Doubt::Bad("no certificate"))?;
        certificate
            .verify_for_usage(
                webpki::ALL_VERIFICATION_ALGS,
                &self.roots.roots,
                between,
                UnixTime::since_unix_epoch(Duration::from_secs(unix_secs)),
                KeyUsage::server_auth(),
                None,
                None,
            )
            .map_err(|error| match error {
                webpki::Error::CertExpired { .. } | webpki::Error::CertNotValidYet { .. } => {
                    Doubt::Bad("the certificate is out of date")
                }
                _ => Doubt::NoWay,
            })?;
        certificate
            .verify_signature(webpki::ring::RSA_PKCS1_2048_8192_SHA256, text, signature)
            .map_err(|_| Doubt::Forged)
    }
}

impl Chain {
    /// The certificates of a PEM text, at most ten.
    pub(crate) fn read(pem: &[u8]) -> Option<Chain> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(pem)
            .take(10)
            .collect::<Result<_, _>>()
            .ok()?;
        (!chain.is_empty()).then(|| Chain(chain.into()))
    }
}
