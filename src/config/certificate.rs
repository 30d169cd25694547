//! Certificates and keys of TLS listeners, and roots for providers.
//!
//! All are read and checked before a listener starts: the TLS library would end the process over an invalid certificate.

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
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

use super::named_file::Stamp;

/// Remaining lifetime of a certificate that causes a warning: enough for a renewal after one failure.
pub(crate) const EXPIRY_WARNING: Duration = Duration::from_secs(14 * 24 * 3600);

/// A certificate chain with its key, read and checked.
#[derive(Clone)]
pub struct Certificate {
    /// Source of the certificate.
    pub origin: CertificateOrigin,
    /// The chain and the matching key.
    pub key: Arc<CertifiedKey>,
    /// When the listener's own certificate begins to be valid.
    pub begins_at: Timestamp,
    /// When the listener's own certificate expires.
    pub expires_at: Timestamp,
    /// The files of chain and key, with stamps from before the read; `None` for a certificate by ACME.
    files: Option<PairFiles>,
}

/// The files of a chain and of its key.
#[derive(Clone)]
struct PairFiles {
    chain: PathBuf,
    key: PathBuf,
    /// Stamps of both files, from before the read.
    stamps: [Stamp; 2],
}

/// Where a certificate comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateOrigin {
    /// The file of its chain.
    File(PathBuf),
    /// A certificate authority, by ACME, under this label.
    Acme(Arc<str>),
}

impl fmt::Display for CertificateOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CertificateOrigin::File(file) => file.display().fmt(f),
            CertificateOrigin::Acme(label) => f.write_str(label),
        }
    }
}

