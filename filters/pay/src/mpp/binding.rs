//! Challenge binding: the id of a challenge is an HMAC of the parameters, so a returned challenge is verified without stored state.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

/// The least bytes of a secret.
pub(crate) const SECRET_BYTES_MIN: usize = 32;

/// The binding secret and the previous one: rotation must not void outstanding challenges.
#[derive(Clone)]
pub struct Secrets {
    current: Zeroizing<Vec<u8>>,
    previous: Option<Zeroizing<Vec<u8>>>,
}

impl Secrets {
    /// Secrets of at least 32 bytes each; `None` for shorter secrets.
    pub fn new(current: &[u8], previous: Option<&[u8]>) -> Option<Secrets> {
        let long = |secret: &[u8]| secret.len() >= SECRET_BYTES_MIN;
        (long(current) && previous.is_none_or(long)).then(|| Secrets {
            current: Zeroizing::new(current.to_vec()),
            previous: previous.map(|secret| Zeroizing::new(secret.to_vec())),
        })
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets([redacted])")
    }
}

/// The bound parameters of a challenge exactly as on the wire, absent ones empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Binding<'a> {
    pub realm: &'a str,
    pub method: &'a str,
    pub intent: &'a str,
    /// The request, base64url.
    pub request: &'a str,
    /// Its expiry, RFC 3339.
    pub expires: &'a str,
    /// The digest of the body.
    pub digest: &'a str,
    /// Server data that the client returns unchanged, base64url.
    pub opaque: &'a str,
    /// The field required for the credential, if other than `Authorization`. The last parameter in the bound text, present only when named
    /// (draft-httpauth-payment-02). Some libraries put the field before `opaque`; only the issuer of the challenge sees the order.
    pub header: &'a str,
}

impl Binding<'_> {
    fn slots(&self) -> impl Iterator<Item = &str> {
        let always = [
            self.realm,
            self.method,
            self.intent,
            self.request,
            self.expires,
            self.digest,
            self.opaque,
        ];
        let named = (!self.header.is_empty()).then_some(self.header);
        always.into_iter().chain(named)
    }

    /// The id of a challenge with these parameters.
    pub fn id(&self, secrets: &Secrets) -> String {
        URL_SAFE_NO_PAD.encode(self.mac(&secrets.current).finalize().into_bytes())
    }

    /// Whether `id` was issued here for exactly these parameters.
    pub fn holds(&self, id: &str, secrets: &Secrets) -> bool {
        // The slots are joined by `|`: a `|` inside a slot would let different slots join to equal texts.
        if self.slots().any(|slot| slot.contains('|')) {
            return false;
        }
        let Ok(id) = URL_SAFE_NO_PAD.decode(id) else {
            return false;
        };
        let by = |secret: &[u8]| self.mac(secret).verify_slice(&id).is_ok();
        by(&secrets.current) || secrets.previous.as_deref().is_some_and(|secret| by(secret))
    }

    fn mac(&self, secret: &[u8]) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
        for (at, slot) in self.slots().enumerate() {
            if at > 0 {
                mac.update(b"|");
            }
            mac.update(slot.as_bytes());
        }
        mac
    }
}
