//! Text form of credentials: a prefix for the kind, forty random characters, and a six-character checksum.

use std::borrow::Cow;

use secrecy::{ExposeSecret, SecretString};
use tollgate_store::CredentialKind;
use zeroize::Zeroizing;

use crate::digest::Digest;

const BODY_CHARS: usize = 40;
const CHECK_CHARS: usize = 6;

/// Characters of the random part shown at each end, so that an owner can distinguish keys.
const HINT_CHARS: usize = 4;

const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The text form of one kind of credential of one service.
///
/// `sk-svc-` (or `svc_at_`, with the service's short name for `svc`), 40 characters of base62, and the CRC-32 of both as six more, padded
/// with `0`. The checksum is no secret and no proof. With the checksum, a scanner recognizes a leaked key, and a key with a typing error is
/// rejected without a lookup.
#[derive(Clone, Debug)]
pub struct Form {
    kind: CredentialKind,
    prefix: Box<str>,
    /// CRC state after the prefix.
    checksum: crc32fast::Hasher,
}

impl Form {
    pub fn api_key(service: &str) -> Form {
        Form::new(CredentialKind::ApiKey, format!("sk-{service}-"))
    }

    /// OAuth access tokens.
    pub fn access_token(service: &str) -> Form {
        Form::new(CredentialKind::AccessToken, format!("{service}_at_"))
    }

    /// OAuth refresh tokens.
    pub fn refresh_token(service: &str) -> Form {
        Form::new(CredentialKind::RefreshToken, format!("{service}_rt_"))
    }

    /// OAuth authorization codes.
    pub fn authorization_code(service: &str) -> Form {
        Form::new(CredentialKind::AuthorizationCode, format!("{service}_ac_"))
    }

    fn new(kind: CredentialKind, prefix: String) -> Form {
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(prefix.as_bytes());
        Form {
            kind,
            checksum,
            prefix: prefix.into(),
        }
    }

    pub fn kind(&self) -> CredentialKind {
        self.kind
    }

    /// The common prefix.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A new credential from 32 random bytes.
    pub fn make(&self, random: &Zeroizing<[u8; 32]>) -> SecretString {
        let body = base62::<BODY_CHARS>(random);
        let check = self.check(&*body);
        let mut text = String::with_capacity(self.prefix.len() + BODY_CHARS + CHECK_CHARS);
        text.push_str(&self.prefix);
        text.extend(body.iter().chain(&check).copied().map(char::from));
        SecretString::from(text)
    }

    /// The digest of a text of this form; `None` for other text, which needs no look-up.
    pub fn digest(&self, text: &[u8]) -> Option<Digest> {
        let rest = text.strip_prefix(self.prefix.as_bytes())?;
        let (body, checksum) = rest.split_at_checked(BODY_CHARS)?;
        // Checks all characters without an early exit, for vectorization by the compiler.
        let sound = body
            .iter()
            .fold(true, |sound, byte| sound & byte.is_ascii_alphanumeric());
        (sound && *checksum == self.check(body)).then(|| Digest::of(text))
    }

    /// The checksum over the prefix and a body, in base 62.
    fn check(&self, body: &[u8]) -> [u8; CHECK_CHARS] {
        let mut checksum = self.checksum.clone();
        checksum.update(body);
        let mut rest = checksum.finalize();
        let mut check = [b'0'; CHECK_CHARS];
        for digit in check.iter_mut().rev() {
            *digit = BASE62[(rest % 62) as usize];
            rest /= 62;
        }
        check
    }

    /// The displayable part of a secret of this form: `sk-svc-7Hq2...o8FL`.
    pub fn hint(&self, secret: &SecretString) -> String {
        let (start, _) = secret
            .expose_secret()
            .split_at(self.prefix.len() + HINT_CHARS);
        let (_, end) = secret
            .expose_secret()
            .split_at(secret.expose_secret().len() - HINT_CHARS);
        format!("{start}...{end}")
    }
}

/// Minimum length of contiguous letters and digits that may be the random part of a credential, even a truncated credential.
const SECRET_CHARS_MIN: usize = 16;

/// A text for logs and records: `[redacted]` replaces each possible credential, of this service or of a model provider.
///
/// Such a word has a known mark, `sk-`, `_at_`, `_rt_` or `_ac_`, and then sixteen contiguous letters and digits, with or without a valid
/// checksum. Ids, digests and hashes have no such mark.
pub fn redact(text: &str) -> Cow<'_, str> {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let mut clean = String::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(start) = text[at..].find(is_of_word).map(|start| at + start) {
        let length = text[start..].find(|c| !is_of_word(c));
        at = length.map_or(text.len(), |length| start + length);
        if may_be_secret(&text[start..at]) {
            clean.push_str(&text[copied..start]);
            clean.push_str("[redacted]");
            copied = at;
        }
    }
    match copied {
        0 => Cow::Borrowed(text),
        _ => Cow::Owned(clean + &text[copied..]),
    }
}

fn may_be_secret(word: &str) -> bool {
    ["sk-", "_at_", "_rt_", "_ac_"].iter().any(|mark| {
        word.split_once(mark).is_some_and(|(_, rest)| {
            rest.split(['-', '_'])
                .any(|piece| piece.len() >= SECRET_CHARS_MIN)
        })
    })
}

