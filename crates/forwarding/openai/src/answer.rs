//! The parser and rewriter of whole answers: the facts of an answer, and its form for the client.

use bytes::BytesMut;

use crate::completion::{Choice, Completion, Tracked};
use crate::json::scan::Bytes;
use crate::json::{Kind, Reader, SyntaxError};
use crate::patch::{Change, Patch, UsageChange};
use crate::splice::Layout;
use crate::template::{self, Template};
use crate::usage::Usage;

/// Why a body is not an answer to a completion request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// The answer's bytes are not UTF-8.
    #[error("the answer is not UTF-8")]
    NotUtf8,
    /// The answer is not a JSON object.
    #[error("the answer is not a JSON object: {0}")]
    NotAnObject(#[from] SyntaxError),
    /// The answer has no `choices`, an empty list of choices, or an item that is not a choice.
    #[error("the answer has no choices")]
    NoChoices,
}

/// Whether a body is a single JSON object from its first to its last byte: no byte of the body can be missing, whatever became of the
/// connection.
pub fn is_whole(body: &[u8]) -> bool {
    let mut reader = Reader::new(body);
    reader.kind() == Ok(Kind::Object) && reader.skip().is_ok() && reader.end().is_ok()
}

/// The facts of a whole answer.
///
/// A value of this type guarantees that the body is a JSON object with at least a choice, or reports an error.
#[derive(Debug)]
pub struct Answer<'a> {
    body: &'a [u8],
    /// The facts, in a reused allocation. Present until the answer is dropped.
    template: Option<Box<Template>>,
}

/// The facts needed to write an [`Answer`] later, without its body.
#[derive(Clone, Debug)]
pub struct AnswerFacts {
    layout: Layout<Tracked>,
    /// The usage that a client finds in the answer.
    shown: Option<Usage>,
    length: usize,
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        if let Some(template) = self.template.take() {
            template::recycle(template);
        }
    }
}

impl<'a> Answer<'a> {
    /// Parses the body of a provider's 200. `patch` has the name of our metadata member.
    ///
    /// # Errors
    ///
    /// The body is not an answer: an error of the provider, not of the client.
    pub fn read(body: &'a [u8], patch: &Patch) -> Result<Self, AnswerError> {
        let bytes = Bytes::of(body);
        // Most bodies are ASCII, and the check for ASCII is faster.
        if !bytes.ascii && std::str::from_utf8(body).is_err() {
            return Err(AnswerError::NotUtf8);
        }
        let (template, read) = template::read(body, bytes, patch.family(), patch.metadata_name());
        let facts = &template.facts;
        let is_answer = !facts.choices.is_empty() && !facts.odd_choice || facts.error.is_some();
        let answer = Self {
            body,
            template: Some(template),
        };
        read?;
        if is_answer {
            Ok(answer)
        } else {
            Err(AnswerError::NoChoices)
        }
    }

    fn completion(&self) -> Option<&Completion> {
        self.template.as_ref().map(|template| &template.facts)
    }

    /// The facts for writing the answer later, without a second parse.
    pub fn facts(&self) -> AnswerFacts {
        let facts = self.completion();
        AnswerFacts {
            layout: facts.map_or_else(Layout::new, |facts| facts.layout.clone()),
            shown: self.completion().and_then(|facts| facts.usage.shown()),
            length: self.body.len(),
        }
    }

    /// The choices; empty only for an answer with an error.
    pub fn choices(&self) -> &[Choice] {
        self.completion().map_or(&[], |facts| &facts.choices)
    }

    /// Whether an object has a member twice. Clients may read the first or the second value.
    pub fn has_duplicates(&self) -> bool {
        self.completion().is_some_and(|facts| facts.duplicates)
    }

    /// The `usage`, if present and valid.
    pub fn usage(&self) -> Option<Usage> {
        self.completion()?.usage.usage
    }

    /// The value of a top-level `error` as JSON: some providers report a failure with status 200.
    pub fn error(&self) -> Option<&'a [u8]> {
        self.completion()?.error.map(|span| span.of(self.body))
    }

    /// Bytes of generated text, before escapes are decoded.
    pub fn text_bytes(&self) -> usize {
        self.completion().map_or(0, Completion::text_bytes)
    }

    /// Bytes of pictures and sounds, as encoded in the answer.
    pub fn media_bytes(&self) -> u64 {
        self.completion().map_or(0, |facts| facts.media_bytes)
    }

    /// Appends the generated text of every choice: content, reasoning, refusals, tool calls. For token counting.
    pub fn append_text(&self, out: &mut String) {
        if let Some(facts) = self.completion() {
            facts.append_text(self.body, out);
        }
    }
}

impl AnswerFacts {
    /// Appends the client's form of the answer with these facts. Appends nothing if `body` has another length.
    ///
    /// `charged` is the usage that the client pays for: where the answer has another usage or no usage, the counts of `charged` are written
    /// into the `usage`. `metadata` is the metadata object as JSON. Only the members of the patch differ from the provider's bytes.
    ///
    /// The caller guarantees that `body` has the parsed bytes: with other bytes, the output is garbage.
    pub fn write(
        &self,
        body: &[u8],
        patch: &Patch,
        charged: Option<Usage>,
        metadata: Option<&[u8]>,
        out: &mut BytesMut,
    ) -> bool {
        let change = Change {
            usage: UsageChange::to(charged, self.shown),
            choices: None,
            metadata,
        };
        let same = self.length == body.len();
        if same {
            patch.write(body, &self.layout, &change, None, out);
        }
        same
    }
}
