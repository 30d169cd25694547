#![doc = include_str!("../README.md")]

mod completion;
pub mod contract;
mod deciding;
mod json;
mod number;
mod object;
mod patch;
mod splice;
mod string;
mod template;
mod word;

pub mod answer;
pub mod chunk;
pub mod count;
pub mod edit;
pub mod envelope;
pub mod event;
pub mod family;
pub mod head;
pub mod metadata;
pub mod progress;
pub mod provider_error;
pub mod request;
pub mod stored;
pub mod text_as_chat;
pub mod usage;

pub use answer::{Answer, AnswerError, AnswerFacts};
pub use chunk::{Chunk, ChunkError, ChunkReader};
pub use completion::{Choice, FinishReason};
pub use edit::BodyEdit;
pub use envelope::ErrorEnvelope;
pub use event::{Event, EventCutter, EventTooLarge, Events, Tail};
pub use family::Family;
pub use head::AnswerHead;
pub use json::SyntaxError;
pub use metadata::Metadata;
pub use object::{ObjectEdit, ObjectError};
pub use patch::Patch;
pub use progress::Progress;
pub use provider_error::ProviderError;
pub use request::{CompletionRequest, Parts, RequestError, RequestErrorCode, is_same_but_for_case};
pub use stored::{Accumulator, ReplayEvents, Stamp, StoredAnswer, StoredError};
pub use text_as_chat::{TextAsChat, TextStream, TurnError};
pub use usage::Usage;
