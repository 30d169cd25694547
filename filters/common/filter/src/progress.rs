//! How far an upstream's answer has come.

use crate::UpstreamFault;

/// What the filter that understands the answer says about it. Put on the exchange in `on_request`, kept current in `on_event`, read
/// by the driver.
#[derive(Clone, Debug, Default)]
pub struct AnswerProgress {
    /// Every choice has its finish reason, so a stream that ends now is whole even without `[DONE]`.
    pub finished: bool,
    /// What is wrong with the answer, if anything: the driver stops and answers with an error, or ends the stream with one.
    pub fault: Option<AnswerFault>,
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
