//! The full-duplex stream to an upstream on which a relayed exchange runs, with flow control.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use crate::upstream::UpstreamError;

/// A full-duplex connection to an upstream, with a request and its response streamed concurrently.
///
/// A drop aborts the call in any state.
pub trait RelayStream: Send {
    /// Sends a piece of the request's body, or its end. To be called once after each [`RelayEvent::Writable`].
    fn send(&mut self, piece: Option<Bytes>);

    /// The next event. Pieces already passed in are written meanwhile.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Result<RelayEvent, UpstreamError>>;
}

/// An event of a [`RelayStream`].
#[derive(Debug)]
pub enum RelayEvent {
    /// Everything passed in was sent, at first the head: the next piece of the body is accepted (flow control). Not reported any more after
    /// the body's end.
    Writable,
    /// The request is sent a second time: the connection had been closed before it.
    SentAgain,
    /// The head of the response; informational heads are skipped.
    Head(RelayedHead),
    /// A piece of the response's body.
    Piece(Bytes),
    /// The response is complete.
    End,
}

/// The head of an upstream's response, unchanged.
#[derive(Debug)]
pub struct RelayedHead {
    pub status: StatusCode,
    /// Every field.
    pub headers: HeaderMap,
    /// Whether a body follows.
    pub has_body: bool,
}
