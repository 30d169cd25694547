//! How far an upstream's answer has come.

use std::any::Any;
use std::fmt;

use crate::UpstreamFault;

/// What the filter that understands the answer says about it. Put on the exchange in `on_request`, kept current in `on_event`, read
/// by the driver.
#[derive(Clone, Debug, Default)]
pub struct AnswerProgress {
    /// Every choice has its finish reason, so a stream that ends now is whole even without `[DONE]`.
    pub finished: bool,
    /// What is wrong with the answer, if anything: the driver stops and answers with an error, or ends the stream with one.
    pub fault: Option<AnswerFault>,
    /// Set by the driver once the client has left: what comes from now on is heard for its usage and reaches nobody.
    pub client_gone: bool,
}

/// Something wrong in an answer that looked well from outside.
#[derive(Clone, Debug)]
pub struct AnswerFault {
    /// The kind.
    pub fault: UpstreamFault,
    /// What the client is told; cleaned, and without anything about the provider.
    pub message: String,
    /// What the log is told.
    pub detail: String,
}

/// What an answer has used so far. Put on the exchange in `on_request` and kept current in `on_event` by the filter that understands
/// the answer, read in `before_tail` by the one that charges for it.
#[derive(Debug, Default)]
pub struct AnswerUsage {
    /// What the provider reported last.
    pub reported: Option<Tokens>,
    /// The text of the answer, all choices joined: what is counted when nothing was reported.
    pub text: String,
    /// Bytes of pictures and sounds in the answer, as they stand in it.
    pub media_bytes: u64,
    /// Someone who wants every event of a stream as the client's operation has it, before the gateway's own changes.
    pub copy: Option<Box<dyn AnswerCopy>>,
}

impl AnswerUsage {
    /// Whether the model has put out nothing: neither text nor anything else.
    pub fn is_silent(&self) -> bool {
        self.text.is_empty() && self.media_bytes == 0
    }
}

/// Someone who makes a copy of a stream while it passes. Put into [`AnswerUsage`] by a filter that does not read answers itself.
pub trait AnswerCopy: Any + fmt::Debug + Send + Sync {
    /// The data of one event, other than `[DONE]`. Synchronous and cheap.
    fn event(&mut self, data: &[u8]);
}

/// Tokens of one exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Read by the model.
    pub prompt: u64,
    /// Written by the model, over all choices.
    pub completion: u64,
}
