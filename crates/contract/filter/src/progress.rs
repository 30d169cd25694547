//! The progress of an upstream's response: completeness, faults and token usage.

use std::any::Any;
use std::fmt;

use crate::UpstreamFault;

/// State of the response, from the filter that parses it. Put on the exchange in `on_request`, updated in `on_event`, read by the driver.
#[derive(Clone, Debug, Default)]
pub struct AnswerProgress {
    /// Every requested choice has its finish reason, so a stream that ends now is complete even without `[DONE]`.
    pub finished: bool,
    /// A choice has begun, and every one that has begun has its finish reason: with `[DONE]` the stream is complete. Less than `finished`
    /// where a provider sends fewer choices than were requested.
    pub ended: bool,
    /// Each of them ended by itself, none at a limit on its tokens: a higher limit would not have changed the response.
    pub stopped: bool,
    /// Why a complete response is none for later requests.
    pub unfit: Option<Unfit>,
    /// The response's defect, if any: the driver stops and sends an error, or ends the stream with one.
    pub fault: Option<AnswerFault>,
    /// Set by the driver once the client has disconnected: the rest is read for its usage and sent to no client.
    pub client_gone: bool,
    /// Set by the driver where the provider has neither sent `[DONE]` nor closed the response properly. A response that is complete without
    /// either is charged, and never stored for other requests.
    pub unclosed: bool,
}

/// Why a complete response is not kept for later requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// A choice broke off, or was withheld, by its finish reason; or it has none.
    Incomplete,
    /// A choice has no output.
    Empty,
    /// A member is in it twice, of which a client may have the one or the other.
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

/// The statements of an answer about itself, for the trace of its request. Put on the exchange of a traced request, and filled by the filter
/// that parses the response when its choices have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerIdentity {
    /// The provider's id of the answer.
    pub id: Option<String>,
    /// The model that the provider says has answered.
    pub model: Option<String>,
    /// Of each choice that has one.
    pub finish_reasons: Vec<&'static str>,
}

/// The usage of a response so far. Put on the exchange in `on_request` and updated in `on_event` by the filter that parses the response,
/// read in `before_tail` by the one that charges for it.
#[derive(Debug, Default)]
pub struct AnswerUsage {
    /// The last usage reported by the provider.
    pub reported: Option<Tokens>,
    /// The text of the response, all choices joined: counted when no usage was reported.
    pub text: String,
    /// Bytes of images and audio in the response, as encoded in it.
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

/// A visitor that copies a stream while it passes. Put into [`AnswerUsage`] by a filter that does not parse responses itself.
pub trait AnswerCopy: Any + fmt::Debug + Send + Sync {
    /// The data of one event, other than `[DONE]`. Synchronous and cheap.
    fn event(&mut self, data: &[u8]);
}

/// Tokens of one exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Input tokens.
    pub prompt: u64,
    /// Output tokens, over all choices.
    pub completion: u64,
}
