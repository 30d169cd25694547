//! Text requests for a model that only chats: asked as chats, and the answers turned back.
//!
//! A text request becomes one chat for each of its prompts: the prompt is what the user says, `system` is the system
//! message. The answers become one text answer again, whose choices count through all prompts: choice `c` of prompt `p`
//! is number `p * n + c`, which is how the operation numbers them itself.
//!
//! What a chat cannot do is refused rather than left out: text after the insertion (`suffix`), the best of several
//! answers (`best_of` above `n`), the log probabilities of the prompt (`echo` with `logprobs`).

mod ask;
mod choice;
mod logprobs;
mod stream;
mod whole;

use bytes::Bytes;

use crate::json::SyntaxError;

pub use stream::TextStream;

/// Most prompts of one request: each of them is a call to the provider, and all run at the same time.
pub const PROMPTS_MAX: usize = 16;

/// A text request in the form of chats, and how their answers become its answer.
#[derive(Clone, Debug)]
pub struct TextAsChat {
    /// The bodies of the chats, one for each prompt, in order.
    chats: Vec<Bytes>,
    /// `n`: choices for each prompt.
    answers_each: u64,
    /// The prompts as they stand between the quotes, where the client wants them before the text.
    echoed: Vec<Bytes>,
    /// How many of the likeliest tokens the client wants at each place, if it wants log probabilities at all.
    logprobs: Option<u64>,
}

/// Why the answer to a chat cannot be turned into a text answer: the provider is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TurnError {
    /// Its bytes are not UTF-8.
    #[error("the answer is not UTF-8")]
    NotUtf8,
    /// It is not a JSON object.
    #[error("the answer is not a JSON object: {0}")]
    NotAnObject(#[from] SyntaxError),
    /// A choice has a number that the request did not ask for: it would be taken for one of another prompt.
    #[error("the answer has a choice {index} where {asked} were asked for")]
    Index {
        /// The number.
        index: u64,
        /// Choices asked for.
        asked: u64,
    },
}

impl TextAsChat {
    /// The bodies of the chats, one for each prompt: chat requests that have yet to be read.
    pub fn chats(&self) -> &[Bytes] {
        &self.chats
    }

    /// The number that choice `index` of prompt `prompt` has in the text answer.
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
