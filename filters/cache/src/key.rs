//! The cache key: a keyed BLAKE3 digest of every input of an answer.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use tollgate_filter::{Api, CacheSharing, CapMember, Model};
use tollgate_money::AccountId;
use tollgate_openai::{CompletionRequest, Family};

/// Raised whenever the form of keys or entries changes.
const VERSION: u8 = 4;

/// The context for the derivation of the keys' secret from the store's secret.
const CONTEXT: &str = "tollgate 2026-11-21 completion cache keys";

/// A BLAKE3 digest over scope and the members of the body that decide the answer. The key of the digest is a digest over format version, operation and model ([`Keys`]).
///
/// Keyed and of full length, because entries are shared between accounts. A client with two requests of an equal key could read the answer
/// to another account's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) [u8; 32]);

impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        // Eight bytes of a digest are as random as the whole digest.
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        state.write_u64(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
    }
}

/// Uses digests as hashes: a client without the secret cannot choose the digests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DigestHasher(u64);

impl std::hash::Hasher for DigestHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Keys write a single number. This loop fulfills the trait's contract for any other input.
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

pub(crate) type BuildDigestHasher = std::hash::BuildHasherDefault<DigestHasher>;

/// Makes keys. The secret must not leak: the secret would show which requests are stored.
///
/// The common part of every request for a model is digested once, and this digest keys the digest of the rest. Two models never share a
/// key, and fewer bytes are digested per request.
#[derive(Clone)]
pub(crate) struct Keys {
    secret: [u8; 32],
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys([redacted])")
    }
}

/// The accounts that share an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope<'a> {
    Everyone,
    Account(AccountId),
    Group(&'a str),
}

/// A body of up to this many bytes is digested from a buffer, in a single call. A longer body is digested in place.
const BUFFERED_BYTES_MAX: usize = 32 * 1024;

/// Models whose digests a thread caches.
const KNOWN_MAX: usize = 64;

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { buffer: Vec::new(), known: Vec::new() }) };
}

/// The buffers that a thread reuses to make keys.
struct Scratch {
    /// The input of a digest. An incremental hasher is an object of two kilobytes, and the move of the object costs more than the digest of
    /// an ordinary request.
    buffer: Vec<u8>,
    known: Vec<ModelDigest>,
}

/// The digest of a model and an operation.
struct ModelDigest {
    /// The secret that keys the digest.
    secret: [u8; 32],
    family: &'static Family,
    /// The weak reference keeps the model's address from a reuse by another model.
    model: Weak<Model>,
    digest: [u8; 32],
}

impl Keys {
    /// Keys derived from the store's 32 random bytes.
    pub(crate) fn new(root: &[u8; 32]) -> Keys {
        Keys {
            secret: blake3::derive_key(CONTEXT, root),
        }
    }

    /// The key of a request that was read from `body`.
    pub(crate) fn key(
        &self,
        scope: Scope<'_>,
        model: &Arc<Model>,
        request: &CompletionRequest,
        body: &[u8],
    ) -> Key {
        SCRATCH.with_borrow_mut(|scratch| {
            let model = self.model(request.family, model, scratch);
            let buffer = &mut scratch.buffer;
            buffer.clear();
            write_scope(scope, buffer);
            let digest = if body.len() > BUFFERED_BYTES_MAX {
                let mut hasher = blake3::Hasher::new_keyed(&model);
                hasher.update(buffer);
                request.deciding_members(body, |bytes| _ = hasher.update(bytes));
                hasher.finalize()
            } else {
                request.deciding_members(body, |bytes| buffer.extend_from_slice(bytes));
                blake3::keyed_hash(&model, buffer)
            };
            Key(*digest.as_bytes())
        })
    }

