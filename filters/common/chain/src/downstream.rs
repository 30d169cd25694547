//! The client's side of an exchange, as the driver sees it.

use std::future::Future;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use tollgate_filter::{ApiError, ErrorCode};

/// The head of an answer.
#[derive(Debug)]
pub struct Head {
    /// The status.
    pub status: StatusCode,
    /// The fields, complete but for what belongs to the protocol (lengths, dates, connection).
    pub headers: HeaderMap,
    /// Whether the connection should not be used again.
    pub close: bool,
}

/// A client.
///
/// A write that fails or takes too long answers [`Gone`]; nothing more is written then.
pub trait Downstream: Send {
    /// Reads the whole body, at most `bytes_max`.
    fn read_body(
        &mut self,
        bytes_max: usize,
    ) -> impl Future<Output = Result<Bytes, BodyError>> + Send;

    /// How long the body is, as far as the head tells.
    fn body_length(&mut self) -> BodyLength {
        BodyLength::Nothing
    }

    /// Reads the next piece of the body, `None` at its end, for those who pass it on as it comes. May be dropped and called again.
    fn read_piece(&mut self) -> impl Future<Output = Result<Option<Bytes>, BodyError>> + Send {
        std::future::ready(Ok(None))
    }

    /// Sends a whole answer.
    fn send(&mut self, head: Head, body: Bytes) -> impl Future<Output = Result<(), Gone>> + Send;

    /// Sends the head of a stream and its first bytes, if there are any yet, leaving `first` empty.
    fn start(
        &mut self,
        head: Head,
        first: &mut BytesMut,
    ) -> impl Future<Output = Result<(), Gone>> + Send;

    /// Sends more of a stream, leaving `piece` empty.
    fn write(&mut self, piece: &mut BytesMut) -> impl Future<Output = Result<(), Gone>> + Send;

    /// Sends the last bytes of a stream and ends it.
    fn finish(&mut self, last: &mut BytesMut) -> impl Future<Output = Result<(), Gone>> + Send;

    /// Waits until the client has gone. May be dropped and called again.
    fn gone(&mut self) -> impl Future<Output = ()> + Send;
}

/// How long a request's body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// There is none.
    Nothing,
    /// So many bytes.
    Bytes(u64),
    /// It ends where it ends.
    Unknown,
}

/// The client has left, or has stopped reading for too long.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the client has gone")]
pub struct Gone;

/// Why a request's body was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// More bytes than the route accepts.
    #[error("the body is larger than {bytes_max} bytes")]
    TooLarge {
        /// The limit.
        bytes_max: usize,
    },
    /// It did not arrive in time.
    #[error("the body did not arrive in time")]
    Timeout,
    /// Its framing is broken: a bad chunk, a length that does not hold.
    #[error("the body's framing is broken")]
    Malformed,
    /// The client left.
    #[error("the client left while sending the body")]
    Gone,
}

impl BodyError {
    /// What the client is told, if it is still there.
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
            BodyError::Gone => return None,
        };
        // What is left of the body is not worth reading.
        Some(error.closing())
    }
}
