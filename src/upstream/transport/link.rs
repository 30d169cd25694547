//! The connection of a call: a socket of our own, or a connection of Pingora's connector, with one classification of errors.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use pingora_core::protocols::http::client::HttpSession;
use pingora_core::upstreams::peer::HttpPeer;
use tokio::net::TcpStream;
use tollgate_chain::UpstreamError;

use super::fault;
use super::h1;

/// A connection that carries a call.
pub(super) enum Link {
    /// HTTP/1.1 on a socket of our own.
    Plain(h1::Connection<TcpStream>, SocketAddr),
    /// Through Pingora's connector: TLS, HTTP/2, or both.
    Pooled(Box<HttpSession>, Arc<HttpPeer>),
}

impl Link {
    pub(super) async fn read_body(&mut self) -> Result<Option<Bytes>, UpstreamError> {
        match self {
            Link::Plain(connection, _) => {
                let piece = connection.read().await;
                piece.map_err(|error| plain_error(&error))
            }
            Link::Pooled(session, _) => {
                let piece = session.read_response_body().await;
                piece.map_err(|error| pooled_error(&error))
            }
        }
    }
}

/// Classifies an error on a plain connection.
pub(super) fn plain_error(error: &h1::Error) -> UpstreamError {
    match error {
        h1::Error::Unanswered(_) | h1::Error::Cut(_) => fault::cut(error),
        h1::Error::Invalid(_) => fault::invalid(format!("the answer is not HTTP: {error}")),
    }
}

/// Classifies an error of Pingora's connector.
pub(super) fn pooled_error(error: &pingora_core::Error) -> UpstreamError {
    if *error.etype() == pingora_core::ErrorType::InvalidHTTPHeader {
        return fault::invalid(format!("the answer is not HTTP: {error}"));
    }
    fault::cut(error)
}
