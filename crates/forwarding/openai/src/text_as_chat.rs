//! Protocol translation: text requests for a chat-only model become chats, and the answers are translated back.
//!
//! A text request becomes a chat for each of its prompts: the prompt is the user message, `system` is the system message. The answers
//! become a single text answer again, whose choices are numbered across the prompts: choice `c` of prompt `p` is number `p * n + c`, as in
//! the text operation.
//!
//! Features without a chat equivalent are refused rather than dropped: text after the insertion (`suffix`), the best of several answers
//! (`best_of` above `n`), the log probabilities of the prompt (`echo` with `logprobs`).

mod ask;
mod choice;
mod logprobs;
mod stream;
mod whole;

use bytes::Bytes;

use crate::json::SyntaxError;

pub use ask::ChatPlan;
pub use stream::TextStream;

/// The most prompts of a request. A prompt is a call to the provider, and the calls run concurrently.
pub const PROMPTS_MAX: usize = 16;

/// A text request as chats, and the translation of their answers.
#[derive(Clone, Debug)]
pub struct TextAsChat {
    /// The bodies of the chats, a body for each prompt, in order.
    chats: Vec<Bytes>,
    /// `n`: choices for each prompt.
    answers_each: u64,
    /// The prompts as encoded between the quotes, for a client that requests an echo before the text.
    echoed: Vec<Bytes>,
    /// The requested number of likeliest tokens at each position, if the client requests log probabilities.
    logprobs: Option<u64>,
}

/// Why the answer to a chat cannot be translated into a text answer: an error of the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TurnError {
    /// The answer's bytes are not UTF-8.
    #[error("the answer is not UTF-8")]
    NotUtf8,
    /// The answer is not a JSON object.
    #[error("the answer is not a JSON object: {0}")]
    NotAnObject(#[from] SyntaxError),
    /// The answer has no choices.
    #[error("the answer has no choices")]
    NoChoices,
    /// A choice has an index that was not requested: the index would collide with a choice of another prompt.
    #[error("the answer has a choice {index} where {asked} were asked for")]
    Index {
        /// The index.
        index: u64,
        /// Requested choices.
        asked: u64,
    },
}

impl TextAsChat {
    /// The bodies of the chats, a body for each prompt: chat requests that are not parsed yet.
    pub fn chats(&self) -> &[Bytes] {
        &self.chats
    }

    /// The number of choice `index` of prompt `prompt` in the text answer.
    fn number(&self, prompt: usize, index: u64) -> Result<u64, TurnError> {
        if index >= self.answers_each && self.chats.len() > 1 {
            return Err(TurnError::Index {
                index,
                asked: self.answers_each,
            });
        }
        Ok((prompt as u64)
            .saturating_mul(self.answers_each)
            .saturating_add(index))
    }

    fn echo(&self, prompt: usize) -> &[u8] {
        self.echoed.get(prompt).map_or(&[], |prompt| prompt)
    }
}
