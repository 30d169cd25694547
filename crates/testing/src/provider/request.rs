//! A received request, and the properties of it that a script can match.

use bytes::Bytes;
use http::HeaderMap;

/// A request as passed to a [`super::Custom`] handler.
#[derive(Clone, Debug)]
pub struct Request {
    /// The method, as sent.
    pub method: String,
    /// The request target without its query.
    pub path: String,
    /// Field lines by name.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// A complete request.
pub(super) struct Arrived {
    pub(super) protocol: &'static str,
    pub(super) target: String,
    pub(super) raw_head: Bytes,
    pub(super) connection: usize,
    pub(super) reused: bool,
    pub(super) request: Request,
}

/// The properties of a request that a script can match.
pub(super) struct Seen<'a> {
    pub(super) path: &'a str,
    pub(super) json: Option<&'a serde_json::Value>,
    /// The connection carried a request before.
    pub(super) reused: bool,
}
