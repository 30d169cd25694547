//! The downstream: the client's side of an exchange, as the driver sees it.

use std::future::Future;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use tollgate_filter::{ApiError, ErrorCode};
use tollgate_memory::{MemoryUse, OverBudget};

/// The head of a response.
#[derive(Debug)]
pub struct Head {
    pub status: StatusCode,
    /// The fields, complete except for protocol fields (lengths, dates, connection).
    pub headers: HeaderMap,
    /// Whether to close the connection afterwards.
    pub close: bool,
}

/// A client.
///
/// A failed or timed out write returns [`Gone`]; no further write follows.
pub trait Downstream: Send {
    /// Reads the whole body, at most `bytes_max`, whose copies `memory` counts from now on.
    fn read_body(
        &mut self,
        bytes_max: usize,
        memory: &mut MemoryUse,
    ) -> impl Future<Output = Result<Bytes, BodyError>> + Send;

    /// The length of the body, as far as stated in the head.
    fn body_length(&mut self) -> BodyLength {
        BodyLength::Nothing
    }

    /// Reads the next piece of the body, `None` at the end, for relayed requests. May be dropped and called again.
    fn read_piece(&mut self) -> impl Future<Output = Result<Option<Bytes>, BodyError>> + Send {
        std::future::ready(Ok(None))
    }

    /// Sends a complete response.
    fn send(&mut self, head: Head, body: Bytes) -> impl Future<Output = Result<(), Gone>> + Send;

    /// Sends the head of a stream and its first bytes, if any, leaving `first` empty.
    fn start(
        &mut self,
        head: Head,
        first: &mut BytesMut,
    ) -> impl Future<Output = Result<(), Gone>> + Send;

    /// Sends more of a stream, leaving `piece` empty.
    fn write(&mut self, piece: &mut BytesMut) -> impl Future<Output = Result<(), Gone>> + Send;

    /// Sends the last bytes of a stream and ends the stream.
    fn finish(&mut self, last: &mut BytesMut) -> impl Future<Output = Result<(), Gone>> + Send;

    /// Waits until the client disconnects. May be dropped and called again.
    fn gone(&mut self) -> impl Future<Output = ()> + Send;
}

/// The length of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// No body.
    Nothing,
    /// A known number of bytes.
    Bytes(u64),
    /// Unknown until the end.
    Unknown,
}

/// The client has disconnected, or has stopped reading for too long.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the client has disconnected")]
pub struct Gone;

/// Why a request's body could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// More bytes than the route accepts.
    #[error("the body is larger than {bytes_max} bytes")]
    TooLarge {
        /// The limit.
        bytes_max: usize,
    },
    /// It timed out.
    #[error("the body did not arrive in time")]
    Timeout,
    /// Invalid framing: a bad chunk, or a wrong length.
    #[error("the body's framing is broken")]
    Malformed,
    /// No memory for the body at the moment.
    #[error("the body does not fit into the memory budget")]
    NoMemory,
    /// The client disconnected.
    #[error("the client disconnected while sending the body")]
    Gone,
}

impl From<OverBudget> for BodyError {
    fn from(_: OverBudget) -> BodyError {
        BodyError::NoMemory
    }
}

impl BodyError {
    /// The response to a client still connected.
    pub fn answer(&self) -> Option<ApiError> {
        let error = match self {
            BodyError::TooLarge { bytes_max } => ApiError::new(
                ErrorCode::BodyTooLarge,
                format!("The request body is larger than {bytes_max} bytes. Send less."),
            ),
            BodyError::Timeout => ApiError::new(
                ErrorCode::RequestTimeout,
                "The request body did not arrive in time. Send it again.",
            ),
            BodyError::Malformed => ApiError::new(
                ErrorCode::InvalidRequest,
                "The request body's framing is broken. Check Content-Length or the chunks.",
            ),
            BodyError::NoMemory => ApiError::no_memory(
                "The request body does not fit into the memory that is left at the moment.",
            ),
            BodyError::Gone => return None,
        };
        // The rest of the body is not read.
        Some(error.closing())
    }
}
