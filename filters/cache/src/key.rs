//! The key of an answer: a digest of everything that it depends on.

use tollgate_filter::{CacheSharing, Model};
use tollgate_money::AccountId;
use tollgate_openai::{CanonicalError, Endpoint, canonical};

/// Raised whenever the form of keys or entries changes.
const VERSION: u8 = 1;

/// What keys are derived from the store's secret by.
const CONTEXT: &str = "tollgate 2026-11-21 completion cache keys";

/// A keyed BLAKE3 digest over format version, scope, operation, model and canonical body.
///
/// Keyed and of full length, since the store is shared between accounts: who could find two requests of one key could be given the
/// answer to another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) [u8; 32]);

/// The digest of a body as it came, in front of the work of making it canonical.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawKey(pub(crate) [u8; 32]);

impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(lane(&self.0));
    }
}

impl std::hash::Hash for RawKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(lane(&self.0));
    }
}

/// Eight bytes of a digest, which are as random as all of it.
fn lane(digest: &[u8; 32]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *digest;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// Takes digests for hashes: nobody who does not know the secret can choose them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DigestHasher(u64);

impl std::hash::Hasher for DigestHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Keys write one number; this keeps the trait's promise for anything else.
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

pub(crate) type BuildDigestHasher = std::hash::BuildHasherDefault<DigestHasher>;

/// Makes keys. Whoever has the secret can tell which requests are stored.
#[derive(Clone)]
pub(crate) struct Keys {
    secret: [u8; 32],
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys([redacted])")
    }
}

/// Who shares an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope<'a> {
    Everyone,
    Account(AccountId),
    Group(&'a str),
}

/// All of a key but the body, and room to write the rest behind it.
///
/// What is digested is written out and digested in one call: a hasher that is fed in parts is an object of two kilobytes, and moving it
/// about costs more than the digest of an ordinary request.
pub(crate) struct Prefix<'a> {
    secret: &'a [u8; 32],
    scratch: &'a mut Vec<u8>,
    /// Where it ends.
    end: usize,
}

impl Keys {
    /// Keys derived from the store's 32 random bytes.
    pub(crate) fn new(root: &[u8; 32]) -> Keys {
        Keys {
            secret: blake3::derive_key(CONTEXT, root),
        }
    }

    /// The beginning that all keys of one scope, operation and model have, written into `scratch`.
    pub(crate) fn prefix<'a>(
        &'a self,
        scope: Scope<'_>,
        endpoint: Endpoint,
        model: &Model,
        scratch: &'a mut Vec<u8>,
    ) -> Prefix<'a> {
        scratch.clear();
        scratch.push(VERSION);
        match scope {
            Scope::Everyone => scratch.push(0),
            Scope::Account(account) => {
                scratch.push(1);
                scratch.extend_from_slice(account.as_bytes());
            }
            Scope::Group(salt) => {
                scratch.push(2);
                text(salt, scratch);
            }
        }
        scratch.push(match endpoint {
            Endpoint::Chat => 0,
            Endpoint::Text => 1,
        });
        // The model by the name clients know it by, and what stands behind it: another provider or version, another answer.
        text(&model.id, scratch);
        scratch.push(u8::try_from(model.providers.len()).unwrap_or(u8::MAX));
        for one in &model.providers {
            text(&one.provider, scratch);
            text(&one.model, scratch);
        }
        Prefix {
            secret: &self.secret,
            end: scratch.len(),
            scratch,
        }
    }
}

/// Appends a text so that where it ends cannot be mistaken.
fn text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

impl Prefix<'_> {
    /// The digest of a body as it came.
    pub(crate) fn raw(&mut self, body: &[u8]) -> RawKey {
        self.begin(0);
        self.scratch.extend_from_slice(body);
        RawKey(self.digest())
    }

    /// The key of a body.
    pub(crate) fn key(&mut self, body: &[u8]) -> Result<Key, CanonicalError> {
        self.begin(1);
        canonical::write(body, self.scratch)?;
        Ok(Key(self.digest()))
    }

    /// Forgets all but the prefix, and notes which of the two forms of a body comes.
    fn begin(&mut self, form: u8) {
        self.scratch.truncate(self.end);
        self.scratch.push(form);
    }

    fn digest(&self) -> [u8; 32] {
        *blake3::keyed_hash(self.secret, self.scratch).as_bytes()
    }
}

/// Whom an account shares with, under the service's own setting. None: with nobody, and nothing is stored.
pub(crate) fn scope<'a>(
    sharing: CacheSharing,
    partition: &'a crate::Partition,
    account: AccountId,
    class: &str,
) -> Option<Scope<'a>> {
    use crate::Partition;
    match (sharing, partition) {
        (CacheSharing::Off, _) => None,
        (CacheSharing::Account, _) | (_, Partition::Account) => Some(Scope::Account(account)),
        (CacheSharing::Shared, Partition::None) => Some(Scope::Everyone),
        (CacheSharing::Shared, Partition::Keyed(salts)) => {
            let salt = salts.iter().find(|(one, _)| **one == *class);
            Some(salt.map_or(Scope::Account(account), |(_, salt)| Scope::Group(salt)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::sync::atomic::AtomicBool;

    use tollgate_filter::{CapMember, ModelLimits, PartCeilings, Routing};
    use tollgate_money::{Micros, Price};

    use super::*;

    #[test]
    fn a_key_digests_all_that_an_answer_depends_on_and_nothing_that_stood_in_its_room_before() {
        const BODY: &[u8] = br#"{"model":"x","b":1,"a":[true]}"#;
        let keys = Keys::new(&[7; 32]);
        let model = model();
        let digest = |form: u8, body: &[u8]| {
            let mut hasher = blake3::Hasher::new_keyed(&keys.secret);
            hasher.update(&[VERSION, 2]);
            hasher.update(&4u64.to_le_bytes()).update(b"salt");
            hasher.update(&[0]);
            hasher.update(&5u64.to_le_bytes()).update(b"bench");
            hasher.update(&[0, form]).update(body);
            *hasher.finalize().as_bytes()
        };
        let mut scratch = b"what another request left behind".to_vec();
        let mut prefix = keys.prefix(Scope::Group("salt"), Endpoint::Chat, &model, &mut scratch);
        for _ in 0..2 {
            assert_eq!(prefix.raw(BODY).0, digest(0, BODY));
            let key = prefix.key(BODY).expect("it has a canonical form");
            assert_eq!(key.0, digest(1, br#"{"a":[true],"b":1}"#));
        }
        assert!(
            prefix.key(br#"{"a":1,"a":2}"#).is_err(),
            "it cannot be told from others"
        );
        assert_eq!(
            prefix.raw(BODY).0,
            digest(0, BODY),
            "half a form is left out"
        );
    }

    fn model() -> Model {
        Model {
            id: "bench".into(),
            name: None,
            owned_by: String::new(),
            created: None,
            price: Price {
                input: "1".parse().expect("a price"),
                output: "2".parse().expect("a price"),
                request: Micros::ZERO,
            },
            price_version: 1,
            limits: ModelLimits {
                context_length: None,
                output_tokens_default: NonZeroU64::MIN,
                output_tokens_bound: false,
            },
            output_modalities: Vec::new(),
            part_ceilings: PartCeilings::default(),
            token_factor_ppm: 1_000_000,
            providers: Vec::new(),
            system_as_chat: false,
            cap_member: CapMember::MaxTokens,
            routing: Routing::default(),
            after_leaving: None,
            working: AtomicBool::new(true),
        }
    }
}
