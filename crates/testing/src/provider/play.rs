//! Execution of a [`Plan`], the same over every protocol.

use std::io;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};

use super::calls::Ended;
use super::plan::{Plan, Step};
use super::script::{Framing, Leave};

/// The head of a response for a transport.
pub(super) struct AnswerHead {
    pub(super) status: u16,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) framing: Framing,
    pub(super) length: usize,
}

/// The transport of one response. Every error means that the peer has disconnected.
pub(super) trait Transport {
    async fn informational(&mut self, status: u16) -> io::Result<()>;
    async fn head(&mut self, head: AnswerHead) -> io::Result<()>;
    async fn piece(&mut self, piece: Bytes) -> io::Result<()>;
    /// Sends buffered bytes, before a stop.
    async fn flush(&mut self) -> io::Result<()>;
    async fn finish(&mut self) -> io::Result<()>;
    async fn leave(&mut self, leave: Leave);
    /// Returns when the peer has disconnected.
    async fn gone(&mut self);
}

/// Executes `plan`; `piece_sent` is called after each piece.
pub(super) async fn play(
    plan: Plan,
    transport: &mut impl Transport,
    piece_sent: impl Fn(),
) -> Ended {
    match steps(plan, transport, piece_sent).await {
        Ok(ended) => ended,
        Err(_) => Ended::PeerGone,
    }
}

async fn steps(
    plan: Plan,
    transport: &mut impl Transport,
    piece_sent: impl Fn(),
) -> io::Result<Ended> {
    for step in plan.steps {
        match step {
            Step::Wait(gate) => stop(transport, gate.pass()).await?,
            Step::Pause(time) => stop(transport, tokio::time::sleep(time)).await?,
            Step::Informational(status) => transport.informational(status).await?,
            Step::Head {
                status,
                headers,
                framing,
                length,
            } => {
                let head = AnswerHead {
                    status,
                    headers,
                    framing,
                    length,
                };
                transport.head(head).await?;
            }
            Step::Piece(piece) => {
                send(transport, piece, plan.write_bytes).await?;
                piece_sent();
            }
            Step::MadePiece(make) => {
                send(transport, make(), plan.write_bytes).await?;
                piece_sent();
            }
            Step::Endless(piece, gate) => loop {
                if let Some(gate) = &gate {
                    stop(transport, gate.pass()).await?;
                }
                send(transport, piece.clone(), plan.write_bytes).await?;
                piece_sent();
                // A peer that reads as fast as this writes would otherwise occupy the thread.
                tokio::task::yield_now().await;
            },
            Step::Leave(leave) => {
                transport.flush().await?;
                transport.leave(leave).await;
                return Ok(Ended::Cut);
            }
        }
    }
    transport.finish().await?;
    Ok(Ended::Whole)
}

async fn stop(transport: &mut impl Transport, until: impl Future<Output = ()>) -> io::Result<()> {
    transport.flush().await?;
    tokio::select! {
        () = until => Ok(()),
        () = transport.gone() => Err(io::ErrorKind::ConnectionAborted.into()),
    }
}

async fn send(
    transport: &mut impl Transport,
    mut piece: Bytes,
    write_bytes: Option<usize>,
) -> io::Result<()> {
    let Some(size) = write_bytes.map(|size| size.max(1)) else {
        return transport.piece(piece).await;
    };
    while !piece.is_empty() {
        let part = piece.split_to(size.min(piece.len()));
        transport.piece(part).await?;
    }
    Ok(())
}
