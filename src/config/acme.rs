//! Certificate orders by ACME (RFC 8555).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use secrecy::{ExposeSecret, SecretSlice};
use tollgate_filter::settings::Words;

/// The directory of Let's Encrypt, the default.
pub(crate) const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// A certificate obtained and renewed by the gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct AcmeOrder {
    /// The DNS names of the certificate, in lower case, in the order of the alphabet; never empty.
    pub names: Vec<Arc<str>>,
    /// The contacts of the account, as URLs (`mailto:`).
    pub contact: Vec<String>,
    /// The URL of the authority's directory.
    pub directory: Arc<str>,
    /// The only trusted roots for the directory's certificate; `None`: the system's.
    pub roots: Option<Vec<CertificateDer<'static>>>,
    /// How control over the names is proved.
    pub challenge: AcmeChallenge,
    /// The bound account outside of ACME.
    pub external_account: Option<ExternalAccount>,
    /// The wait after the first failure, doubled by each further failure.
    pub retry: Duration,
}

impl AcmeOrder {
    /// Identity of the certificate: the directory and the names.
    pub fn id(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for part in [&self.directory].into_iter().chain(&self.names) {
            hasher.update(&(part.len() as u64).to_be_bytes());
            hasher.update(part.as_bytes());
        }
        *hasher.finalize().as_bytes()
    }

    /// The certificate in messages and metrics: `acme:` and its first name.
    pub fn label(&self) -> String {
        format!("acme:{}", self.names[0])
    }

    /// Whether the order includes this name.
    pub fn serves(&self, name: &ServerName<'_>) -> bool {
        let name = name.to_str();
        let mut names = self.names.iter();
        names.any(|own| own.eq_ignore_ascii_case(&name))
    }
}

/// How control over a name is proved to the authority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// A request for a path below `/.well-known/acme-challenge/` at port 80 (RFC 8555 section 8.3).
    #[default]
    Http01,
    /// A TLS handshake at port 443 (RFC 8737).
    TlsAlpn01,
}

impl AcmeChallenge {
    /// The name in RFC 8555 and in the settings.
    pub fn word(self) -> &'static str {
        match self {
            AcmeChallenge::Http01 => "http-01",
            AcmeChallenge::TlsAlpn01 => "tls-alpn-01",
        }
    }
}

impl Words for AcmeChallenge {
    const WORDS: &'static [(&'static str, AcmeChallenge)] = &[
        ("http-01", AcmeChallenge::Http01),
        ("tls-alpn-01", AcmeChallenge::TlsAlpn01),
    ];
}

/// An account outside of ACME, with the authority's key for the account (RFC 8555 section 7.3.4).
#[derive(Clone)]
pub struct ExternalAccount {
    /// The id of the key.
    pub key_id: Arc<str>,
    pub mac_key: SecretSlice<u8>,
}

impl PartialEq for ExternalAccount {
    fn eq(&self, other: &ExternalAccount) -> bool {
        self.key_id == other.key_id && self.mac_key.expose_secret() == other.mac_key.expose_secret()
    }
}

impl fmt::Debug for ExternalAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalAccount")
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}
