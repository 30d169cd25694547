//! The plan of a response, step by step.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};

use super::script::{Framing, Leave};
use crate::gate::Gate;

/// One step of a response.
#[derive(Clone)]
pub enum Step {
    /// Stop here until the gate is released.
    Wait(Gate),
    /// Wait for a time.
    Pause(Duration),
    /// An interim head with this status; omitted on HTTP/2.
    Informational(u16),
    /// The head.
    Head {
        /// The status.
        status: u16,
        /// Field lines, without the framing fields.
        headers: Vec<(HeaderName, HeaderValue)>,
        /// The framing of an HTTP/1.1 body.
        framing: Framing,
        /// Length of the body, for [`Framing::Length`].
        length: usize,
    },
    /// A piece of the body, sent at once.
    Piece(Bytes),
    /// A piece created when it is sent, e.g. with a time in it.
    MadePiece(Arc<dyn Fn() -> Bytes + Send + Sync>),
    /// The same piece repeatedly, each after the gate if there is one, until the peer disconnects.
    Endless(Bytes, Option<Gate>),
    /// Abort.
    Leave(Leave),
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wait(_) => f.write_str("Wait"),
            Self::Pause(time) => write!(f, "Pause({time:?})"),
            Self::Informational(status) => write!(f, "Informational({status})"),
            Self::Head { status, .. } => write!(f, "Head({status})"),
            Self::Piece(piece) => write!(f, "Piece({piece:?})"),
            Self::MadePiece(_) => f.write_str("MadePiece"),
            Self::Endless(piece, _) => write!(f, "Endless({piece:?})"),
            Self::Leave(leave) => write!(f, "Leave({leave:?})"),
        }
    }
}

/// All steps of a response; after the last one the body is ended properly.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// Split everything into writes of this many bytes.
    pub write_bytes: Option<usize>,
}

impl Plan {
    /// A response of one JSON text with status `status`.
    pub fn json(status: u16, body: Bytes) -> Self {
        Self::of(status, "application/json", Framing::Length, vec![body])
    }

    /// A stream with status 200 whose events are `events`, each with its blank line.
    pub fn events(events: impl IntoIterator<Item = Bytes>) -> Self {
        Self::of(
            200,
            "text/event-stream",
            Framing::Chunked,
            events.into_iter().collect(),
        )
    }

    fn of(status: u16, content_type: &'static str, framing: Framing, pieces: Vec<Bytes>) -> Self {
        let length = pieces.iter().map(Bytes::len).sum();
        let headers = vec![(
            http::header::CONTENT_TYPE,
            HeaderValue::from_static(content_type),
        )];
        let head = Step::Head {
            status,
            headers,
            framing,
            length,
        };
        let pieces = pieces.into_iter().map(Step::Piece);
        Self {
            steps: std::iter::once(head).chain(pieces).collect(),
            write_bytes: None,
        }
    }
}
