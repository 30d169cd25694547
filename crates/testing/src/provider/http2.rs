//! The HTTP/2 transport of the stand-in, through hyper.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::{mpsc, oneshot};

use super::dispatch::answer;
use super::play::{AnswerHead, Transport, play};
use super::request::{Arrived, Request};
use super::script::{Framing, Leave};
use super::state::Shared;
use crate::wire::Wire;

/// Enough for the benches' silent streams on few connections.
const STREAMS_MAX: u32 = 10_000;

/// Serves one connection to its end.
pub(super) async fn serve(wire: Wire, shared: Arc<Shared>, connection: usize) {
    let service =
        hyper::service::service_fn(move |request| respond(request, shared.clone(), connection));
    let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    server.max_concurrent_streams(STREAMS_MAX);
    // The ending is recorded in the calls.
    let _ = server.serve_connection(TokioIo::new(wire), service).await;
}

async fn respond(
    request: http::Request<Incoming>,
    shared: Arc<Shared>,
    connection: usize,
) -> Result<Response<Pieces>, io::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let arrived = Arrived {
        protocol: "HTTP/2.0",
        target: head
            .uri
            .path_and_query()
            .map(|target| target.to_string())
            .unwrap_or_default(),
        raw_head: Bytes::new(),
        connection,
        reused: false,
        request: Request {
            method: head.method.to_string(),
            path: head.uri.path().to_owned(),
            headers: head.headers,
            body,
        },
    };
    let (number, plan) = answer(&shared, arrived).await;
    let (head_out, head_in) = oneshot::channel();
    let (pieces_out, pieces_in) = mpsc::channel(1);
    // In its own task, because hyper requires the head before it polls the body.
    tokio::spawn(async move {
        let mut transport = Http2 {
            head: Some(head_out),
            pieces: pieces_out,
        };
        let ended = play(plan, &mut transport, || shared.calls.piece_sent(number)).await;
        shared.calls.end(number, ended);
    });
    let head: AnswerHead = head_in.await.map_err(io::Error::other)?;
    let mut response = Response::new(Pieces(pieces_in));
    *response.status_mut() = http::StatusCode::from_u16(head.status).map_err(io::Error::other)?;
    for (name, value) in head.headers {
        response.headers_mut().append(name, value);
    }
    if head.framing == Framing::Length {
        response
            .headers_mut()
            .insert("content-length", head.length.into());
    }
    Ok(response)
}

struct Http2 {
    head: Option<oneshot::Sender<AnswerHead>>,
    pieces: mpsc::Sender<Result<Bytes, io::Error>>,
}

impl Transport for Http2 {
    async fn informational(&mut self, _status: u16) -> io::Result<()> {
        Ok(())
    }

    async fn head(&mut self, head: AnswerHead) -> io::Result<()> {
        let sent = self.head.take().map(|out| out.send(head));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }

    async fn piece(&mut self, piece: Bytes) -> io::Result<()> {
        let sent = self.pieces.send(Ok(piece)).await;
        sent.map_err(|_| io::ErrorKind::ConnectionAborted.into())
    }

    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    async fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }

    async fn leave(&mut self, _leave: Leave) {
        // Without a head there is no reader; then the dropped `head` resets the stream.
        let _ = self
            .pieces
            .send(Err(io::ErrorKind::ConnectionReset.into()))
            .await;
    }

    async fn gone(&mut self) {
        self.pieces.closed().await;
    }
}

/// A body whose pieces arrive through a channel; an error in it resets the stream.
struct Pieces(mpsc::Receiver<Result<Bytes, io::Error>>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.0
            .poll_recv(cx)
            .map(|next| next.map(|piece| piece.map(Frame::data)))
    }
}
