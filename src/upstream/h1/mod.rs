//! A small HTTP/1.1 client on a plain socket: one request at a time, answers without copying.
//!
//! Most model providers stand in the next rack and are spoken to without TLS. There a call is little more than two system calls, and what a
//! general client does beside them (header maps, names in their original case, a 64 KiB buffer for each answer) costs more than both. This
//! one writes a head that was ready before the request came, looks for the few fields that matter in the head of the answer, and hands out
//! the body as slices of what it has read.
//!
//! It is strict where two programs could read an answer differently (RFC 9112 section 6.3): what is not plainly framed is an error.

mod body;
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

use self::body::Framing;
pub(super) use self::head::{Head, Heads};
pub(super) use self::streamed::{Framed, Step, Streamed};

/// Room made for a read while it is not known how much there is to come.
const READ_BYTES: usize = 4 * 1024;

/// Room is only made when less than this is left: the pieces handed out share their allocation with it.
const SPARE_BYTES_MIN: usize = 1024;

/// The most room made at once, however long an answer says it is.
const READ_BYTES_MAX: usize = 64 * 1024;

/// A body that is no longer is written in one piece with its head: a copy costs less than a second buffer for the kernel to look at.
const JOINED_BYTES_MAX: usize = 16 * 1024;

/// Buffers that have grown larger are not kept while a connection is idle.
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
    /// What came is not an answer in HTTP/1.1.
    #[error("{0}")]
    Invalid(&'static str),
}

/// A connection to a provider.
pub(super) struct Connection<S> {
    socket: S,
    /// What was read and not yet handed out.
    input: BytesMut,
    /// Whether an allocation for it was larger than one that is kept while idle.
    is_grown: bool,
    /// Head, and body if it is short, on their way out; kept for the next call.
    output: Vec<u8>,
    framing: Framing,
    /// Whether the connection may carry another call once this answer has been read.
    is_kept: bool,
    /// Whether something of the answer has come: the provider has seen the request.
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
            is_kept: true,
            is_answering: false,
        }
    }

    /// Sends a request and reads the head of its answer; informational heads are passed over (RFC 9110 section 15.2).
    ///
    /// The answer is listened for while the body is still being written: a provider may refuse a long one before it has read it.
    pub(super) async fn ask(&mut self, head: HeadOf<'_>, body: &Bytes) -> Result<Head, Error> {
        self.output.clear();
        self.is_answering = false;
        head.heads.write(&mut self.output, &head, body.len());
        let joined = body.len() <= JOINED_BYTES_MAX;
        if joined {
            self.output.extend_from_slice(body);
        }
        let rest: &[u8] = if joined { &[] } else { body };
        let (mut written, total) = (0, self.output.len() + rest.len());
        let mut broken = None;
        poll_fn(|cx| {
            while written < total && broken.is_none() {
                let first = self.output.len();
                let piece = if written < first {
                    &self.output[written..]
                } else {
                    &rest[written - first..]
                };
                match Pin::new(&mut self.socket).poll_write(cx, piece) {
                    Poll::Ready(Ok(0)) => broken = Some(io::ErrorKind::WriteZero.into()),
                    Poll::Ready(Ok(count)) => written += count,
                    // Perhaps it was refused, and the refusal can be read.
                    Poll::Ready(Err(error)) => broken = Some(error),
                    Poll::Pending => break,
                }
            }
            let answer = ready!(self.poll_head(cx));
            if written < total {
                self.is_kept = false;
                if let Ok(head) = &answer
                    && head.status.is_success()
                {
                    // The rest would have to be written beside the reading, for a provider that answers before it was asked.
                    return Poll::Ready(Err(Error::Invalid(
                        "the answer came before the request was written",
                    )));
                }
            }
            Poll::Ready(answer.map_err(|error| match (error, broken.take()) {
                (Error::Unanswered(_), Some(error)) => Error::Unanswered(error),
                (error, _) => error,
            }))
        })
        .await
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Head, Error>> {
        self.poll_head_with(cx, |_| {})
    }

    /// As [`Connection::poll_head`]; `look` is shown the bytes of the head that comes back.
    fn poll_head_with(
        &mut self,
        cx: &mut Context<'_>,
        look: impl FnOnce(&[u8]),
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
                look(&self.input[..length]);
                let _ = self.input.split_to(length);
                self.framing = head.framing;
                self.is_kept &= head.is_kept && !matches!(head.framing, Framing::UntilClose);
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

    /// The next piece of the answer's body, `None` at its end.
    pub(super) async fn read(&mut self) -> Result<Option<Bytes>, Error> {
        poll_fn(|cx| self.poll_read(cx)).await
    }

    /// As [`Connection::read`], for those who look whether something is there.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Error>> {
        loop {
            if let Some(piece) = self.framing.take(&mut self.input).map_err(Error::Invalid)? {
                return Poll::Ready(Ok(Some(piece)));
            }
            if matches!(self.framing, Framing::Done) {
                return Poll::Ready(Ok(None));
            }
            let room = self.framing.room().clamp(READ_BYTES, READ_BYTES_MAX);
            match ready!(self.poll_fill(cx, room)) {
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

    fn poll_fill(&mut self, cx: &mut Context<'_>, room: usize) -> Poll<io::Result<usize>> {
        if self.input.capacity() - self.input.len() < room.min(SPARE_BYTES_MIN) {
            self.input.reserve(room);
            self.is_grown |= room > IDLE_BYTES_MAX;
        }
        // The future holds nothing but the two references, so nothing is lost when it is made anew for each poll.
        pin!(self.socket.read_buf(&mut self.input)).poll(cx)
    }

    /// Makes the connection ready for another call, unless it cannot carry one: the answer was not read to its end, more came than belongs
    /// to it, or one of both sides said that it was the last.
    pub(super) fn keep(mut self) -> Option<Connection<S>> {
        let is_at_rest = matches!(self.framing, Framing::Done) && self.input.is_empty();
        if !self.is_kept || !is_at_rest {
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

    /// Whether nothing has been sent or closed on an idle connection. What a provider says unasked is never part of an answer.
    pub(super) fn is_quiet(&mut self) -> bool {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        self.poll_fill(&mut cx, 1).is_pending()
    }
}

/// Which of the ready heads a request takes.
#[derive(Clone, Copy)]
pub(super) struct HeadOf<'a> {
    pub(super) heads: &'a Heads,
    /// The path below the provider's base address.
    pub(super) path: &'a str,
    /// Whether events are wanted.
    pub(super) stream: bool,
    /// The client's address, for a provider that is told it.
    pub(super) client: Option<IpAddr>,
}
