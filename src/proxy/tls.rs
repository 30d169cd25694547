//! TLS for the listeners: 1.2 and 1.3, the certificate is chosen by the server name (SNI, RFC 6066 section 3), client certificates by setting.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};

use super::acme::{ACME_TLS, AcmeChallenges};
use crate::config::{Certificate, Listener};

/// TLS of one listener: the certificates, and the authorities of clients. A reload replaces both for later handshakes; a successful order
/// replaces the certificates.
pub(crate) struct ListenerTls {
    certificates: Arc<Certificates>,
    http2: bool,
    current: ArcSwap<Current>,
}

/// The part replaced by a change of the authorities.
struct Current {
    client_roots: Option<Arc<RootCertStore>>,
    config: Arc<ServerConfig>,
}

impl ListenerTls {
    /// The TLS of a listener, without certificates yet; `None` without TLS.
    pub(super) fn of(
        listener: &Listener,
        challenges: &Arc<AcmeChallenges>,
    ) -> Option<Arc<ListenerTls>> {
        if listener.tls.is_empty() {
            return None;
        }
        let certificates = Arc::new(Certificates {
            list: ArcSwap::default(),
            challenges: challenges.clone(),
        });
        let current = Current::new(
            listener.client_roots.clone(),
            certificates.clone(),
            listener.http2,
        );
        Some(Arc::new(ListenerTls {
            certificates,
            http2: listener.http2,
            current: ArcSwap::from_pointee(current),
        }))
    }

    /// The configuration for a handshake that begins now.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        self.current.load().config.clone()
    }

    /// Uses other certificates from the next handshake on.
    pub(crate) fn replace_certificates(&self, certificates: Vec<Certificate>) {
        self.certificates.list.store(Arc::new(certificates));
    }

    /// Verifies the certificates of clients against other authorities from the next handshake on; `None`: no certificate required.
    ///
    /// A resumed session verifies no certificate again (RFC 8446 section 2.2). So changed authorities discard the earlier sessions, and
    /// equal authorities keep the sessions.
    pub(crate) fn replace_client_roots(&self, client_roots: Option<&Arc<RootCertStore>>) {
        let current = self.current.load();
        let old = current.client_roots.as_ref().map(|roots| &roots.roots);
        if old == client_roots.map(|roots| &roots.roots) {
            return;
        }
        self.current.store(Arc::new(Current::new(
            client_roots.cloned(),
            self.certificates.clone(),
            self.http2,
        )));
    }
}

impl Current {
    fn new(
        client_roots: Option<Arc<RootCertStore>>,
        certificates: Arc<Certificates>,
        http2: bool,
    ) -> Current {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .expect("ring speaks both versions");
        let builder = match &client_roots {
            None => builder.with_no_client_auth(),
            Some(roots) => builder.with_client_cert_verifier(
                WebPkiClientVerifier::builder_with_provider(roots.clone(), provider)
                    .build()
                    .expect("the settings have an authority, and no revocation lists"),
            ),
        };
        let mut config = builder.with_cert_resolver(certificates);
        let http2 = http2.then_some(&b"h2"[..]);
        let protocols = http2.into_iter().chain([b"http/1.1", ACME_TLS]);
        config.alpn_protocols = protocols.map(<[u8]>::to_vec).collect();
        Current {
            client_roots,
            config: Arc::new(config),
        }
    }
}

/// The certificates of one listener.
#[derive(Debug)]
struct Certificates {
    list: ArcSwap<Vec<Certificate>>,
    challenges: Arc<AcmeChallenges>,
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
        // A client with an unknown server name, or without a name, receives the first certificate and decides. Before the first successful
        // order of a listener no certificate exists, and the handshake is refused: no client could verify a makeshift certificate.
        matching
            .or(list.first())
            .map(|certificate| certificate.key.clone())
    }
}
