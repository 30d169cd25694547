//! The gateway's own API, called from its pages.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tollgate_filter::ClientAddress;
use tollgate_identity::Secret;

/// One request to the API.
#[derive(Debug)]
pub struct InProcessRequest {
    /// The path of the operation.
    pub path: &'static str,
    /// The credential, as a client would send it.
    pub bearer: Secret,
    /// What makes it the same request when it is sent again.
    pub idempotency_key: String,
    /// The body, JSON.
    pub body: Bytes,
    /// The address of the person in whose name it is sent.
    pub client: ClientAddress,
}

/// What the API answered.
#[derive(Clone, Debug)]
pub struct InProcessResponse {
    /// The status.
    pub status: StatusCode,
    /// The body, JSON.
    pub body: Bytes,
    /// How long it took.
    pub took: Duration,
}

/// An answer on its way; `None` when the gateway could not take the request to its end.
pub type InProcessFuture<'a> = Pin<Box<dyn Future<Output = Option<InProcessResponse>> + Send + 'a>>;

/// The API without a socket: the whole chain of the operation's route, with its limits, its charge and its cache. Whoever stops waiting
/// has left, as a client that closes its connection.
pub trait InProcessApi: Send + Sync {
    /// Sends a request for a whole answer.
    fn call(&self, call: InProcessRequest) -> InProcessFuture<'_>;
}
