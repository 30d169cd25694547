//! A test certificate authority, and server certificates signed by it.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// A server certificate with its key and the authority that signed it, all PEM.
#[derive(Clone)]
pub struct Certificate {
    /// The authority's certificate, to be trusted by clients.
    pub ca_pem: String,
    /// The server's certificate.
    pub cert_pem: String,
    /// The server's private key, PKCS #8.
    pub key_pem: String,
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificate")
            .field("cert_pem", &self.cert_pem)
            .finish_non_exhaustive()
    }
}

impl Certificate {
    /// A certificate for `localhost`, 127.0.0.1 and ::1 from a new authority.
    ///
    /// # Panics
    ///
    /// When the system provides no randomness.
    pub fn for_localhost() -> Self {
        Self::for_names(&["localhost", "127.0.0.1", "::1"])
    }

    /// A certificate for `names` (DNS names or addresses) from a new authority.
    ///
    /// # Panics
    ///
    /// When a name is neither, or the system provides no randomness.
    pub fn for_names(names: &[&str]) -> Self {
        Self::until(names, (4096, 1, 1))
    }

    /// The same, which expires at the start of a day: year, month, day.
    ///
    /// # Panics
    ///
    /// As above, and when there is no such day.
    pub fn until(names: &[&str], (year, month, day): (i32, u8, u8)) -> Self {
        let why = "a key on a curve that ring knows, from the system's randomness";
        let ca_key = KeyPair::generate().expect(why);
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        ca.distinguished_name
            .push(DnType::CommonName, "authority of a test");
        let ca_cert = ca.self_signed(&ca_key).expect("parameters made above");
        let issuer = Issuer::new(ca, ca_key);

        let key = KeyPair::generate().expect(why);
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("DNS names or addresses");
        params.not_after = rcgen::date_time_ymd(year, month, day);
        let cert = params
            .signed_by(&key, &issuer)
            .expect("parameters made above");
        Self {
            ca_pem: ca_cert.pem(),
            cert_pem: cert.pem(),
            key_pem: key.serialize_pem(),
        }
    }

    fn pair(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let chain = CertificateDer::pem_slice_iter(self.cert_pem.as_bytes());
        let chain = chain.collect::<Result<_, _>>().expect("PEM certificates");
        let key = PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes());
        (chain, key.expect("a PEM private key"))
    }

    /// TLS 1.2 and 1.3 for a server that shows this certificate and offers `alpn`, the preferred protocol first.
    ///
    /// # Panics
    ///
    /// When the PEM texts are not a certificate and its key.
    pub fn server_config(&self, alpn: &[&str]) -> Arc<ServerConfig> {
        let (chain, key) = self.pair();
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring knows both versions")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("the key belongs to the certificate");
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

/// TLS for a client that trusts only the authorities in `ca_pem`, offers `alpn`, and shows its own certificate if it has one.
pub(crate) fn client_config(
    ca_pem: &str,
    alpn: &[&str],
    own: Option<&Certificate>,
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
        roots
            .add(authority.expect("PEM certificates"))
            .expect("a certificate");
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring knows both versions")
        .with_root_certificates(roots);
    let mut config = match own.map(Certificate::pair) {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder
            .with_client_auth_cert(chain, key)
            .expect("the key belongs to the certificate"),
    };
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}
