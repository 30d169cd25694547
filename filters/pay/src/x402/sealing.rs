//! Payments at rest. A payment has to survive the process, so that it can be settled again with the same words; and whoever has it can
//! send the transfer, so it is not kept as it is.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use sha2::Sha256;
use zeroize::Zeroizing;

/// Seals what is sent to the facilitator (ChaCha20-Poly1305, RFC 8439).
pub(crate) struct Sealer {
    root: Zeroizing<[u8; 32]>,
}

impl Sealer {
    /// A sealer whose keys come from the store's root secret.
    pub(crate) fn new(root: &[u8; 32]) -> Sealer {
        Sealer {
            root: Zeroizing::new(mac(root, &[b"tollgate x402 payments"])),
        }
    }

    /// Seals a text. `name` says which payment it is and `digest` what it says: together they stand for one text, so each text has a key
    /// of its own, which is why the key needs no random number beside it.
    pub(crate) fn seal(&self, name: &[u8], digest: &[u8; 32], text: &[u8]) -> Vec<u8> {
        let mut sealed = text.to_vec();
        self.key(name, digest)
            .seal_in_place_append_tag(zero(), Aad::from(name), &mut sealed)
            .expect("a payment is far smaller than what one key can seal");
        sealed
    }

    /// Opens what was sealed under the same name and digest; `None` for anything else.
    pub(crate) fn open(&self, name: &[u8], digest: &[u8; 32], sealed: &[u8]) -> Option<Vec<u8>> {
        let mut text = sealed.to_vec();
        let length = self
            .key(name, digest)
            .open_in_place(zero(), Aad::from(name), &mut text)
            .ok()?
            .len();
        text.truncate(length);
        Some(text)
    }

    fn key(&self, name: &[u8], digest: &[u8; 32]) -> LessSafeKey {
        let key = Zeroizing::new(mac(&self.root, &[name, digest]));
        let key = UnboundKey::new(&CHACHA20_POLY1305, &*key).expect("32 bytes are a key");
        LessSafeKey::new(key)
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer([redacted])")
    }
}

fn zero() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

fn mac(key: &[u8; 32], pieces: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for piece in pieces {
        mac.update(&(piece.len() as u64).to_be_bytes());
        mac.update(piece);
    }
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payment_opens_under_its_own_name_in_its_own_store_alone() {
        let sealer = Sealer::new(&[7; 32]);
        let sealed = sealer.seal(b"one", &[1; 32], b"a payment");
        assert!(!sealed.windows(9).any(|part| part == b"a payment"));
        assert_eq!(
            sealer.open(b"one", &[1; 32], &sealed).as_deref(),
            Some(&b"a payment"[..])
        );
        assert_eq!(sealer.open(b"two", &[1; 32], &sealed), None);
        assert_eq!(sealer.open(b"one", &[2; 32], &sealed), None);
        assert_eq!(sealer.open(b"one", &[1; 32], &sealed[1..]), None);
        assert_eq!(sealer.open(b"one", &[1; 32], b""), None);
        let other = Sealer::new(&[8; 32]);
        assert_eq!(other.open(b"one", &[1; 32], &sealed), None);
        assert_eq!(format!("{sealer:?}"), "Sealer([redacted])");
    }
}
