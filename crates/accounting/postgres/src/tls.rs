//! TLS to the server: the modes of `sslmode`, with rustls.

use std::fs;
use std::io;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use crate::url::DatabaseUrl;

/// A connection's requirement of TLS (PostgreSQL, "SSL Mode Descriptions").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TlsMode {
    /// No TLS.
    Disable,
    /// Encryption where the server offers encryption, with any certificate.
    #[default]
    Prefer,
    /// Encryption, with any certificate.
    Require,
    /// Encryption, with a certificate of a known authority.
    VerifyCa,
    /// Encryption, with a certificate of a known authority that names the host.
    VerifyFull,
}

impl TlsMode {
    pub(crate) fn parse(text: &str) -> Option<TlsMode> {
        Some(match text {
            "disable" => TlsMode::Disable,
            "prefer" => TlsMode::Prefer,
            "require" => TlsMode::Require,
            "verify-ca" => TlsMode::VerifyCa,
            "verify-full" => TlsMode::VerifyFull,
            _ => return None,
        })
    }
}

/// The client's side of TLS for a database; `None` for `sslmode=disable`.
pub(crate) fn config(url: &DatabaseUrl) -> io::Result<Option<Arc<ClientConfig>>> {
    if url.tls == TlsMode::Disable {
        return Ok(None);
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = match url.tls {
        TlsMode::VerifyCa | TlsMode::VerifyFull => {
            let roots = Arc::new(authorities(url)?);
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
            Some(verifier.build().map_err(io::Error::other)?)
        }
        _ => None,
    };
    let verifier = Verifier {
        authorities: verifier,
        is_name_checked: url.tls == TlsMode::VerifyFull,
        provider: provider.clone(),
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(Some(Arc::new(config)))
}

/// The authorities of the file that the address names, or the system's authorities.
fn authorities(url: &DatabaseUrl) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match &url.root_certificates {
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Some(path) => {
            let named =
                |problem: String| io::Error::other(format!("`{}` {problem}", path.display()));
            let text = fs::read(path).map_err(|error| named(format!("cannot be read: {error}")))?;
            for certificate in CertificateDer::pem_slice_iter(&text) {
                let certificate =
                    certificate.map_err(|error| named(format!("is no certificate: {error}")))?;
                roots
                    .add(certificate)
                    .map_err(|error| named(format!("is no authority's certificate: {error}")))?;
            }
        }
    }
    if roots.is_empty() {
        return Err(io::Error::other(
            "there is no certificate of an authority; name a file by `sslrootcert` in the address of the database",
        ));
    }
    Ok(roots)
}

/// Verifies certificates as far as the mode says. The signatures of the handshake are always verified.
#[derive(Debug)]
struct Verifier {
    /// `None` where any certificate is accepted.
    authorities: Option<Arc<WebPkiServerVerifier>>,
    is_name_checked: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(authorities) = &self.authorities else {
            return Ok(ServerCertVerified::assertion());
        };
        let verified = authorities.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        match verified {
            // The chain is verified before the name.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.is_name_checked => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
