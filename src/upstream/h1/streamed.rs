//! A call whose body goes out in pieces while its answer comes in.

use std::io::{self, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use tokio::io::{AsyncRead, AsyncWrite};

use super::head::{self, Head};
use super::{Connection, Error};

/// What happens next on a [`Streamed`] call.
pub(in crate::upstream) enum Step {
    /// All that was handed over has left, and more may be handed over.
    Room,
    /// The head of the answer with all of its fields; `true` when a body follows.
    Head(Head, HeaderMap, bool),
    /// A piece of the answer's body.
    Piece(Bytes),
    /// The answer is over.
    End,
}

/// How the end of a request's body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Framed {
    /// There is none.
    Nothing,
    /// So many bytes are still to come.
    Length(u64),
    /// Chunks.
    Chunks,
}

/// A connection with a call on it that is sent and heard at the same time.
pub(in crate::upstream) struct Streamed<S> {
    connection: Connection<S>,
    /// What is on its way out, and how much of it has left.
    out: Vec<u8>,
    left: usize,
    framed: Framed,
    /// Whether what left is still to be told.
    owes_room: bool,
    /// Whether nothing more is to be handed over.
    is_all: bool,
    /// Writing has failed: the answer may say why.
    broken: Option<io::Error>,
    /// Whether the head of the answer has come.
    is_answered: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Streamed<S> {
    /// Begins a call with this head, which says how the body is framed.
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
                // The client's side holds the client to its length; this holds us.
                let fits = usize::try_from(*left).unwrap_or(usize::MAX);
                let piece = &piece[..piece.len().min(fits)];
                *left -= piece.len() as u64;
                self.out.extend_from_slice(piece);
            }
            Framed::Nothing => {}
        }
    }

    /// What happens next; writes meanwhile.
    pub(in crate::upstream) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, Error>> {
        if self.owes_room && self.broken.is_none() {
            match self.poll_write(cx) {
                Poll::Ready(Ok(())) => {
                    self.owes_room = false;
                    return Poll::Ready(Ok(Step::Room));
                }
                // Perhaps it was refused, and the refusal can be read.
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

    /// Whether more of the body is waited for.
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
