//! An answer as one run of bytes, the way it lies in the [probation](crate::probation).

use std::time::Duration;

use bytes::Bytes;
use tollgate_filter::{CacheEntryId, Tokens};
use tollgate_openai::{Endpoint, Kept};

use crate::entry::{Answer, Entry};
use crate::key::Key;

/// Bytes in front of the model's name, which the body follows.
const HEAD: usize = 80;

/// What every run is a multiple of, so that places need fewer bits: a cache line.
pub(crate) const UNIT: usize = 64;

/// What an answer's body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// What the provider sent.
    Came,
    /// The text of a [`Kept`], and whether it tells how many tokens were used.
    Kept { has_usage: bool },
}

/// A stored answer in parts that others own. The fields are those of [`Entry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flat<'a> {
    pub(crate) id: CacheEntryId,
    pub(crate) model: &'a str,
    pub(crate) tokens: Option<Tokens>,
    pub(crate) expires: Duration,
    pub(crate) endpoint: Endpoint,
    pub(crate) form: Form,
    pub(crate) body: &'a [u8],
}

const IS_TEXT: u8 = 1;
const HAS_TOKENS: u8 = 2;
const IS_KEPT: u8 = 4;
const HAS_USAGE: u8 = 8;

impl<'a> Flat<'a> {
    /// Bytes of its run.
    pub(crate) fn bytes(&self) -> usize {
        (HEAD + self.model.len() + self.body.len()).next_multiple_of(UNIT)
    }

    /// Writes its run, [`Flat::bytes`] long. False for what no run can say: a name or a body beyond all reason, or not that much room.
    pub(crate) fn write(&self, key: &Key, run: &mut [u8]) -> bool {
        let (Ok(model), Ok(body)) = (
            u16::try_from(self.model.len()),
            u32::try_from(self.body.len()),
        ) else {
            return false;
        };
        if run.len() != self.bytes() {
            return false;
        }
        let tokens = self.tokens.unwrap_or_default();
        // Beyond five hundred years is beyond the life of any process.
        let expires = u64::try_from(self.expires.as_nanos()).unwrap_or(u64::MAX);
        let (head, rest) = run.split_at_mut(HEAD);
        head[..32].copy_from_slice(&key.0);
        head[32..48].copy_from_slice(&self.id.0);
        head[48..56].copy_from_slice(&expires.to_le_bytes());
        head[56..64].copy_from_slice(&tokens.prompt.to_le_bytes());
        head[64..72].copy_from_slice(&tokens.completion.to_le_bytes());
        head[72..76].copy_from_slice(&body.to_le_bytes());
        head[76..78].copy_from_slice(&model.to_le_bytes());
        head[78] = self.marks();
        let (name, rest) = rest.split_at_mut(self.model.len());
        name.copy_from_slice(self.model.as_bytes());
        rest[..self.body.len()].copy_from_slice(self.body);
        true
    }

    /// The key and the answer whose run `log` begins with.
    pub(crate) fn read(log: &'a [u8]) -> Option<(Key, Flat<'a>)> {
        let (head, rest) = log.split_first_chunk::<HEAD>()?;
        let number = |at: usize| {
            let bytes = head[at..at + 8].first_chunk().copied();
            bytes.map_or(0, u64::from_le_bytes)
        };
        let body = u32::from_le_bytes(*head[72..].first_chunk()?) as usize;
        let model = usize::from(u16::from_le_bytes(*head[76..].first_chunk()?));
        let (model, rest) = rest.split_at_checked(model)?;
        let marks = head[78];
        let flat = Flat {
            id: CacheEntryId(*head[32..].first_chunk()?),
            model: std::str::from_utf8(model).ok()?,
            tokens: (marks & HAS_TOKENS != 0).then(|| Tokens {
                prompt: number(56),
                completion: number(64),
            }),
            expires: Duration::from_nanos(number(48)),
            endpoint: match marks & IS_TEXT {
                0 => Endpoint::Chat,
                _ => Endpoint::Text,
            },
            form: match marks & IS_KEPT {
                0 => Form::Came,
                _ => Form::Kept {
                    has_usage: marks & HAS_USAGE != 0,
                },
            },
            body: rest.get(..body)?,
        };
        Some((Key(*head.first_chunk()?), flat))
    }

