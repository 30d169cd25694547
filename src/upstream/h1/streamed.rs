//! A call whose request body is sent in pieces while its answer is received.

use std::io::{self, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use tokio::io::{AsyncRead, AsyncWrite};

use super::head::{self, Head};
use super::{Connection, Error};

/// The next event of a [`Streamed`] call.
pub(in crate::upstream) enum Step {
    /// All data handed over was sent, and more may be handed over.
    Room,
    /// The head of the answer with all of its fields; `true` when a body follows.
    Head(Head, HeaderMap, bool),
    /// A piece of the answer's body.
    Piece(Bytes),
    /// The answer is complete.
    End,
}

/// The framing of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Framed {
    /// No body.
    Nothing,
    /// This many bytes remain to be sent.
    Length(u64),
    /// Chunks.
    Chunks,
}

/// A connection with a call on it that is sent and received at the same time.
pub(in crate::upstream) struct Streamed<S> {
    connection: Connection<S>,
    /// Data to be sent, and how much of it was sent.
    out: Vec<u8>,
    left: usize,
    framed: Framed,
    /// Whether a completed send has yet to be reported.
    owes_room: bool,
    /// Whether the body was handed over to its end.
    is_all: bool,
    /// The write failed: the answer may give the reason.
    broken: Option<io::Error>,
    /// Whether the head of the answer was received.
    is_answered: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Streamed<S> {
    /// Starts a call with this head, which declares how the body is framed.
    pub(in crate::upstream) fn begin(
        mut connection: Connection<S>,
        head: Vec<u8>,
        framed: Framed,
    ) -> Streamed<S> {
        connection.is_answering = false;
        Streamed {
            connection,
            out: head,
            left: 0,
            framed,
            owes_room: true,
            is_all: framed == Framed::Nothing,
            broken: None,
            is_answered: false,
        }
    }

    /// Hands over a piece of the body, or its end.
    pub(in crate::upstream) fn send(&mut self, piece: Option<Bytes>) {
        self.out.clear();
        self.left = 0;
        self.owes_room = true;
        let Some(piece) = piece else {
            self.is_all = true;
            if self.framed == Framed::Chunks {
                self.out.extend_from_slice(b"0\r\n\r\n");
            }
            return;
        };
        if piece.is_empty() {
            // An empty chunk would be the last.
            return;
        }
        match &mut self.framed {
            Framed::Chunks => {
                write!(self.out, "{:x}\r\n", piece.len())
                    .expect("a vector takes whatever is written to it");
                self.out.extend_from_slice(&piece);
                self.out.extend_from_slice(b"\r\n");
            }
            Framed::Length(left) => {
                // The downstream session enforces the length on the client; this enforces it on the gateway.
                let fits = usize::try_from(*left).unwrap_or(usize::MAX);
                let piece = &piece[..piece.len().min(fits)];
                *left -= piece.len() as u64;
                self.out.extend_from_slice(piece);
            }
            Framed::Nothing => {}
        }
    }

    /// The next event; writes meanwhile.
    pub(in crate::upstream) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, Error>> {
        if self.owes_room && self.broken.is_none() {
            match self.poll_write(cx) {
                Poll::Ready(Ok(())) => {
                    self.owes_room = false;
                    return Poll::Ready(Ok(Step::Room));
                }
                // The request may have been refused, and the refusal can be read.
                Poll::Ready(Err(error)) => self.broken = Some(error),
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
        let head = ready!(head).map_err(|error| match (error, self.broken.take()) {
            (Error::Unanswered(_), Some(error)) => Error::Unanswered(error),
            (error, _) => error,
        })?;
        self.is_answered = true;
        let has_body = !matches!(self.connection.framing, super::Framing::Done);
        let fields = fields.map_err(Error::Invalid)?;
        Poll::Ready(Ok(Step::Head(head, fields, has_body)))
    }

    /// Whether more of the body is expected.
    pub(in crate::upstream) fn wants_more(&self) -> bool {
        !self.is_all && !self.owes_room
    }

    /// The connection, if it may carry another call.
    pub(in crate::upstream) fn keep(self) -> Option<Connection<S>> {
        let is_framed = !matches!(self.framed, Framed::Length(1..));
        let whole = self.is_all && !self.owes_room && is_framed;
        whole.then_some(self.connection)?.keep()
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.left < self.out.len() {
            let rest = &self.out[self.left..];
            match ready!(Pin::new(&mut self.connection.socket).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.left += count,
            }
        }
        Pin::new(&mut self.connection.socket).poll_flush(cx)
    }
}
