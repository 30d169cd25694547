//! HTTP/1.1, hand-written so that it can be malformed on purpose.

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;

use super::calls::Ended;
use super::dispatch::answer;
use super::play::{AnswerHead, Transport, play};
use super::request::{Arrived, Request};
use super::script::{Framing, Leave};
use super::state::Shared;
use crate::head::Head;
use crate::wire::{Wire, invalid};

/// Serves one connection to its end.
pub(super) async fn serve(mut wire: Wire, shared: Arc<Shared>, connection: usize) {
    let mut hang_ups = shared.hang_ups.subscribe();
    let mut reused = false;
    loop {
        let head = tokio::select! {
            head = wire.head() => head,
            _ = hang_ups.changed() => return,
        };
        let arrived = match head {
            Ok(None) => return,
            Ok(Some(head)) => arrive(&mut wire, head, connection, reused).await,
            Err(problem) => Err(problem),
        };
        let goes_on = match arrived {
            Ok(arrived) => respond(&mut wire, arrived, &shared).await,
            Err(problem) => {
                if problem.kind() == io::ErrorKind::InvalidData {
                    shared.calls.note_malformed(problem.to_string());
                    let _ = wire.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
                }
                false
            }
        };
        if !goes_on {
            return;
        }
        reused = true;
    }
}

/// Reads the rest of a request.
async fn arrive(
    wire: &mut Wire,
    head: Head,
    connection: usize,
    reused: bool,
) -> io::Result<Arrived> {
    let parts: Vec<&str> = head.start_line.split(' ').collect();
    let [method, target, "HTTP/1.1" | "HTTP/1.0"] = parts.as_slice() else {
        return Err(invalid(format!(
            "request line `{}`",
            head.start_line.escape_debug()
        )));
    };
    if head.headers.get_all("host").iter().count() != 1 {
        return Err(invalid("a request needs one Host field"));
    }
    if head
        .header("expect")
        .is_some_and(|value| value.eq_ignore_ascii_case("100-continue"))
    {
        wire.send(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    let body = wire.body(head.framing(true).map_err(invalid)?).await?;
    Ok(Arrived {
        protocol: "HTTP/1.1",
        target: (*target).to_owned(),
        raw_head: head.raw.clone(),
        connection,
        reused,
        request: Request {
            method: (*method).to_owned(),
            path: target.split('?').next().unwrap_or_default().to_owned(),
            headers: head.headers,
            body,
        },
    })
}

/// Responds; true when the connection can be reused.
async fn respond(wire: &mut Wire, arrived: Arrived, shared: &Arc<Shared>) -> bool {
    let closes = says_close(&arrived.request.headers);
    let (number, plan) = answer(shared, arrived).await;
    let mut transport = Http1 {
        wire,
        out: BytesMut::new(),
        framing: Framing::Length,
        write_bytes: plan.write_bytes,
        closes,
    };
    let ended = play(plan, &mut transport, || shared.calls.piece_sent(number)).await;
    let closes = transport.closes;
    shared.calls.end(number, ended);
    ended == Ended::Whole && !closes
}

fn says_close(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all("connection").iter();
    values.any(|value| value.as_bytes().eq_ignore_ascii_case(b"close"))
}

struct Http1<'a> {
    wire: &'a mut Wire,
    /// The unwritten bytes: the head waits for the first piece, as in most servers.
    out: BytesMut,
    framing: Framing,
    write_bytes: Option<usize>,
    closes: bool,
}

impl Transport for Http1<'_> {
    async fn informational(&mut self, status: u16) -> io::Result<()> {
        let reason = reason(status);
        self.out
            .extend_from_slice(format!("HTTP/1.1 {status} {reason}\r\n\r\n").as_bytes());
        self.flush().await
    }

    async fn head(&mut self, head: AnswerHead) -> io::Result<()> {
        self.out.reserve(512);
        let status = head.status;
        self.out
            .extend_from_slice(format!("HTTP/1.1 {status} {}\r\n", reason(status)).as_bytes());
        for (name, value) in &head.headers {
            self.closes |= name == "connection" && value == "close";
            for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                self.out.extend_from_slice(part);
            }
        }
        if self.closes && !head.headers.iter().any(|(name, _)| name == "connection") {
            self.out.extend_from_slice(b"connection: close\r\n");
        }
        self.framing = head.framing;
        match head.framing {
            Framing::Length => self
                .out
                .extend_from_slice(format!("content-length: {}\r\n", head.length).as_bytes()),
            Framing::Chunked => self
                .out
                .extend_from_slice(b"transfer-encoding: chunked\r\n"),
            Framing::UntilClose => self.closes = true,
        }
        self.out.extend_from_slice(b"\r\n");
        Ok(())
    }

    async fn piece(&mut self, piece: Bytes) -> io::Result<()> {
        // A chunk of no data would end the body.
        if self.framing == Framing::Chunked && !piece.is_empty() {
            self.out.reserve(piece.len() + 16);
            self.out
                .extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            self.out.extend_from_slice(&piece);
            self.out.extend_from_slice(b"\r\n");
        } else {
            self.out.extend_from_slice(&piece);
        }
        self.flush().await
    }

    async fn flush(&mut self) -> io::Result<()> {
        let out = self.out.split();
        for part in out.chunks(self.write_bytes.unwrap_or(usize::MAX).max(1)) {
            self.wire.send(part).await?;
        }
        Ok(())
    }

    async fn finish(&mut self) -> io::Result<()> {
        if self.framing == Framing::Chunked {
            self.out.extend_from_slice(b"0\r\n\r\n");
        }
        self.flush().await
    }

    async fn leave(&mut self, leave: Leave) {
        match leave {
            Leave::Close => {}
            Leave::Reset => self.wire.io.reset_on_close(),
        }
    }

    async fn gone(&mut self) {
        self.wire.gone().await;
    }
}

fn reason(status: u16) -> &'static str {
    http::StatusCode::from_u16(status)
        .ok()
        .and_then(|status| status.canonical_reason())
        .unwrap_or("Unknown")
}
