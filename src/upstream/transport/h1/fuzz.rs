//! Entry point of fuzzing: the answer of a provider must not depend on the pieces of its arrival.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Connection, Error, Heads, RequestHead};

/// The other end sends these bytes in pieces of a size, closes, and accepts every byte.
struct Scripted<'a> {
    input: &'a [u8],
    piece: usize,
}

impl AsyncRead for Scripted<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = self.piece.min(buffer.remaining()).min(self.input.len());
        let (piece, rest) = self.input.split_at(length);
        buffer.put_slice(piece);
        self.input = rest;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Scripted<'_> {
    fn poll_write(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// An answer with its body, whole and in pieces.
pub(crate) fn answer(input: &[u8]) {
    let whole = exchange(input, usize::MAX);
    for piece in [1, 7] {
        let parts = exchange(input, piece);
        assert_eq!(parts, whole, "in pieces of {piece} bytes");
    }
}

/// Status and body, or `None` for a refused answer.
fn exchange(input: &[u8], piece: usize) -> Option<(StatusCode, Vec<u8>)> {
    let heads = Heads::new("/v1", "provider.test", None);
    let mut connection = Connection::new(Scripted { input, piece });
    let read = async {
        let head = RequestHead {
            heads: &heads,
            path: "/chat/completions",
            stream: false,
            client: None,
            ids: None,
        };
        let body = Bytes::from_static(b"{}");
        let head = connection.send_request(head, &body).await?;
        let mut body = Vec::new();
        while let Some(piece) = connection.read().await? {
            assert!(!piece.is_empty(), "no piece is empty");
            body.extend_from_slice(&piece);
        }
        Ok::<_, Error>((head.status, body))
    };
    match pin!(read).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(read) => read.ok(),
        Poll::Pending => panic!("waits although the socket is ready"),
    }
}
