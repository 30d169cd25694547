//! Encryption of values at rest (AEAD with a synthetic IV), under keys derived from the store's root secret.
//!
//! A holder of the plain value could submit a payment, or sign as the service. The value is therefore not in the tables in clear: a single
//! table, a page of the file, or a log of statements reveals nothing. A reader of the whole database has the root secret too.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::rows::RootSecret;

/// Bytes of a text's synthetic IV: the text's MAC.
const SIV_BYTES: usize = 32;

/// Seals texts of one kind (ChaCha20-Poly1305, RFC 8439).
pub struct Sealer {
    root: Zeroizing<[u8; 32]>,
}

impl Sealer {
    /// A sealer whose keys are derived from the store's root secret; `kind` separates the keys from the keys of other kinds of texts.
    pub fn new(root: &RootSecret, kind: &str) -> Sealer {
        Sealer {
            root: Zeroizing::new(mac(&root.0, &[kind.as_bytes()])),
        }
    }

    /// Seals a text. `name` identifies the text's row. `digest` covers further data that must be equal at the opening, such as the content
    /// that a wallet signed. A text has a separate key, derived from its MAC (a synthetic IV, as in RFC 8452): no random number is needed.
    /// The MAC precedes the ciphertext.
    pub fn seal(&self, name: &[u8], digest: &[u8; 32], text: &[u8]) -> Vec<u8> {
        let siv = mac(&self.root, &[b"mark", name, digest, text]);
        let mut sealed = text.to_vec();
        self.key(name, digest, &siv)
            .seal_in_place_append_tag(zero(), Aad::from(name), &mut sealed)
            .expect("a text is far smaller than what one key can seal");
        [&siv[..], &sealed].concat()
    }

    /// Opens a text that was sealed under an equal name and digest; `None` for any other text.
    pub fn open(&self, name: &[u8], digest: &[u8; 32], sealed: &[u8]) -> Option<Vec<u8>> {
        let (siv, sealed) = sealed.split_at_checked(SIV_BYTES)?;
        let mut text = sealed.to_vec();
        let length = self
            .key(name, digest, siv)
            .open_in_place(zero(), Aad::from(name), &mut text)
            .ok()?
            .len();
        text.truncate(length);
        Some(text)
    }

    fn key(&self, name: &[u8], digest: &[u8; 32], siv: &[u8]) -> LessSafeKey {
        let key = Zeroizing::new(mac(&self.root, &[b"key", name, digest, siv]));
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
    fn a_text_opens_only_under_its_own_name_in_its_own_store() {
        let sealer = Sealer::new(&RootSecret([7; 32]), "tests");
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
        let other = Sealer::new(&RootSecret([8; 32]), "tests");
        assert_eq!(other.open(b"one", &[1; 32], &sealed), None);
        let other = Sealer::new(&RootSecret([7; 32]), "other tests");
        assert_eq!(other.open(b"one", &[1; 32], &sealed), None);
        // The signature in another envelope: two texts never share a key, since a shared key would reveal the texts' difference.
        let twin = sealer.seal(b"one", &[1; 32], b"a Payment");
        let differ = |at: usize| sealed[SIV_BYTES + at] ^ twin[SIV_BYTES + at];
        assert!((0..9).any(|at| differ(at) != b"a payment"[at] ^ b"a Payment"[at]));
        assert_eq!(format!("{sealer:?}"), "Sealer([redacted])");
    }
}
