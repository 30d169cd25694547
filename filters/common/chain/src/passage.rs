//! The upstream's side of a relayed exchange, as the driver sees it.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use crate::upstream::UpstreamError;

/// A way to an upstream on which a request and its answer go at the same time, in pieces.
///
/// Dropping it cuts the call, whatever is under way.
pub trait Passage: Send {
    /// Hands over a piece of the request's body, or its end. To be called once after each [`Heard::Room`].
    fn send(&mut self, piece: Option<Bytes>);

    /// What happens next. Pieces that were handed over are written meanwhile.
    fn poll_hear(&mut self, cx: &mut Context<'_>) -> Poll<Result<Heard, UpstreamError>>;
}

/// What happened on a [`Passage`].
#[derive(Debug)]
pub enum Heard {
    /// All that was handed over has left, the head at first: there is room for more of the body. Not told any more after its end.
    Room,
    /// The head of the answer; informational ones are passed over.
    Head(RelayedHead),
    /// A piece of the answer's body.
    Piece(Bytes),
    /// The answer is over.
    End,
}

/// The head of an upstream's answer, as it came.
#[derive(Debug)]
pub struct RelayedHead {
    /// The status.
    pub status: StatusCode,
    /// Every field.
    pub headers: HeaderMap,
    /// Whether a body follows.
    pub has_body: bool,
}