    /// The runs of a log: where each begins, and what it says.
    pub(crate) fn runs(log: &'a [u8]) -> impl Iterator<Item = (usize, Key, Flat<'a>)> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let at = next;
            let (key, flat) = Flat::read(log.get(at..)?)?;
            next += flat.bytes();
            Some((at, key, flat))
        })
    }

    fn marks(&self) -> u8 {
        let text = match self.endpoint {
            Endpoint::Chat => 0,
            Endpoint::Text => IS_TEXT,
        };
        let kept = match self.form {
            Form::Came => 0,
            Form::Kept { has_usage: false } => IS_KEPT,
            Form::Kept { has_usage: true } => IS_KEPT | HAS_USAGE,
        };
        let tokens = if self.tokens.is_some() { HAS_TOKENS } else { 0 };
        text | kept | tokens
    }

    /// It as an entry of its own.
    pub(crate) fn entry(&self) -> Entry {
        Entry {
            id: self.id,
            model: self.model.into(),
            tokens: self.tokens,
            expires: self.expires,
            endpoint: self.endpoint,
            answer: match self.form {
                Form::Came => Answer::came(self.body),
                Form::Kept { has_usage } => {
                    let text = Bytes::copy_from_slice(self.body);
                    Kept::of_text(self.endpoint, text, has_usage).into()
                }
            },
            events: [None, None],
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn form() -> impl Strategy<Value = Form> {
        prop_oneof![
            Just(Form::Came),
            any::<bool>().prop_map(|has_usage| Form::Kept { has_usage }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again_wherever_it_stands(
            key in any::<[u8; 32]>(),
            id in any::<[u8; 16]>(),
            model in "\\PC{0,40}",
            tokens in proptest::option::of(any::<(u64, u64)>()),
            expires in any::<u64>(),
            text in any::<bool>(),
            form in form(),
            body in proptest::collection::vec(any::<u8>(), 0..200),
            before in 0_usize..3,
        ) {
            let flat = Flat {
                id: CacheEntryId(id),
                model: &model,
                tokens: tokens.map(|(prompt, completion)| Tokens { prompt, completion }),
                expires: Duration::from_nanos(expires),
                endpoint: if text { Endpoint::Text } else { Endpoint::Chat },
                form,
                body: &body,
            };
            prop_assert_eq!(flat.bytes() % UNIT, 0);
            // Over what was there before.
            let mut log = vec![7; (before + 1) * flat.bytes()];
            for run in log.chunks_mut(flat.bytes()) {
                prop_assert!(flat.write(&Key(key), run));
            }
            let runs = (0..=before).map(|at| (at * flat.bytes(), Key(key), flat));
            prop_assert!(Flat::runs(&log).eq(runs));
        }

        #[test]
        fn what_was_cut_is_not_read(body in proptest::collection::vec(any::<u8>(), 1..100)) {
            let flat = Flat {
                id: CacheEntryId([1; 16]),
                model: "m",
                tokens: None,
                expires: Duration::MAX,
                endpoint: Endpoint::Chat,
                form: Form::Came,
                body: &body,
            };
            let mut log = vec![0; flat.bytes()];
            prop_assert!(flat.write(&Key([2; 32]), &mut log));
            let less = flat.bytes() - 1;
            prop_assert!(!flat.write(&Key([2; 32]), &mut log[..less]));
            for end in 0..HEAD + 1 + body.len() {
                prop_assert_eq!(Flat::read(&log[..end]), None);
            }
        }
    }

    #[test]
    fn what_no_run_can_say_is_not_written() {
        let name = "m".repeat(1 << 16);
        let flat = Flat {
            id: CacheEntryId([1; 16]),
            model: &name,
            tokens: None,
            expires: Duration::MAX,
            endpoint: Endpoint::Chat,
            form: Form::Came,
            body: b"{}",
        };
        let mut log = vec![0; flat.bytes()];
        assert!(!flat.write(&Key([2; 32]), &mut log));
    }
}
