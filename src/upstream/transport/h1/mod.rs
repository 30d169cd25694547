//! HTTP/1.1 client on a plain socket: one request at a time, answers without copying.
//!
//! Most model providers are in the gateway's network and are called without TLS. Such a call is little more than two system calls. The
//! additional work of a general client costs more than both: header maps, names in their original case, a 64 KiB buffer for each answer.
//! This client writes a head prepared before the request, searches the head of the answer for the few relevant fields, and returns the body
//! as slices of the read buffer.
//!
//! The client is strict where two implementations could read an answer differently (RFC 9112 section 6.3): ambiguous framing is an error.
//!
//! Hyper's client (`client::conn::http1`, hyper 1.12.0, polled by the task that reads the answer) was tried behind this interface and
//! passes `tests.rs`, with an adapter of 740 lines; this client has 816. Hyper was rejected because of cost:
//!
//! - instructions for a completion of 1 KB: 21,200 against 6,300. The difference is 18 % of the gateway's 82,700. A stream of 53 events
//!   takes 158,000 more (callgrind; both figures include a pipe and the provider at its other end, equal in both);
//! - memory of a silent stream: 28.7 KB against 6.1, both with the sockets of both ends, 24.6 with hyper's read buffer at 4 KB. The
//!   difference is more than half of the gateway's 41 KB. Each connection has buffers of 8 KB for reading and for writing, and a channel
//!   with room for 32 requests.
//!
//! Without the adapter's additions four of the eight tests fail: hyper accepts `Transfer-Encoding: gzip, chunked`, reuses a connection
//! after an answer with both framings, rejects an answer before the end of the request's write, and does not report whether the request was
//! written before an early answer. Two defects have no test there. A refusal is lost if a write fails before the refusal is read. And one
//! error covers two cases, a close before the answer and a close within the head, though only the distinction decides about a repetition of
//! the call. With the adapter, too, the digits of a chunk size are unlimited, and chunk extensions of more than 16 KB in one body are an
//! error.

mod body;
mod fuzz;
mod head;
mod streamed;
#[cfg(test)]
mod tests;

use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use super::request::RequestIds;

use self::body::Framing;
pub(crate) use self::fuzz::answer as fuzz_answer;
pub(super) use self::head::{Head, Heads, is_coded};
pub(super) use self::streamed::{RequestFraming, Step, Streamed};

/// Buffer space for a read while the remaining length is unknown.
const READ_BYTES: usize = 4 * 1024;

/// Space is reserved only below this remainder: the returned slices share their allocation with the space.
const SPARE_BYTES_MIN: usize = 1024;

/// The most space reserved at once, also where an answer declares more.
const READ_BYTES_MAX: usize = 64 * 1024;

/// A body up to this size is written in one piece with its head: a copy costs less than a second buffer for the kernel.
const JOINED_BYTES_MAX: usize = 16 * 1024;

/// Larger buffers are not kept while a connection is idle.
const IDLE_BYTES_MAX: usize = 8 * 1024;

/// Why an exchange on a connection failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// Closed or broken before a byte of an answer: if the connection had been used before, the provider has not seen the request.
    #[error("closed before it answered: {0}")]
    Unanswered(io::Error),
    /// Broken in the middle of an answer.
    #[error("{0}")]
    Cut(io::Error),
    /// The data received is no HTTP/1.1 answer.
    #[error("{0}")]
    Invalid(&'static str),
}

/// A connection to a provider.
pub(super) struct Connection<S> {
    socket: S,
    /// Data that was read and not yet returned.
    input: BytesMut,
    /// Whether the buffer has grown beyond the size kept while idle.
    is_grown: bool,
    /// Head, and body if it is short, to be written; kept for the next call.
    output: Vec<u8>,
    framing: Framing,
    /// Whether the connection may carry another call once this answer has been read.
    is_persistent: bool,
    /// Whether any byte of the answer was received: the provider has seen the request.
    is_answering: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(super) fn new(socket: S) -> Connection<S> {
        Connection {
            socket,
            input: BytesMut::new(),
            is_grown: false,
            output: Vec::new(),
            framing: Framing::Done,
            is_persistent: true,
            is_answering: false,
        }
    }