    /// The digest of a model and an operation, from this thread's cache if the digest is known.
    fn model(
        &self,
        family: &'static Family,
        model: &Arc<Model>,
        scratch: &mut Scratch,
    ) -> [u8; 32] {
        let known = scratch.known.iter().find(|known| {
            known.model.as_ptr() == Arc::as_ptr(model)
                && known.family == family
                && known.secret == self.secret
        });
        if let Some(known) = known {
            return known.digest;
        }
        scratch.buffer.clear();
        write_model(family, model, &mut scratch.buffer);
        let digest = *blake3::keyed_hash(&self.secret, &scratch.buffer).as_bytes();
        // New settings bring new models. Models without references are dropped.
        if scratch.known.len() == KNOWN_MAX {
            scratch.known.retain(|known| known.model.strong_count() > 0);
            scratch.known.truncate(KNOWN_MAX / 2);
        }
        scratch.known.push(ModelDigest {
            secret: self.secret,
            family,
            model: Arc::downgrade(model),
            digest,
        });
        digest
    }
}

/// Appends a scope in a form that is no prefix of another scope.
fn write_scope(scope: Scope<'_>, out: &mut Vec<u8>) {
    match scope {
        Scope::Everyone => out.push(0),
        Scope::Account(account) => {
            out.push(1);
            out.extend_from_slice(account.as_bytes());
        }
        Scope::Group(salt) => {
            out.push(2);
            text(salt, out);
        }
    }
}

/// Appends the common part of every request for a model: the public name, and for each provider the provider's address, the provider's name
/// for the model, and the changes of requests for the provider. Entries of the second level outlive a change of the settings.
fn write_model(family: &Family, model: &Model, out: &mut Vec<u8>) {
    out.push(VERSION);
    out.push(family.cache_code);
    text(&model.id, out);
    out.push(u8::from(model.system_as_chat));
    out.push(match model.cap_member {
        CapMember::MaxTokens => 0,
        CapMember::MaxCompletionTokens => 1,
    });
    out.extend_from_slice(&model.limits.output_tokens_default.get().to_le_bytes());
    for one in &model.providers {
        text(&one.provider, out);
        text(&one.address, out);
        text(&one.model, out);
        out.extend(Api::ALL.map(|api| u8::from(one.apis.has(api))));
        out.push(u8::from(one.developer_role));
        out.extend_from_slice(&(one.removed_members.len() as u64).to_le_bytes());
        for name in one.removed_members.iter() {
            text(name, out);
        }
    }
}

