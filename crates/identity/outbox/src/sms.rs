//! Text-message sender: a signed webhook (RFC 9421).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use sha2::{Digest, Sha256};
use tollgate_clock::{Clock, Entropy, Timestamp};

use crate::sender::{OutgoingMessage, SendError, Sender};

const SEND_TIMEOUT: Duration = Duration::from_secs(15);

/// Short, so that an unreachable webhook certainly has accepted no message.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

const MEDIA_TYPE: &str = "application/json";

/// `[signin.sms]`, validated: the webhook.
#[derive(Clone, Debug)]
pub struct SmsSettings {
    /// The URL of the webhook.
    pub url: String,
    /// The key of the signature.
    pub secret: SecretString,
}

impl PartialEq for SmsSettings {
    fn eq(&self, other: &SmsSettings) -> bool {
        (&self.url, self.secret.expose_secret()) == (&other.url, other.secret.expose_secret())
    }
}

/// Why text messages cannot be configured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SmsError {
    /// The URL is malformed.
    #[error("the URL of the webhook is malformed")]
    Url,
    /// TLS setup failed.
    #[error("could not set up TLS")]
    Tls(#[source] rustls::Error),
    /// The HTTP client could not be created.
    #[error("could not create the HTTP client")]
    Client(#[source] reqwest::Error),
}

/// Sends text messages through the webhook.
pub struct Sms {
    client: reqwest::Client,
    url: Url,
    secret: SecretString,
    clock: Clock,
    entropy: Entropy,
}

impl Sms {
    /// A text-message sender. Connects on the first message.
    pub fn new(settings: &SmsSettings, clock: Clock, entropy: Entropy) -> Result<Sms, SmsError> {
        let url: Url = settings.url.parse().map_err(|_| SmsError::Url)?;
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(SmsError::Tls)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            // A signature is for one URL only.
            .redirect(reqwest::redirect::Policy::none())
            .timeout(SEND_TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT)
            // A reused connection closed by the server leaves unknown whether the server has the message.
            .pool_max_idle_per_host(0)
            .no_proxy()
            .build()
            .map_err(SmsError::Client)?;
        Ok(Sms {
            client,
            url,
            secret: settings.secret.clone(),
            clock,
            entropy,
        })
    }
}

#[async_trait]
impl Sender for Sms {
    async fn send(&self, message: &OutgoingMessage) -> Result<(), SendError> {
        let body = json!({
            "id": message.id,
            "to": message.recipient,
            "text": *message.text,
        })
        .to_string();
        let signed = Signed {
            url: self.url.as_str(),
            created: self.clock.now(),
            nonce: base64(&self.entropy.bytes::<12>()),
        }
        .sign(body.as_bytes(), self.secret.expose_secret().as_bytes());
        let answer = self
            .client
            .post(self.url.clone())
            .header("content-type", MEDIA_TYPE)
            .header("content-digest", signed.digest)
            .header("signature-input", signed.input)
            .header("signature", signed.signature)
            .body(body)
            .send()
            .await
            .map_err(failure)?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let error = format!("the webhook answered {status}").into();
        let later = !status.is_client_error() || matches!(status.as_u16(), 401 | 403 | 408 | 429);
        Err(if later {
            SendError::Transient(error)
        } else {
            SendError::Permanent(error)
        })
    }
}

/// Why the answer is missing.
fn failure(error: reqwest::Error) -> SendError {
    let is_unsent = error.is_connect() || error.is_builder();
    // Logged without its URL, since the path may contain the recipient for some services.
    let error = Box::new(error.without_url());
    match is_unsent {
        true => SendError::Transient(error),
        false => SendError::Unknown(error),
    }
}

/// Inputs of a signature besides the body.
struct Signed<'a> {
    url: &'a str,
    created: Timestamp,
    nonce: String,
}

/// The three header fields of a signed request.
struct Fields {
    digest: String,
    input: String,
    signature: String,
}

impl Signed<'_> {
    /// Signs a `POST` (RFC 9421 sections 2.5 and 3.3.3).
    fn sign(&self, body: &[u8], secret: &[u8]) -> Fields {
        let digest = format!("sha-256=:{}:", base64(&Sha256::digest(body)));
        let params = format!(
            "(\"@method\" \"@target-uri\" \"content-digest\" \"content-type\");created={};keyid=\"sms\";nonce=\"{}\";alg=\"hmac-sha256\"",
            self.created.as_secs(),
            self.nonce
        );
        let base = format!(
            "\"@method\": POST\n\"@target-uri\": {}\n\"content-digest\": {digest}\n\"content-type\": {MEDIA_TYPE}\n\"@signature-params\": {params}",
            self.url
        );
        let mut mac =
            Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
        mac.update(base.as_bytes());
        let signature = base64(&mac.finalize().into_bytes());
        Fields {
            digest,
            input: format!("sig1={params}"),
            signature: format!("sig1=:{signature}:"),
        }
    }
}

/// Base64 with padding (RFC 4648 section 4).
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut group = [0; 4];
        group[1..=chunk.len()].copy_from_slice(chunk);
        let number = u32::from_be_bytes(group);
        for place in 0..4 {
            let letter = LETTERS[(number >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= chunk.len() {
                char::from(letter)
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (plain, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), text);
        }
    }

    #[test]
    fn the_digest_is_that_of_rfc_9530() {
        let signed = Signed {
            url: "https://sms.example/send",
            created: Timestamp::from_secs(1_618_884_473),
            nonce: "b3k2pp5k7z".into(),
        };
        let fields = signed.sign(br#"{"hello": "world"}"#, b"secret");
        assert_eq!(
            fields.digest,
            "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:"
        );
        assert!(fields.input.starts_with(
            "sig1=(\"@method\" \"@target-uri\" \"content-digest\" \"content-type\");created=1618884473;keyid=\"sms\";"
        ));
        let other = signed.sign(br#"{"hello": "world"}"#, b"other");
        assert_ne!(fields.signature, other.signature);
    }
}
