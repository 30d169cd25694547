//! The progress of an upstream's response: completeness, faults and token usage.

use std::any::Any;
use std::fmt;

use crate::UpstreamFault;

/// State of the response, from the filter that parses the response. Put on the exchange in `on_request`, updated in `on_event`, read by the
/// driver.
#[derive(Clone, Debug, Default)]
pub struct AnswerProgress {
    /// Every requested choice has its finish reason: a stream that ends now is complete even without `[DONE]`.
    pub finished: bool,
    /// A choice has begun, and every begun choice has its finish reason: with `[DONE]` the stream is complete. Weaker than `finished` where
    /// a provider sends fewer choices than requested.
    pub ended: bool,
    /// Every choice ended by itself, no choice at a limit on its tokens: a higher limit would not have changed the response.
    pub stopped: bool,
    /// Why a complete response is unfit for later requests.
    pub unfit: Option<Unfit>,
    /// The response's defect, if any: the driver stops and sends an error, or ends the stream with an error.
    pub fault: Option<AnswerFault>,
    /// Set by the driver once the client has disconnected: the rest is read for its usage and sent to no client.
    pub client_gone: bool,
    /// Set by the driver where the provider has neither sent `[DONE]` nor closed the response properly. A response that is complete without
    /// a proper end is charged, and never stored for other requests.
    pub unclosed: bool,
}

/// Why a complete response is not kept for later requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// A choice broke off, was withheld by its finish reason, or has no finish reason.
    Incomplete,
    /// A choice has no output.
    Empty,
    /// A repeated member: a client may read the first or the second value.
    Ambiguous,
}

/// A defect in the content of a response.
#[derive(Clone, Debug)]
pub struct AnswerFault {
    /// The kind.
    pub fault: UpstreamFault,
    /// The message for the client; sanitised, and without anything about the provider.
    pub message: String,
    /// The detail for the log.
    pub detail: String,
}

/// The statements of an answer about itself, for the trace of its request. Put on the exchange of a traced request. The filter that parses
/// the response fills the fields when the choices have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerIdentity {
    /// The provider's id of the answer.
    pub id: Option<String>,
    /// The answering model, as reported by the provider.
    pub model: Option<String>,
    /// Of every choice with a finish reason.
    pub finish_reasons: Vec<&'static str>,
}

/// The usage of a response so far. Put on the exchange in `on_request` and updated in `on_event` by the filter that parses the response.
/// Read in `before_tail` by the filter that charges for the response.
#[derive(Debug, Default)]
pub struct AnswerUsage {
    /// The last usage reported by the provider.
    pub reported: Option<Tokens>,
    /// The text of the response, all choices joined. Counted when no usage was reported.
    pub text: String,
    /// Bytes of images and audio in the response, as encoded in the response.
    pub media_bytes: u64,
    /// A visitor of every event of a stream in the client's operation, before the gateway's own changes.
    pub copy: Option<Box<dyn AnswerCopy>>,
}

impl AnswerUsage {
    /// Whether the model has produced no output, neither text nor anything else.
    pub fn is_silent(&self) -> bool {
        self.text.is_empty() && self.media_bytes == 0
    }
}

/// A visitor that copies a passing stream. Put into [`AnswerUsage`] by a filter that does not parse responses itself.
pub trait AnswerCopy: Any + fmt::Debug + Send + Sync {
    /// The data of an event, other than `[DONE]`. Synchronous and cheap.
    fn event(&mut self, data: &[u8]);
}

/// Tokens of an exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Input tokens.
    pub prompt: u64,
    /// Output tokens, over all choices.
    pub completion: u64,
}
