//! TLS for the listeners: 1.2 and 1.3, the certificate is chosen by the server name (SNI, RFC 6066 section 3), client certificates by setting.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;

use crate::config::{Certificate, Listener};

/// The certificates of one listener, which a reload replaces for the handshakes after it.
#[derive(Debug)]
pub(crate) struct Certificates {
    list: ArcSwap<Vec<Certificate>>,
}

impl Certificates {
    /// Uses other certificates from the next handshake on.
    pub(crate) fn replace(&self, certificates: Vec<Certificate>) {
        self.list.store(Arc::new(certificates));
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let requested = hello
            .server_name()
            .and_then(|name| ServerName::try_from(name).ok());
        let list = self.list.load();
        let matching =
            requested.and_then(|name| list.iter().find(|certificate| certificate.serves(&name)));
        // A client that sends no server name, or an unknown one, receives the first certificate and decides for itself.
        matching
            .or(list.first())
            .map(|certificate| certificate.key.clone())
    }
}

/// The TLS configuration of a listener, and its certificates; `None` without certificates.
pub(crate) fn server_config(listener: &Listener) -> Option<(Arc<ServerConfig>, Arc<Certificates>)> {
    if listener.certificates.is_empty() {
        return None;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certificates = Arc::new(Certificates {
        list: ArcSwap::from_pointee(listener.certificates.clone()),
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
    config.alpn_protocols = match listener.http2 {
        true => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        false => vec![b"http/1.1".to_vec()],
    };
    Some((Arc::new(config), certificates))
}
