//! The gateway's own API, called in process by its pages.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use secrecy::SecretString;
use tollgate_filter::ClientAddress;

/// One request to the API.
#[derive(Debug)]
pub struct InProcessRequest {
    /// Path of the operation.
    pub path: &'static str,
    /// The bearer credential.
    pub bearer: SecretString,
    pub idempotency_key: String,
    /// The body, JSON.
    pub body: Bytes,
    /// Client address of the person who sent the form.
    pub client: ClientAddress,
}

/// The result of a chat request.
#[derive(Clone, Debug)]
pub struct InProcessResponse {
    pub status: StatusCode,
    /// The body, JSON.
    pub body: Bytes,
    /// Time until the complete response.
    pub took: Duration,
}

/// A pending response; `None` if the gateway could not complete the request.
pub type InProcessFuture<'a> = Pin<Box<dyn Future<Output = Option<InProcessResponse>> + Send + 'a>>;

/// The API without a socket: the complete filter chain of the route, with limits, charging and cache. Dropping the future cancels the
/// request, as a closed client connection does.
pub trait InProcessApi: Send + Sync {
    /// Sends a request and returns the complete, unstreamed response.
    fn call(&self, call: InProcessRequest) -> InProcessFuture<'_>;
}
