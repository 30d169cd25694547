//! TLS for the listeners: 1.2 and 1.3, the certificate is chosen by the server name (SNI, RFC 6066 section 3), client certificates by setting.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;

use super::acme::{ACME_TLS, AcmeChallenges};
use crate::config::{Certificate, Listener};

/// The certificates of one listener, which a reload, or an order that has succeeded, replaces for the handshakes after it.
#[derive(Debug)]
pub(crate) struct Certificates {
    list: ArcSwap<Vec<Certificate>>,
    challenges: Arc<AcmeChallenges>,
}

impl Certificates {
    /// Uses other certificates from the next handshake on.
    pub(crate) fn replace(&self, certificates: Vec<Certificate>) {
        self.list.store(Arc::new(certificates));
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if let Some(validation) = self.challenges.resolve(&hello) {
            return validation;
        }
        let requested = hello
            .server_name()
            .and_then(|name| ServerName::try_from(name).ok());
        let list = self.list.load();
        let matching =
            requested.and_then(|name| list.iter().find(|certificate| certificate.serves(&name)));
        // A client that sends no server name, or an unknown one, receives the first certificate and decides for itself. Before the first
        // order of a listener has succeeded there is none, and the handshake is refused: no client could verify a makeshift one.
        matching
            .or(list.first())
            .map(|certificate| certificate.key.clone())
    }
}

/// The TLS configuration of a listener, and its certificates, of which there are none yet; `None` without TLS.
pub(crate) fn server_config(
    listener: &Listener,
    challenges: &Arc<AcmeChallenges>,
) -> Option<(Arc<ServerConfig>, Arc<Certificates>)> {
    if listener.tls.is_empty() {
        return None;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certificates = Arc::new(Certificates {
        list: ArcSwap::default(),
        challenges: challenges.clone(),
    });
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .expect("ring speaks both versions");
    let builder = match &listener.client_roots {
        None => builder.with_no_client_auth(),
        Some(roots) => builder.with_client_cert_verifier(
            WebPkiClientVerifier::builder_with_provider(roots.clone(), provider)
                .build()
                .expect("the settings have an authority, and no revocation lists"),
        ),
    };
    let mut config = builder.with_cert_resolver(certificates.clone());
    let http2 = listener.http2.then_some(&b"h2"[..]);
    let protocols = http2.into_iter().chain([b"http/1.1", ACME_TLS]);
    config.alpn_protocols = protocols.map(<[u8]>::to_vec).collect();
    Some((Arc::new(config), certificates))
}