/// The last digits of the random bytes as a number in base 62. 2^238 texts of forty digits exist, each produced by 2^17.8 of the numbers,
/// plus or minus one: the probabilities of two texts differ by at most one in 200,000.
pub(crate) fn base62<const CHARS: usize>(random: &Zeroizing<[u8; 32]>) -> Zeroizing<[u8; CHARS]> {
    let mut number = Zeroizing::new([0u32; 8]);
    for (limb, bytes) in number.iter_mut().zip(random.as_chunks::<4>().0) {
        *limb = u32::from_be_bytes(*bytes);
    }
    let mut body = Zeroizing::new([0; CHARS]);
    for digit in body.iter_mut().rev() {
        let mut rest = 0u64;
        for limb in number.iter_mut() {
            let part = rest << 32 | u64::from(*limb);
            *limb = (part / 62) as u32;
            rest = part % 62;
        }
        *digit = BASE62[rest as usize];
    }
    body
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const KEY: &str = "sk-svc-7Hq2mZ0cVx9LkR4sTn8YwBd1GfJp6EaUoXiCvK3M06o8FL";
    const TOKEN: &str = "svc_at_7Hq2mZ0cVx9LkR4sTn8YwBd1GfJp6EaUoXiCvK3M1aEA4s";

    #[test]
    fn known_texts_have_known_digests() {
        let zeros = format!("sk-svc-{}0LeWjE", "0".repeat(40));
        check(
            &zeros,
            "6d5a6f22203aa3008af6c6011c799ca778ee98630ae8050266a0c8ab63f50321",
        );
        check(
            KEY,
            "be3927781585196400030945f8f468ca821459674e6a2c9d9d235c3fdc5b84cf",
        );
        check(
            TOKEN,
            "85ec752ec95cae62e33a25c6d3991f9bbbdddd1a33629ab0f021f8b778e64374",
        );

        fn check(text: &str, hex: &str) {
            let form = if text.starts_with("sk-") {
                Form::api_key("svc")
            } else {
                Form::access_token("svc")
            };
            let digest = form.digest(text.as_bytes()).expect("the checksum is right");
            let printed = base16ct::lower::encode_string(digest.as_bytes());
            assert_eq!(printed, hex, "{text}");
        }
    }

    #[test]
    fn a_malformed_text_is_rejected_without_a_lookup() {
        let form = Form::api_key("svc");
        let swapped = KEY.replace("7Hq2", "7H2q");
        let longer = format!("{KEY}0");
        let blank = KEY.replace('Z', " ");
        let not_ascii = KEY.replace("Z0", "é");
        for text in [
            "",
            "sk-svc-",
            "sk-abc-7Hq2mZ0cVx9LkR4sTn8YwBd1GfJp6EaUoXiCvK3M06o8FL",
            &KEY[..KEY.len() - 1],
            &swapped,
            &longer,
            &blank,
            &not_ascii,
            &KEY.to_lowercase(),
            TOKEN,
        ] {
            assert!(form.digest(text.as_bytes()).is_none(), "{text:?}");
        }
    }

    #[test]
    fn credentials_are_redacted_wherever_they_stand_in_a_text() {
        let whole = format!("there is no key `{KEY}`, and no token {TOKEN}.");
        let cut = &KEY[..KEY.len() - 20];
        for (text, clean) in [
            (KEY, "[redacted]"),
            (
                &*whole,
                "there is no key `[redacted]`, and no token [redacted].",
            ),
            (&format!("é{cut}é"), "é[redacted]é"),
            (&format!("key={KEY}&x={KEY}"), "key=[redacted]&x=[redacted]"),
            ("Bearer sk-proj-0123456789abcdef-x", "Bearer [redacted]"),
        ] {
            assert_eq!(redact(text), clean);
        }
        for same in [
            "",
            "invoice 17",
            "the task-force of sk-svc",
            "acct_0123456789abcdef0123456789abcdef",
            "key_0123456789abcdef0123456789abcdef",
            "0x0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "sk-svc-7Hq2...o8FL",
        ] {
            assert_eq!(redact(same), same);
        }
    }

    #[test]
    fn every_position_takes_every_character() {
        let form = Form::api_key("svc");
        let mut seen = vec![HashSet::new(); BODY_CHARS];
        for number in 0..2000u32 {
            let random = Zeroizing::new(*Digest::of(&number.to_le_bytes()).as_bytes());
            let secret = form.make(&random);
            let body = &secret.expose_secret().as_bytes()[form.prefix().len()..][..BODY_CHARS];
            for (place, &character) in body.iter().enumerate() {
                seen[place].insert(character);
            }
        }
        assert!(seen.iter().all(|characters| characters.len() == 62));
    }

    proptest! {
        #[test]
        fn a_new_credential_is_recognized_until_one_character_changes(
            random: [u8; 32],
            place in 7usize..53,
            other in 0usize..62,
        ) {
            let form = Form::api_key("svc");
            let secret = form.make(&Zeroizing::new(random));
            let text = secret.expose_secret();
            prop_assert_eq!(text.len(), 53);
            prop_assert_eq!(form.digest(text.as_bytes()), Some(Digest::of(text.as_bytes())));
            let hint = form.hint(&secret);
            prop_assert_eq!(hint, format!("{}...{}", &text[..11], &text[49..]));

            let mut changed = text.as_bytes().to_vec();
            changed[place] = BASE62[other];
            if changed != text.as_bytes() {
                prop_assert!(form.digest(&changed).is_none());
            }
        }
    }
}