impl Certificate {
    /// A certificate issued by an authority: the chain in PEM, and the key in DER (PKCS #8).
    ///
    /// # Errors
    ///
    /// Any fault except the dates.
    pub(crate) fn issued(
        label: Arc<str>,
        chain: &[u8],
        key: PrivateKeyDer<'static>,
        provider: &CryptoProvider,
    ) -> Result<Certificate, String> {
        let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| error.to_string())?;
        let signing = provider.key_provider.load_private_key(key);
        let signing = signing.map_err(|error| error.to_string())?;
        let pair = CertifiedKey::new(chain, signing);
        pair.keys_match().map_err(|error| error.to_string())?;
        Certificate::new(CertificateOrigin::Acme(label), pair, None)
    }

    fn new(
        origin: CertificateOrigin,
        pair: CertifiedKey,
        files: Option<PairFiles>,
    ) -> Result<Certificate, String> {
        let end = pair.end_entity_cert().map_err(|error| error.to_string())?;
        let (_, parsed) = X509Certificate::from_der(end).map_err(|error| error.to_string())?;
        let validity = parsed.validity();
        let time = |at: &ASN1Time| Timestamp::from_secs(at.timestamp());
        Ok(Certificate {
            origin,
            files,
            begins_at: time(&validity.not_before),
            expires_at: time(&validity.not_after),
            key: Arc::new(pair),
        })
    }

    /// The certificate in messages and metrics: its file, or `acme:` and its first name.
    pub fn label(&self) -> String {
        self.origin.to_string()
    }

    /// The files of the chain and of the key; empty for a certificate by ACME.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        let files = self.files.iter();
        files.flat_map(|files| [&*files.chain, &*files.key])
    }

    /// Whether a file of the certificate has changed since the read.
    pub(crate) fn has_changed(&self) -> bool {
        let changed = |files: &PairFiles| files.stamps != stamps(&files.chain, &files.key);
        self.files.as_ref().is_some_and(changed)
    }

    /// Reads the files again; a certificate by ACME is returned unchanged.
    ///
    /// # Errors
    ///
    /// As [`read_pair`].
    pub(crate) fn read_again(&self) -> Result<Certificate, CertificateError> {
        match &self.files {
            None => Ok(self.clone()),
            Some(files) => read_pair(
                &files.chain,
                &files.key,
                &rustls::crypto::ring::default_provider(),
            ),
        }
    }

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
    /// A warning for the operator about the dates, if needed.
    pub fn expiry_warning(&self, now: Timestamp) -> Option<String> {
        let (origin, at) = (&self.origin, self.expires_at.rfc3339());
        // A certificate by ACME is renewed after two thirds of the lifetime. Half of the rest is time for renewals after failures.
        let (before, remedy) = match origin {
            CertificateOrigin::File(_) => (
                EXPIRY_WARNING,
                "renew it; new files in its place are used within seconds",
            ),
            CertificateOrigin::Acme(_) => (
                EXPIRY_WARNING.min(self.expires_at.duration_since(self.begins_at) / 6),
                "its renewal fails, the log has the reason",
            ),
        };
        if self.expires_at <= now {
            return Some(format!(
                "the certificate `{origin}` has expired at {at}, and clients refuse to connect: {remedy}"
            ));
        }
        let is_soon = self.expires_at <= now + before;
        is_soon.then(|| format!("the certificate `{origin}` expires at {at}: {remedy}"))
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate")
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

/// Why a certificate, a key or a set of roots cannot be used. The messages contain no part of a key.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// Missing, or not readable.
    #[error("`{}` cannot be read ({source}); name a file that the gateway's user may read", .file.display())]
    Unreadable {
        file: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// No PEM block of the expected kind.
    #[error("`{}` contains no {kind} in PEM form; name a file with `-----BEGIN {label}-----`", .file.display())]
    NothingInside {
        file: PathBuf,
        /// The expected kind.
        kind: &'static str,
        /// The start of the block.
        label: &'static str,
    },
    /// A certificate other than X.509, or of an unsupported kind.
    #[error("`{}` contains an invalid certificate ({reason}); create a new one", .file.display())]
    BadCertificate {
        file: PathBuf,
        /// The TLS library's error.
        reason: String,
    },
    /// A key of an unsupported kind.
    #[error("`{}` contains a key of an unsupported kind; use RSA, ECDSA P-256 or P-384, or Ed25519", .file.display())]
    BadKey { file: PathBuf },
    /// Each is valid, but the key belongs to another certificate.
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

/// Reads a chain (the listener's own certificate first) and the key.
///
/// # Errors
///
/// Any fault that makes the pair unusable for a listener, except the dates.
pub(crate) fn read_pair(
    certificate: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<Certificate, CertificateError> {
    let files = PairFiles {
        chain: certificate.to_owned(),
        key: key.to_owned(),
        stamps: stamps(certificate, key),
    };
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
        // Unknown: the key's library cannot compare the two. Not an error of the pair.
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
        Err(rustls::Error::InconsistentKeys(_)) => {
            return Err(CertificateError::Mismatch {
                certificate: certificate.to_owned(),
                key: key.to_owned(),
            });
        }
        Err(error) => return Err(bad(certificate, &error)),
    }
    let origin = CertificateOrigin::File(certificate.to_owned());
    Certificate::new(origin, pair, Some(files)).map_err(|reason| CertificateError::BadCertificate {
        file: certificate.to_owned(),
        reason,
    })
}

fn stamps(chain: &Path, key: &Path) -> [Stamp; 2] {
    [Stamp::of(chain), Stamp::of(key)]
}

/// Reads all certificates of a PEM file; at least one.
///
/// # Errors
///
/// When the file cannot be read, holds no certificate, or holds a certificate that is no X.509.
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

/// Reads all certificates of a PEM file as trusted authorities.
///
/// # Errors
///
/// As [`read_certificates`], and for a certificate unfit as an authority.
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

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    /// A certificate from a file, and one by ACME, that are valid for so many days; and the end of both.
    fn both(days: u64) -> ([Certificate; 2], Timestamp) {
        let made = tollgate_testing::Certificate::until(&["localhost"], (2100, 1, 1));
        let folder = tempfile::tempdir().expect("a folder");
        let put = |name: &str, text: &str| {
            let file = folder.path().join(name);
            std::fs::write(&file, text).expect("written");
            file
        };
        let (chain, key) = (put("a.pem", &made.cert_pem), put("key.pem", &made.key_pem));
        let provider = rustls::crypto::ring::default_provider();
        let file = read_pair(&chain, &key, &provider).expect("a pair");
        let key = PrivateKeyDer::from_pem_slice(made.key_pem.as_bytes()).expect("a key");
        let label = Arc::from("acme:localhost");
        let acme = Certificate::issued(label, made.cert_pem.as_bytes(), key, &provider);
        let mut both = [file, acme.expect("a pair")];
        let end = both[0].expires_at;
        for one in &mut both {
            one.begins_at =
                Timestamp::from_secs(end.as_secs()) - DAY * u32::try_from(days).expect("few");
        }
        (both, end)
    }

    #[test]
    fn an_expiry_is_a_warning_from_two_weeks_before_it() {
        let (both, end) = both(90);
        for (one, remedy) in both.iter().zip(["renew it", "its renewal fails"]) {
            assert_eq!(one.expiry_warning(end - DAY * 15), None, "{one:?}");
            let soon = one.expiry_warning(end - DAY * 13).expect("a warning");
            assert!(soon.contains("expires at 2100-01-01"), "{soon}");
            assert!(soon.contains(remedy), "{soon}");
            assert!(soon.contains(&one.label()), "{soon}");
            let late = one.expiry_warning(end).expect("a warning");
            assert!(late.contains("has expired at 2100-01-01"), "{late}");
        }
    }

    /// One of six days by ACME is renewed two days before its end: a day before it, renewals have failed.
    #[test]
    fn a_short_certificate_by_acme_is_a_warning_when_half_of_the_time_for_renewals_is_over() {
        let ([file, acme], end) = both(6);
        assert_eq!(acme.expiry_warning(end - DAY * 3 / 2), None);
        assert!(acme.expiry_warning(end - DAY / 2).is_some());
        assert!(file.expiry_warning(end - DAY * 3 / 2).is_some());
    }
}
