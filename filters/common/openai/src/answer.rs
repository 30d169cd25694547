//! A whole answer: what it says, and as the client gets it.

use bytes::BytesMut;

use crate::completion::{Choice, Completion};
use crate::json::SyntaxError;
use crate::patch::{Change, Patch, UsageChange};
use crate::usage::Usage;

/// Why a body is no answer to a completion request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// Its bytes are not UTF-8.
    #[error("the answer is not UTF-8")]
    NotUtf8,
    /// It is not a JSON object.
    #[error("the answer is not a JSON object: {0}")]
    NotAnObject(#[from] SyntaxError),
    /// It has no `choices`, an empty list of them, or something in the list that is no choice.
    #[error("the answer has no choices")]
    NoChoices,
}

/// The facts of one whole answer.
///
/// A value of this type says that the body is a JSON object with at least one choice, or reports an error.
#[derive(Clone, Debug)]
pub struct Answer<'a> {
    body: &'a [u8],
    /// Boxed: they are read where they stay, and not moved from hand to hand.
    facts: Box<Completion>,
}

/// The facts of an [`Answer`] without its body, for those who come back to it later.
#[derive(Clone, Debug)]
pub struct AnswerFacts {
    facts: Box<Completion>,
    length: usize,
}

impl<'a> Answer<'a> {
    /// Reads the body of a provider's 200. Which member is our own metadata is known to `patch`.
    ///
    /// # Errors
    ///
    /// The body is no answer: the provider is at fault, not the client.
    pub fn read(body: &'a [u8], patch: &Patch) -> Result<Self, AnswerError> {
        // Most are ASCII, which is seen much sooner.
        if !body.is_ascii() && std::str::from_utf8(body).is_err() {
            return Err(AnswerError::NotUtf8);
        }
        let mut facts = Box::new(Completion::new());
        facts.read(body, patch.metadata_name())?;
        let answers = !facts.choices.is_empty() && !facts.odd_choice;
        if !answers && facts.error.is_none() {
            return Err(AnswerError::NoChoices);
        }
        Ok(Self { body, facts })
    }

    /// Puts the facts aside; [`Answer::again`] takes them up.
    pub fn into_facts(self) -> AnswerFacts {
        AnswerFacts {
            length: self.body.len(),
            facts: self.facts,
        }
    }

    /// The answer that `facts` are of, without reading it a second time. `None` if the body has another length, and is not the same.
    ///
    /// It is for the caller to know that the bytes are those that were read: with others, what is written is garbage.
    pub fn again(body: &'a [u8], facts: AnswerFacts) -> Option<Self> {
        let AnswerFacts { facts, length } = facts;
        (length == body.len()).then_some(Self { body, facts })
    }

    /// The choices; empty only if there is an error.
    pub fn choices(&self) -> &[Choice] {
        &self.facts.choices
    }

    /// The `usage`, if it is there and makes sense.
    pub fn usage(&self) -> Option<Usage> {
        self.facts.usage
    }

    /// The value of a top-level `error` as JSON: some providers answer 200 and report a failure all the same.
    pub fn error(&self) -> Option<&'a [u8]> {
        self.facts.error.map(|span| span.of(self.body))
    }

    /// Bytes the model said, before escapes are undone.
    pub fn text_bytes(&self) -> usize {
        self.facts.text_bytes()
    }

    /// Bytes of pictures and sounds, as they stand in the answer.
    pub fn media_bytes(&self) -> u64 {
        self.facts.media_bytes
    }

    /// Appends what the model said, of all choices: content, thoughts, refusals, calls of tools. For counting.
    pub fn append_text(&self, out: &mut String) {
        self.facts.append_text(self.body, out);
    }

    /// Appends the answer as the client gets it.
    ///
    /// `counted` is written as the `usage` if the provider gave none that makes sense; `metadata` is the metadata
    /// object as JSON. Nothing but the members the patch is for differs from what the provider sent.
    pub fn write(
        &self,
        patch: &Patch,
        counted: Option<Usage>,
        metadata: Option<&[u8]>,
        out: &mut BytesMut,
    ) {
        let usage = match (self.facts.usage, counted) {
            (None, Some(counted)) => UsageChange::Set(counted),
            _ => UsageChange::Keep,
        };
        let change = Change {
            usage,
            no_choices: false,
            metadata,
        };
        patch.write(self.body, &self.facts, &change, None, out);
    }
}
