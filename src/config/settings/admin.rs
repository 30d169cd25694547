//! `[admin]`: health, metrics and the admin API.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::RootCertStore;
use tollgate_filter::settings::Words;
use tollgate_identity::Digest;

use crate::config::certificate::Certificate;

/// `[admin]`: health, metrics and the admin API.
#[derive(Clone, Debug)]
pub struct Admin {
    /// The address; port 0 selects a free one. Beyond loopback only with TLS, and with tokens or authorities of clients.
    pub address: SocketAddr,
    /// TLS; `None` for plain text.
    pub tls: Option<AdminTls>,
    /// The tokens of the admin API.
    pub tokens: Vec<AdminToken>,
}

/// `[admin.tls]`: the certificate of the admin address.
#[derive(Clone, Debug)]
pub struct AdminTls {
    /// The certificate with its key.
    pub certificate: Certificate,
    /// The authorities for required certificates of clients; `None`: no certificate required.
    pub client_roots: Option<Arc<RootCertStore>>,
}

#[derive(Clone, Debug)]
pub struct AdminToken {
    /// The name for the audit log.
    pub name: Arc<str>,
    /// Permissions of the holder.
    pub role: AdminRole,
    /// The digest of the token; the token itself is not kept.
    pub digest: Digest,
}

/// Permissions of the holder of an admin API token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdminRole {
    /// Read metrics, health and the state of providers. No access to accounts.
    Monitor,
    /// Read everything, without secrets and without exports of a person's data.
    #[default]
    Read,
    /// Read, export and change everything.
    Operate,
}

impl Words for AdminRole {
    const WORDS: &'static [(&'static str, AdminRole)] = &[
        ("monitor", AdminRole::Monitor),
        ("read", AdminRole::Read),
        ("operate", AdminRole::Operate),
    ];
}

impl AdminRole {
    /// Its word in the settings.
    pub fn word(self) -> &'static str {
        match self {
            AdminRole::Monitor => "monitor",
            AdminRole::Read => "read",
            AdminRole::Operate => "operate",
        }
    }
}