    /// Sends a request and reads the head of the answer; informational heads are ignored (RFC 9110 section 15.2).
    ///
    /// The answer is read during the write of the body: a provider may refuse a long body before reading the whole.
    pub(super) async fn send_request(
        &mut self,
        head: RequestHead<'_>,
        body: &Bytes,
    ) -> Result<Head, Error> {
        self.output.clear();
        self.is_answering = false;
        head.heads.write(&mut self.output, &head, body.len());
        let joined = body.len() <= JOINED_BYTES_MAX;
        if joined {
            self.output.extend_from_slice(body);
        }
        let rest: &[u8] = if joined { &[] } else { body };
        let (mut written, total) = (0, self.output.len() + rest.len());
        let mut write_error = None;
        poll_fn(|cx| {
            while written < total && write_error.is_none() {
                let first = self.output.len();
                let piece = if written < first {
                    &self.output[written..]
                } else {
                    &rest[written - first..]
                };
                match Pin::new(&mut self.socket).poll_write(cx, piece) {
                    Poll::Ready(Ok(0)) => write_error = Some(io::ErrorKind::WriteZero.into()),
                    Poll::Ready(Ok(count)) => written += count,
                    // The request may have been refused, and the refusal can be read.
                    Poll::Ready(Err(error)) => write_error = Some(error),
                    Poll::Pending => break,
                }
            }
            let answer = ready!(self.poll_head(cx));
            if written < total {
                self.is_persistent = false;
                if let Ok(head) = &answer
                    && head.status.is_success()
                {
                    // The rest would have to be written during the read, for a provider that answers before the end of the request.
                    return Poll::Ready(Err(Error::Invalid(
                        "the answer arrived before the request was written",
                    )));
                }
            }
            Poll::Ready(answer.map_err(|error| match (error, write_error.take()) {
                (Error::Unanswered(_), Some(error)) => Error::Unanswered(error),
                (error, _) => error,
            }))
        })
        .await
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Head, Error>> {
        self.poll_head_with(cx, |_| {})
    }

    /// As [`Connection::poll_head`]; `inspect` receives the bytes of the returned head.
    fn poll_head_with(
        &mut self,
        cx: &mut Context<'_>,
        inspect: impl FnOnce(&[u8]),
    ) -> Poll<Result<Head, Error>> {
        loop {
            if !self.input.is_empty()
                && let Some((head, length)) = head::parse(&self.input).map_err(Error::Invalid)?
            {
                if head.is_informational() {
                    let _ = self.input.split_to(length);
                    self.is_answering = true;
                    continue;
                }
                inspect(&self.input[..length]);
                let _ = self.input.split_to(length);
                self.framing = head.framing;
                self.is_persistent &=
                    head.is_persistent && !matches!(head.framing, Framing::UntilClose);
                return Poll::Ready(Ok(head));
            }
            match ready!(self.poll_fill(cx, READ_BYTES)) {
                Ok(0) if self.input.is_empty() && !self.is_answering => {
                    let error = io::ErrorKind::UnexpectedEof.into();
                    return Poll::Ready(Err(Error::Unanswered(error)));
                }
                Ok(0) => {
                    let error = io::ErrorKind::UnexpectedEof.into();
                    return Poll::Ready(Err(Error::Cut(error)));
                }
                Ok(_) => {}
                Err(error) if self.input.is_empty() && !self.is_answering => {
                    return Poll::Ready(Err(Error::Unanswered(error)));
                }
                Err(error) => return Poll::Ready(Err(Error::Cut(error))),
            }
        }
    }

    /// The next piece of the answer's body, `None` at the end.
    pub(super) async fn read(&mut self) -> Result<Option<Bytes>, Error> {
        poll_fn(|cx| self.poll_read(cx)).await
    }

    /// As [`Connection::read`], to poll for available data.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Error>> {
        loop {
            if let Some(piece) = self.framing.take(&mut self.input).map_err(Error::Invalid)? {
                return Poll::Ready(Ok(Some(piece)));
            }
            if matches!(self.framing, Framing::Done) {
                return Poll::Ready(Ok(None));
            }
            let space = self.framing.bytes_left().clamp(READ_BYTES, READ_BYTES_MAX);
            match ready!(self.poll_fill(cx, space)) {
                Ok(0) if matches!(self.framing, Framing::UntilClose) => {
                    self.framing = Framing::Done;
                }
                Ok(0) => {
                    let error = io::ErrorKind::UnexpectedEof.into();
                    return Poll::Ready(Err(Error::Cut(error)));
                }
                Ok(_) => {}
                Err(error) => return Poll::Ready(Err(Error::Cut(error))),
            }
        }
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>, space: usize) -> Poll<io::Result<usize>> {
        if self.input.capacity() - self.input.len() < space.min(SPARE_BYTES_MIN) {
            self.input.reserve(space);
            self.is_grown |= space > IDLE_BYTES_MAX;
        }
        // The future holds only the two references, so a new future for each poll loses no data.
        pin!(self.socket.read_buf(&mut self.input)).poll(cx)
    }

    /// Prepares the connection for another call; `None` if impossible: the answer was not read to the end, more bytes were received than
    /// the answer's, or either side declared the call the last.
    pub(super) fn keep(mut self) -> Option<Connection<S>> {
        let is_read = matches!(self.framing, Framing::Done) && self.input.is_empty();
        if !self.is_persistent || !is_read {
            return None;
        }
        if self.is_grown {
            self.input = BytesMut::new();
            self.is_grown = false;
        }
        if self.output.capacity() > IDLE_BYTES_MAX {
            self.output = Vec::new();
        }
        Some(self)
    }

    /// Whether nothing has been received or closed on an idle connection. Unsolicited data is never part of an answer.
    pub(super) fn is_reusable(&mut self) -> bool {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        self.poll_fill(&mut cx, 1).is_pending()
    }
}

/// Selects a prepared head for a request.
#[derive(Clone, Copy)]
pub(super) struct RequestHead<'a> {
    pub(super) heads: &'a Heads,
    /// The path below the provider's base address.
    pub(super) path: &'a str,
    /// Whether the answer is to be an event stream.
    pub(super) stream: bool,
    /// The client's address, if sent to the provider.
    pub(super) client: Option<IpAddr>,
    /// The ids of the request, if sent to the provider.
    pub(super) ids: Option<&'a RequestIds>,
}
