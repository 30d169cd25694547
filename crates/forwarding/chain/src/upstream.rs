//! The upstream: the model provider's side of an exchange, as the driver sees it.

use std::borrow::Cow;
use std::future::{Future, ready};
use std::pin::Pin;

use bytes::Bytes;
use tollgate_filter::{ApiError, ErrorCode, Exchange, UpstreamFault};

use crate::downstream::BodyLength;
use crate::relay_stream::RelayStream;

/// A handler of a [`tollgate_filter::Forward`].
pub trait Upstream: Send + Sync {
    /// A call whose response has started.
    type Call: UpstreamCall;

    /// Makes the call and waits for the head of a successful response. Retries and failover happen here, since nothing has been sent to the
    /// client.
    fn call(
        &self,
        exchange: &mut Exchange,
    ) -> impl Future<Output = Result<Self::Call, UpstreamError>> + Send;

    /// Opens a connection to the upstream of the exchange's [`tollgate_filter::Relay`], for a request with a body of this length. Boxed:
    /// only few exchanges need the future, and the others should not carry its size.
    fn open<'a>(&'a self, exchange: &'a mut Exchange, body: BodyLength) -> Opening<'a> {
        let _ = (exchange, body);
        let error = UpstreamError::of_relay(UpstreamFault::Unreachable, "nothing is relayed here");
        Box::pin(ready(Err(error)))
    }
}

/// A [`RelayStream`] being opened.
pub type Opening<'a> =
    Pin<Box<dyn Future<Output = Result<Box<dyn RelayStream>, UpstreamError>> + Send + 'a>>;

/// A successful response in progress.
pub trait UpstreamCall: Send {
    /// Whether the response is a stream of events.
    fn is_stream(&self) -> bool;

    /// The next piece, with arbitrary boundaries; `None` at the end. May be dropped and called again.
    fn read(&mut self) -> impl Future<Output = Result<Option<Bytes>, UpstreamError>> + Send;

    /// A piece that has already arrived.
    fn read_ready(&mut self) -> Option<Result<Option<Bytes>, UpstreamError>>;

    /// Reports that this read error has made the response incomplete: a failure of the provider. An error after a complete response is no
    /// failure.
    fn failed(&mut self, error: &UpstreamError) {
        let _ = error;
    }

    /// The response was read to the end: the connection may be reused. A dropped call is aborted.
    fn finish(self) -> impl Future<Output = ()> + Send;
}

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[error("{detail}")]
pub struct UpstreamError {
    /// The error kind.
    pub fault: UpstreamFault,
    /// The message for the client.
    pub answer: Box<ApiError>,
    /// The detail for the log.
    pub detail: String,
}

/// The client's message for a provider failure. `message` is used where the provider's own words help the client.
pub(crate) fn answer_for(fault: UpstreamFault, message: impl Into<Cow<'static, str>>) -> ApiError {
    let message = message.into();
    let text_or = |fallback: &'static str| {
        if message.is_empty() {
            Cow::Borrowed(fallback)
        } else {
            message.clone()
        }
    };
    match fault {
        UpstreamFault::Unreachable => ApiError::new(
            ErrorCode::UpstreamUnreachable,
            "The model provider cannot be reached. Try again.",
        ),
        UpstreamFault::Timeout => ApiError::new(
            ErrorCode::UpstreamTimeout,
            "The model provider took too long. Try again, or ask for less output.",
        ),
        UpstreamFault::Cut => ApiError::new(
            ErrorCode::UpstreamError,
            "The model provider stopped answering. Try again.",
        ),
        UpstreamFault::Invalid => ApiError::new(
            ErrorCode::UpstreamInvalid,
            "The model provider's answer could not be understood. Try again.",
        ),
        UpstreamFault::Error => ApiError::new(
            ErrorCode::UpstreamError,
            text_or("The model provider failed. Try again."),
        ),
        UpstreamFault::BadRequest => ApiError::new(
            ErrorCode::UpstreamRejected,
            text_or("The model provider refused this request."),
        ),
        UpstreamFault::RateLimited => ApiError::new(
            ErrorCode::RateLimitExceeded,
            "The model provider is busy. Wait and try again.",
        )
        .limit("provider"),
        UpstreamFault::Overloaded => ApiError::new(
            ErrorCode::Overloaded,
            "No provider of this model can take the request at the moment. Wait and try again.",
        ),
    }
}

/// An answer that does not fit into the memory budget.
pub fn over_budget() -> UpstreamError {
    UpstreamError {
        fault: UpstreamFault::Overloaded,
        answer: Box::new(ApiError::no_memory(
            "The answer does not fit into the memory that is left at the moment.",
        )),
        detail: String::from("the answer does not fit into the memory budget of its account"),
    }
}

impl UpstreamError {
    /// An error with the standard message for the client. `message` is used where the provider's own words help (a refusal, an error).
    pub fn new(
        fault: UpstreamFault,
        message: impl Into<Cow<'static, str>>,
        detail: impl Into<String>,
    ) -> UpstreamError {
        UpstreamError {
            fault,
            answer: Box::new(answer_for(fault, message)),
            detail: detail.into(),
        }
    }
}
