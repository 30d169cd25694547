//! Full-duplex HTTP/1.1: the request body is sent in pieces while the answer is received.

use std::io::{self, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use tokio::io::{AsyncRead, AsyncWrite};

use super::head::{self, Head};
use super::{Connection, Error};

/// The next event of a [`Streamed`] call.
pub(in crate::upstream::transport) enum Step {
    /// All handed over data was sent, and more may be handed over.
    Writable,
    /// The head of the answer with every field; `true` when a body follows.
    Head(Head, HeaderMap, bool),
    /// A piece of the answer's body.
    Piece(Bytes),
    /// The answer is complete.
    End,
}

/// The framing of a request's body, and the remainder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream::transport) enum RequestFraming {
    /// No body.
    Nothing,
    /// This many bytes remain to be sent.
    Length(u64),
    Chunks,
}

/// A connection with a call sent and received concurrently.
pub(in crate::upstream::transport) struct Streamed<S> {
    connection: Connection<S>,
    /// Data to be sent, and the number of sent bytes.
    out: Vec<u8>,
    sent: usize,
    /// Whether all data has left the buffers of the connection.
    is_written: bool,
    /// All data handed over so far, while a repetition is possible.
    kept: Option<Vec<u8>>,
    framed: RequestFraming,
    /// Whether a completed send has yet to be reported.
    owes_writable: bool,
    /// Whether the whole body was handed over.
    is_body_complete: bool,
    /// The write failed: the answer may give the reason.
    write_error: Option<io::Error>,
    /// Whether the head of the answer was received.
    is_answered: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Streamed<S> {
    /// Starts a call with this head, which declares the framing of the body. With `keeps` the call may be sent again.
    pub(in crate::upstream::transport) fn begin(
        mut connection: Connection<S>,
        head: Vec<u8>,
        framed: RequestFraming,
        keeps: bool,
    ) -> Streamed<S> {
        connection.is_answering = false;
        Streamed {
            connection,
            kept: keeps.then(|| head.clone()),
            out: head,
            sent: 0,
            is_written: false,
            framed,
            owes_writable: true,
            is_body_complete: framed == RequestFraming::Nothing,
            write_error: None,
            is_answered: false,
        }
    }

    /// Hands over a piece of the body, or its end.
    pub(in crate::upstream::transport) fn send(&mut self, piece: Option<Bytes>) {
        // Data that is being sent again may not be written yet.
        if self.is_written {
            self.out.clear();
            self.sent = 0;
        }
        let start = self.out.len();
        self.frame(piece);
        self.is_written = false;
        self.owes_writable = true;
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(&self.out[start..]);
        }
    }

    fn frame(&mut self, piece: Option<Bytes>) {
        let Some(piece) = piece else {
            self.is_body_complete = true;
            if self.framed == RequestFraming::Chunks {
                self.out.extend_from_slice(b"0\r\n\r\n");
            }
            return;
        };
        if piece.is_empty() {
            // An empty chunk would be the last.
            return;
        }
        match &mut self.framed {
            RequestFraming::Chunks => {
                write!(self.out, "{:x}\r\n", piece.len())
                    .expect("writing to a vector does not fail");
                self.out.extend_from_slice(&piece);
                self.out.extend_from_slice(b"\r\n");
            }
            RequestFraming::Length(left) => {
                // The downstream session enforces the length on the client; this check enforces the length on the gateway.
                let fits = usize::try_from(*left).unwrap_or(usize::MAX);
                let piece = &piece[..piece.len().min(fits)];
                *left -= piece.len() as u64;
                self.out.extend_from_slice(piece);
            }
            RequestFraming::Nothing => {}
        }
    }

    /// Whether all handed over data can be sent again.
    pub(in crate::upstream::transport) fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// Gives up the data kept for another connection.
    pub(in crate::upstream::transport) fn forget(&mut self) {
        self.kept = None;
    }

    /// Sends all handed over data again, once, on another connection.
    pub(in crate::upstream::transport) fn send_again(&mut self, connection: Connection<S>) {
        self.connection = connection;
        self.out = self.kept.take().unwrap_or_default();
        self.sent = 0;
        self.is_written = false;
        self.write_error = None;
    }

    /// The next event; writes meanwhile.
    pub(in crate::upstream::transport) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Step, Error>> {
        if !self.is_written && self.write_error.is_none() {
            match self.poll_write(cx) {
                Poll::Ready(Ok(())) => {
                    self.is_written = true;
                    // Repeated data was reported the first time.
                    if std::mem::take(&mut self.owes_writable) {
                        return Poll::Ready(Ok(Step::Writable));
                    }
                }
                // The request may have been refused, and the refusal can be read.
                Poll::Ready(Err(error)) => self.write_error = Some(error),
                Poll::Pending => {}
            }
        }
        if self.is_answered {
            let piece = ready!(self.connection.poll_read(cx))?;
            return Poll::Ready(Ok(piece.map_or(Step::End, Step::Piece)));
        }
        let mut fields = Ok(HeaderMap::new());
        let head = self
            .connection
            .poll_head_with(cx, |bytes| fields = head::fields(bytes));
        let head = ready!(head).map_err(|error| match (error, self.write_error.take()) {
            (Error::Unanswered(_), Some(error)) => Error::Unanswered(error),
            (error, _) => error,
        })?;
        self.is_answered = true;
        self.kept = None;
        let has_body = !matches!(self.connection.framing, super::Framing::Done);
        let fields = fields.map_err(Error::Invalid)?;
        Poll::Ready(Ok(Step::Head(head, fields, has_body)))
    }

    /// Whether more of the body is expected.
    pub(in crate::upstream::transport) fn awaits_body(&self) -> bool {
        !self.is_body_complete && self.is_written
    }

    /// The connection, if it may carry another call.
    pub(in crate::upstream::transport) fn keep(self) -> Option<Connection<S>> {
        let is_framed = !matches!(self.framed, RequestFraming::Length(1..));
        let is_complete = self.is_body_complete && self.is_written && is_framed;
        is_complete.then_some(self.connection)?.keep()
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.out.len() {
            let unsent = &self.out[self.sent..];
            match ready!(Pin::new(&mut self.connection.socket).poll_write(cx, unsent))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.sent += count,
            }
        }
        Pin::new(&mut self.connection.socket).poll_flush(cx)
    }
}
