//! The connections of the MCP stand-in.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::protocol::{self, Answer};
use super::{Act, McpCall, Shared};
use crate::head::Framing;
use crate::wire::{Wire, invalid};

/// Serves every connection until stopped.
pub(super) async fn accept(
    listener: TcpListener,
    shared: Arc<Shared>,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut connections = JoinSet::new();
    for number in 0.. {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut stopped => return,
        };
        let Ok((socket, _)) = accepted else { return };
        // Pieces have to be sent one by one.
        let _ = socket.set_nodelay(true);
        connections.spawn(serve(socket, shared.clone(), number));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(socket: TcpStream, shared: Arc<Shared>, connection: usize) {
    let mut wire = match &shared.tls {
        None => Wire::new(Box::new(socket)),
        Some(certificate) => {
            let acceptor = TlsAcceptor::from(certificate.server_config(&["http/1.1"]));
            let Ok(stream) = acceptor.accept(socket).await else {
                return;
            };
            Wire::new(Box::new(stream))
        }
    };
    while let Ok(true) = one(&mut wire, &shared, connection).await {}
}

/// Serves one request; true when the connection can be reused.
async fn one(wire: &mut Wire, shared: &Arc<Shared>, connection: usize) -> io::Result<bool> {
    let Some(head) = wire.head().await? else {
        return Ok(false);
    };
    let parts: Vec<&str> = head.start_line.split(' ').collect();
    let [method, target, "HTTP/1.1"] = parts.as_slice() else {
        return Err(invalid("a request line"));
    };
    let framing = head.framing(true).map_err(invalid)?;
    let number = {
        let mut calls = shared.calls();
        calls.push(McpCall {
            method: (*method).to_owned(),
            target: (*target).to_owned(),
            headers: head.headers.clone(),
            body: Vec::new(),
            is_whole: framing == Framing::Length(0),
            was_left: false,
            connection,
        });
        calls.len() - 1
    };
    shared.news.send_replace(());
    let mut request = Arriving {
        wire,
        shared,
        number,
        framing,
    };
    let play = {
        let plays = shared.plays.lock();
        plays.expect("no panic under the lock").pop_front()
    };
    let result = match play {
        Some(acts) => request.play(acts).await,
        None => request.answer().await,
    };
    if result.is_err() {
        shared.change(number, |call| call.was_left = true);
    }
    result
}

/// A request whose body is still arriving.
struct Arriving<'a> {
    wire: &'a mut Wire,
    shared: &'a Arc<Shared>,
    number: usize,
    framing: Framing,
}

impl Arriving<'_> {
    /// Reads the next piece of the body; false after its end.
    async fn read_piece(&mut self) -> io::Result<bool> {
        let piece = match &mut self.framing {
            Framing::Length(0) => None,
            Framing::Length(left) => {
                if self.wire.inbox.is_empty() && self.wire.fill().await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let length = self.wire.inbox.len().min(*left);
                *left -= length;
                Some(self.wire.inbox.split_to(length).freeze())
            }
            Framing::Chunked => self.wire.chunk().await?,
            Framing::UntilClose => return Err(invalid("a request without an end")),
        };
        let ended = match &piece {
            None => true,
            Some(_) => self.framing == Framing::Length(0),
        };
        if ended {
            self.framing = Framing::Length(0);
        }
        self.shared.change(self.number, |call| {
            call.body.extend_from_slice(&piece.unwrap_or_default());
            call.is_whole = ended;
        });
        Ok(!ended)
    }

    async fn play(&mut self, acts: Vec<Act>) -> io::Result<bool> {
        for act in acts {
            match act {
                Act::Send(bytes) => self.wire.send(&bytes).await?,
                Act::Chunk(bytes) => self.send_chunk(&bytes).await?,
                Act::ReadPiece => {
                    self.read_piece().await?;
                }
                Act::ReadBody => while self.read_piece().await? {},
                Act::Stop(name) => {
                    let gate = self.shared.gate(name);
                    tokio::select! {
                        () = gate.pass() => {}
                        () = self.wire.gone() => return Err(io::ErrorKind::BrokenPipe.into()),
                    }
                }
                Act::Cut { reset } => {
                    if reset {
                        self.wire.io.reset_on_close();
                    }
                    return Ok(false);
                }
                Act::Wait => {
                    self.wire.gone().await;
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
            }
        }
        Ok(self.framing == Framing::Length(0))
    }

    async fn send_chunk(&mut self, bytes: &Bytes) -> io::Result<()> {
        let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
        chunk.extend_from_slice(bytes);
        chunk.extend_from_slice(b"\r\n");
        self.wire.send(&chunk).await
    }

    /// Responds as a small MCP server.
    async fn answer(&mut self) -> io::Result<bool> {
        while self.framing != Framing::Length(0) && self.read_piece().await? {}
        let call = self.shared.calls()[self.number].clone();
        let answer = {
            let sessions = self.shared.sessions.lock();
            protocol::answer(&call, &mut sessions.expect("no panic under the lock"))
        };
        match answer {
            Answer::Whole {
                status,
                fields,
                body,
            } => {
                let mut head = format!("HTTP/1.1 {status} Said\r\n");
                for (name, value) in fields {
                    head.push_str(&format!("{name}: {value}\r\n"));
                }
                head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
                self.wire
                    .send(&[head.as_bytes(), body.as_bytes()].concat())
                    .await?;
                Ok(true)
            }
            Answer::Events(events) => {
                self.play(vec![Act::event_stream()]).await?;
                for event in events {
                    self.send_chunk(&Bytes::from(event)).await?;
                }
                self.wire.send(b"0\r\n\r\n").await?;
                Ok(true)
            }
            Answer::Listen(events) => {
                self.play(vec![Act::event_stream()]).await?;
                for event in events {
                    self.send_chunk(&Bytes::from(event)).await?;
                }
                self.play(vec![Act::Wait]).await
            }
        }
    }
}
