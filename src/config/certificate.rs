//! Certificates and keys of TLS listeners, and roots for providers.
//!
//! They are read and checked before a listener starts: its TLS library would end the process over an invalid one.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use tollgate_clock::Timestamp;
use x509_parser::prelude::{FromDer, X509Certificate};

/// How long before its end a certificate is worth a warning: time for a renewal that has failed once.
pub(crate) const EXPIRY_WARNING: Duration = Duration::from_secs(14 * 24 * 3600);

/// A certificate chain with its key, read and checked.
#[derive(Clone)]
pub struct Certificate {
    /// The chain's file, for messages.
    pub file: PathBuf,
    /// The chain and the key; they belong together.
    pub key: Arc<CertifiedKey>,
    /// When the listener's own certificate expires.
    pub expires_at: Timestamp,
}

impl Certificate {
    /// Whether the certificate was issued for `name`.
    pub fn serves(&self, name: &ServerName<'_>) -> bool {
        let Ok(end) = self.key.end_entity_cert() else {
            return false;
        };
        ParsedCertificate::try_from(end)
            .is_ok_and(|parsed| rustls::client::verify_server_name(&parsed, name).is_ok())
    }
}

impl Certificate {
    /// What an operator has to know of its dates, if anything.
    pub fn expiry_warning(&self, now: Timestamp) -> Option<String> {
        let (file, at) = (self.file.display(), self.expires_at.rfc3339());
        if self.expires_at <= now {
            return Some(format!(
                "the certificate `{file}` has expired at {at}, and clients refuse to connect: renew it and run `tollgate reload`"
            ));
        }
        let is_soon = self.expires_at <= now + EXPIRY_WARNING;
        is_soon.then(|| {
            format!("the certificate `{file}` expires at {at}: renew it and run `tollgate reload`")
        })
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

/// Why a certificate, a key or a set of roots cannot be used. The messages contain no part of a key.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// It is missing, or not readable.
    #[error("`{}` cannot be read ({source}); name a file that the gateway's user may read", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// No PEM block of the expected kind.
    #[error("`{}` contains no {kind} in PEM form; name a file with `-----BEGIN {label}-----`", .file.display())]
    NothingInside {
        /// The file.
        file: PathBuf,
        /// The expected kind.
        kind: &'static str,
        /// The start of such a block.
        label: &'static str,
    },
    /// A certificate that is no X.509, or one of an unsupported kind.
    #[error("`{}` contains an invalid certificate ({reason}); create a new one", .file.display())]
    BadCertificate {
        /// The file.
        file: PathBuf,
        /// The TLS library's error.
        reason: String,
    },
    /// A key of an unsupported kind.
    #[error("`{}` contains a key of an unsupported kind; use RSA, ECDSA P-256 or P-384, or Ed25519", .file.display())]
    BadKey {
        /// The file.
        file: PathBuf,
    },
    /// Each is valid, but they do not belong together.
    #[error("`{}` is the key of another certificate; name the key that belongs to `{}`", .key.display(), .certificate.display())]
    Mismatch {
        /// The chain's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
}

impl CertificateError {
    /// Whether the key is the invalid part rather than the chain.
    pub(crate) fn is_about_key(&self, key: &Path) -> bool {
        match self {
            CertificateError::Unreadable { file, .. }
            | CertificateError::NothingInside { file, .. } => file == key,
            CertificateError::BadCertificate { .. } => false,
            CertificateError::BadKey { .. } | CertificateError::Mismatch { .. } => true,
        }
    }
}

/// Reads a chain (the listener's own certificate first) and its key.
///
/// # Errors
///
/// Any error that makes the pair unusable for a listener, except its dates.
pub(crate) fn read_pair(
    certificate: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<Certificate, CertificateError> {
    let chain = read_certificates(certificate)?;
    let text = read(key)?;
    let private =
        PrivateKeyDer::from_pem_slice(&text).map_err(|_| CertificateError::NothingInside {
            file: key.to_owned(),
            kind: "private key",
            label: "PRIVATE KEY",
        })?;
    let signing = provider
        .key_provider
        .load_private_key(private)
        .map_err(|_| CertificateError::BadKey {
            file: key.to_owned(),
        })?;
    let pair = CertifiedKey::new(chain, signing);
    match pair.keys_match() {
        // Unknown: the key's library cannot compare them, which is not an error of the pair.
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
        Err(rustls::Error::InconsistentKeys(_)) => {
            return Err(CertificateError::Mismatch {
                certificate: certificate.to_owned(),
                key: key.to_owned(),
            });
        }
        Err(error) => return Err(bad(certificate, &error)),
    }
    let end = pair
        .end_entity_cert()
        .map_err(|error| bad(certificate, &error))?;
    let (_, parsed) =
        X509Certificate::from_der(end).map_err(|error| CertificateError::BadCertificate {
            file: certificate.to_owned(),
            reason: error.to_string(),
        })?;
    let expires_at = Timestamp::from_secs(parsed.validity().not_after.timestamp());
    Ok(Certificate {
        file: certificate.to_owned(),
        key: Arc::new(pair),
        expires_at,
    })
}

/// Reads all certificates of a PEM file; at least one.
///
/// # Errors
///
/// When the file cannot be read, holds none, or holds one that is no X.509.
pub(crate) fn read_certificates(
    file: &Path,
) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let text = read(file)?;
    let nothing = || CertificateError::NothingInside {
        file: file.to_owned(),
        kind: "certificate",
        label: "CERTIFICATE",
    };
    let chain = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| nothing())?;
    for certificate in &chain {
        ParsedCertificate::try_from(certificate).map_err(|error| bad(file, &error))?;
    }
    if chain.is_empty() {
        return Err(nothing());
    }
    Ok(chain)
}

/// Reads all certificates of a PEM file as authorities that are trusted.
///
/// # Errors
///
/// As [`read_certificates`], and when one cannot be an authority.
pub(crate) fn read_roots(file: &Path) -> Result<RootCertStore, CertificateError> {
    let mut roots = RootCertStore::empty();
    for authority in read_certificates(file)? {
        roots.add(authority).map_err(|error| bad(file, &error))?;
    }
    Ok(roots)
}

fn bad(file: &Path, error: &rustls::Error) -> CertificateError {
    CertificateError::BadCertificate {
        file: file.to_owned(),
        reason: error.to_string(),
    }
}

fn read(file: &Path) -> Result<Vec<u8>, CertificateError> {
    std::fs::read(file).map_err(|source| CertificateError::Unreadable {
        file: file.to_owned(),
        source,
    })
}