/// Appends a text after the text's length.
fn text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// The accounts that share answers with this account, under the service's setting. `None`: no lookup and no storing.
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

    use tollgate_filter::{Apis, ModelLimits, PartCeilings, ProviderModel, Routing};
    use tollgate_money::{Micros, Price};

    use super::*;

    const BODY: &str = r#"{"model":"x","messages":[{"role":"user","content":"hi"}],"prompt":"hi","b":1,"a":[true]}"#;

    fn request(family: &'static Family, body: &str) -> Box<CompletionRequest> {
        CompletionRequest::read(family, body.as_bytes()).expect("a request")
    }

    fn key(keys: &Keys, scope: Scope<'_>, family: &'static Family, model: &Arc<Model>) -> Key {
        keys.key(scope, model, &request(family, BODY), BODY.as_bytes())
    }

    /// An equal key, from every input of the key.
    fn expected(keys: &Keys, scope: &[u8], number: u8, model: &Model) -> [u8; 32] {
        let family = [Family::CHAT, Family::TEXT][usize::from(number)];
        let mut common = Vec::new();
        write_model(family, model, &mut common);
        let model = blake3::keyed_hash(&keys.secret, &common);
        let mut hasher = blake3::Hasher::new_keyed(model.as_bytes());
        hasher.update(scope);
        request(family, BODY).deciding_members(BODY.as_bytes(), |bytes| _ = hasher.update(bytes));
        *hasher.finalize().as_bytes()
    }

    #[test]
    fn a_key_digests_all_that_an_answer_depends_on() {
        let account = AccountId::from_parts(1, [7; 10]);
        let mut models = vec![
            model("bench", &[]),
            model("bench2", &[]),
            model("bench", &[("one", "a")]),
            model("bench", &[("on", "ea")]),
            model("bench", &[("one", "a"), ("other", "b")]),
        ];
        let settings: [fn(&mut Model); 9] = [
            |model| model.system_as_chat = true,
            |model| model.cap_member = CapMember::MaxCompletionTokens,
            |model| model.limits.output_tokens_default = NonZeroU64::MAX,
            |model| model.providers[0].address = "https://other.example/v1".into(),
            |model| model.providers[0].apis = Apis::default().with(Api::Chat),
            |model| model.providers[0].developer_role = true,
            |model| model.providers[0].removed_members = ["seed".into()].into(),
            |model| model.providers[0].removed_members = ["se".into(), "ed".into()].into(),
            |model| model.providers[0].removed_members = ["top_p".into()].into(),
        ];
        models.extend(settings.map(|change| {
            let mut model = model("bench", &[("one", "a")]);
            change(Arc::get_mut(&mut model).expect("it is not shared"));
            model
        }));
        let mut seen = Vec::new();
        for model in models {
            for keys in [Keys::new(&[7; 32]), Keys::new(&[8; 32])] {
                for (number, family) in [(0, Family::CHAT), (1, Family::TEXT)] {
                    for (scope, bytes) in [
                        (Scope::Everyone, vec![0]),
                        (
                            Scope::Account(account),
                            [&[1], &account.as_bytes()[..]].concat(),
                        ),
                        (Scope::Group("s"), b"\x02\x01\0\0\0\0\0\0\0s".to_vec()),
                    ] {
                        // The second time the thread knows the model.
                        for _ in 0..2 {
                            let key = key(&keys, scope, family, &model);
                            assert_eq!(key.0, expected(&keys, &bytes, number, &model));
                        }
                        seen.push(key(&keys, scope, family, &model).0);
                    }
                }
            }
        }
        let all = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!((seen.len(), all), (168, 168), "no two of them share a key");
    }

    #[test]
    fn models_that_come_and_go_are_never_confused() {
        let keys = Keys::new(&[7; 32]);
        let stays = model("stays", &[]);
        for number in 0..3 * KNOWN_MAX {
            let comes = model(&format!("model {number}"), &[]);
            for model in [&comes, &stays] {
                let key = key(&keys, Scope::Everyone, Family::CHAT, model);
                assert_eq!(key.0, expected(&keys, &[0], 0, model), "{number}");
            }
        }
        let kept = SCRATCH.with_borrow(|scratch| scratch.known.len());
        assert!(kept <= KNOWN_MAX, "{kept} are kept");
    }

    #[test]
    fn nothing_left_in_the_buffer_is_part_of_a_key() {
        let (keys, model) = (Keys::new(&[7; 32]), model("bench", &[]));
        let of = |body: &str| {
            let request = request(Family::CHAT, body);
            keys.key(Scope::Everyone, &model, &request, body.as_bytes())
        };
        let first = of(BODY);
        // Beside, at and beyond the length from which a body is digested in place.
        for length in [BUFFERED_BYTES_MAX - 200, BUFFERED_BYTES_MAX, 100_000] {
            let long = BODY.replace("hi", &"x".repeat(length));
            assert_ne!(of(&long), first);
            assert_ne!(of(&long.replace("xxx\"", "xxy\"")), of(&long), "{length}");
            assert_eq!(of(BODY), first);
        }
        let kept = SCRATCH.with_borrow(|scratch| scratch.buffer.capacity());
        assert!(kept <= 3 * BUFFERED_BYTES_MAX, "{kept} bytes are kept");
    }

    #[test]
    fn a_body_has_one_key_from_the_buffer_and_in_place() {
        let (keys, model) = (Keys::new(&[7; 32]), model("bench", &[]));
        // White space between members makes the body longer, and is no part of the key.
        let spaced = BODY.replacen(',', &format!("{},", " ".repeat(BUFFERED_BYTES_MAX)), 1);
        let [short, long] = [BODY, &spaced].map(|body| {
            let request = request(Family::CHAT, body);
            keys.key(Scope::Everyone, &model, &request, body.as_bytes())
        });
        assert_eq!(short, long);
    }

    fn model(id: &str, providers: &[(&str, &str)]) -> Arc<Model> {
        let provider = |&(provider, model): &(&str, &str)| ProviderModel::new(provider, model);
        Arc::new(Model {
            id: id.into(),
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
            providers: providers.iter().map(provider).collect(),
            system_as_chat: false,
            cap_member: CapMember::MaxTokens,
            routing: Routing::default(),
            after_leaving: None,
            working: AtomicBool::new(true),
        })
    }
}
