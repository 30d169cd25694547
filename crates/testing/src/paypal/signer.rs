//! The signing key of webhook notifications, with its certificate and authority.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_RSA_SHA256, SigningKey,
};

/// The signing key for notifications, generated for these tests only: the library signs with RSA keys and generates none.
const KEY: &str = include_str!("webhook-key.pem");

/// The signer.
pub(super) struct Signer {
    key: KeyPair,
    ca_pem: String,
    pub(super) cert_pem: String,
}

impl Signer {
    pub(super) fn new() -> Signer {
        let why = "a key on a curve that ring knows, from the system's randomness";
        let ca_key = KeyPair::generate().expect(why);
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        ca.distinguished_name
            .push(DnType::CommonName, "authority of a stand-in");
        let ca_cert = ca.self_signed(&ca_key).expect("parameters made above");
        let issuer = Issuer::new(ca, ca_key);
        let rsa = KeyPair::from_pem_and_sign_algo(KEY, &PKCS_RSA_SHA256).expect("a key of RSA");
        let name = "messageverificationcerts.paypal.com";
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let cert = params
            .signed_by(&rsa, &issuer)
            .expect("parameters made above");
        Signer {
            key: rsa,
            ca_pem: ca_cert.pem(),
            cert_pem: cert.pem(),
        }
    }

    pub(super) fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    pub(super) fn sign(&self, text: &str) -> String {
        BASE64.encode(self.key.sign(text.as_bytes()).expect("a key of RSA signs"))
    }
}
