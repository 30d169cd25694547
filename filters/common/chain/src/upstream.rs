//! The model provider's side of an exchange, as the driver sees it.

use std::future::Future;

use bytes::Bytes;
use tollgate_filter::{ApiError, Exchange, UpstreamFault};

/// Something that answers a [`tollgate_filter::Forward`].
pub trait Upstream: Send + Sync {
    /// A call whose answer has begun.
    type Call: UpstreamCall;

    /// Makes the call and waits for the head of a successful answer. Retries and other providers happen in here, since nothing has
    /// been sent to the client.
    fn call(
        &self,
        exchange: &mut Exchange,
    ) -> impl Future<Output = Result<Self::Call, UpstreamError>> + Send;
}

/// A successful answer on its way.
pub trait UpstreamCall: Send {
    /// Whether it is a stream of events.
    fn is_stream(&self) -> bool;

    /// The next piece, whatever its borders; `None` at the end. May be dropped and called again.
    fn read(&mut self) -> impl Future<Output = Result<Option<Bytes>, UpstreamError>> + Send;

    /// A piece that has already arrived.
    fn read_ready(&mut self) -> Option<Result<Option<Bytes>, UpstreamError>>;

    /// The answer was read to its end: the connection may serve another call. A call that is dropped instead is cut.
    fn finish(self) -> impl Future<Output = ()> + Send;
}

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[error("{detail}")]
pub struct UpstreamError {
    /// The kind.
    pub fault: UpstreamFault,
    /// What the client is told.
    pub answer: Box<ApiError>,
    /// What the log is told.
    pub detail: String,
}
