//! Requests on the connections of a process that has handed its store over: relayed to the successor, one for each connection.
//!
//! A connection cannot be passed on with its TLS state, and an immediate close would lose a request on its way. So the connection carries
//! one more request, decided by the successor like any other. The successor listens on a loopback port and requires two values first: a
//! token known to the two processes alone, and the address of the client.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName};
use http::{Uri, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use pingora_core::protocols::http::ServerSession;
use pingora_http::ResponseHeader;
use subtle::ConstantTimeEq;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tollgate_memory::MemoryBudget;

use super::head::{self, Origin};
use super::socket::ClientSocket;
use super::source::Source;
use crate::config::ConnectionLimits;
use crate::upstream::within;

/// The length of the token.
pub(crate) const TOKEN_BYTES: usize = 32;

/// The token, the flags and the client's address as IPv6 (RFC 4291 section 2.5.5.2).
const PREFACE_BYTES: usize = TOKEN_BYTES + 1 + 16;

/// The flags. A release ignores unknown flags, so either process of an upgrade may be of an earlier release.
const TLS: u8 = 1;
const OLD_TLS: u8 = 2;
const HEALTH: u8 = 4;

/// Fields of one connection (RFC 9110 section 7.6.1).
const HOP_BY_HOP: [HeaderName; 5] = [
    header::CONNECTION,
    header::TE,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Where the successor accepts relayed requests.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) token: [u8; TOKEN_BYTES],
}

/// The successor's knowledge of the connections with relayed requests.
#[derive(Debug)]
pub(super) struct Relayed {
    token: [u8; TOKEN_BYTES],
}

impl Relayed {
    pub(super) fn new(token: [u8; TOKEN_BYTES]) -> Relayed {
        Relayed { token }
    }

    /// The origin of the request on a connection; `None` for a connection other than the predecessor's.
    pub(super) async fn origin(
        &self,
        tcp: &mut ClientSocket,
        budget: &MemoryBudget,
    ) -> Option<Origin> {
        let mut preface = [0; PREFACE_BYTES];
        tcp.read_exact(&mut preface).await.ok()?;
        let (token, rest) = preface.split_at(TOKEN_BYTES);
        if !bool::from(token.ct_eq(&self.token)) {
            tracing::warn!("refused connection to the port for relayed requests: wrong token");
            return None;
        }
        let (flags, address) = rest.split_first()?;
        let address: [u8; 16] = address.try_into().ok()?;
        let client = Ipv6Addr::from(address).to_canonical();
        let source = Source::of(client, None);
        Some(Origin {
            memory: head::memory_of(source.connection(), budget),
            source,
            tls: flags & TLS != 0,
            old_tls: flags & OLD_TLS != 0,
            health: flags & HEALTH != 0,
        })
    }
}

/// Relays a request and its response; returns the session when both are complete. The connection is closed afterwards.
pub(super) async fn relay(
    target: &Target,
    mut session: Box<ServerSession>,
    origin: &Origin,
    limits: &ConnectionLimits,
) -> Option<Box<ServerSession>> {
    session.set_keepalive(None);
    match relay_within(target, &mut session, origin, limits).await {
        Ok(()) => Some(session),
        Err(error) => {
            tracing::warn!(error = %error, "relaying request to the successor failed");
            None
        }
    }
}

type RelayError = Box<dyn std::error::Error + Send + Sync>;

async fn relay_within(
    target: &Target,
    session: &mut ServerSession,
    origin: &Origin,
    limits: &ConnectionLimits,
) -> Result<(), RelayError> {
    let stream = connect(target, session, origin).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // Ended with this function: the successor detects the client's disconnect.
    let mut connections = JoinSet::new();
    connections.spawn(connection);
    let head = session.req_header();
    let waits = head.version == Version::HTTP_11 && head.headers.contains_key(header::EXPECT);
    let (request, mut body) = request(session)?;
    if waits {
        session.write_continue_response().await?;
    }
    let mut response = std::pin::pin!(sender.send_request(request));
    let response = loop {
        tokio::select! {
            biased;
            response = &mut response => break response?,
            piece = receive(session, body.is_some()) => match (piece?, &body) {
                (Some(piece), Some(to)) => {
                    // A successor that answers early reads no more; the response follows.
                    if to.send(Ok(Frame::data(piece))).await.is_err() {
                        body = None;
                    }
                }
                _ => body = None,
            },
        }
    };
    drop(body);
    respond(session, response, limits).await
}

/// The next piece of the request's body during the read; afterwards an error when the client has disconnected.
async fn receive(
    session: &mut ServerSession,
    reads_body: bool,
) -> Result<Option<Bytes>, RelayError> {
    if reads_body {
        return Ok(session.read_request_body().await?);
    }
    gone(session).await;
    Err(disconnected())
}

/// Waits until the client has disconnected. The client's request is complete: further bytes are the start of the next request.
async fn gone(session: &mut ServerSession) {
    while session.read_body_or_idle(true).await.is_ok() {
        tokio::task::yield_now().await;
    }
}

fn disconnected() -> RelayError {
    "the client has disconnected".into()
}

/// Connects, and sends the successor's information about the client.
async fn connect(
    target: &Target,
    session: &ServerSession,
    origin: &Origin,
) -> io::Result<TcpStream> {
    let headers = &session.req_header().headers;
    let client = origin.source.request(headers);
    let client = client.unwrap_or_else(|_| origin.source.connection()).ip();
    let client = match client {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    let flags = flag(origin.tls, TLS) | flag(origin.old_tls, OLD_TLS) | flag(origin.health, HEALTH);
    let mut preface = BytesMut::with_capacity(PREFACE_BYTES);
    preface.extend_from_slice(&target.token);
    preface.extend_from_slice(&[flags]);
    preface.extend_from_slice(&client.octets());
    let mut stream = TcpStream::connect(target.address).await?;
    stream.set_nodelay(true)?;
    stream.write_all(&preface).await?;
    Ok(stream)
}

type RequestBody = UnsyncBoxBody<Bytes, io::Error>;
type BodySender = mpsc::Sender<Result<Frame<Bytes>, io::Error>>;

/// The request as HTTP/1.1, and the sender of a body if present.
fn request(
    session: &mut ServerSession,
) -> Result<(http::Request<RequestBody>, Option<BodySender>), RelayError> {
    let is_empty = session.is_body_empty();
    let head = session.req_header();
    let mut headers = head.headers.clone();
    if !headers.contains_key(header::HOST)
        && let Some(authority) = head.uri.authority()
    {
        headers.insert(header::HOST, authority.as_str().parse()?);
    }
    for name in HOP_BY_HOP.iter().chain([&header::EXPECT]) {
        headers.remove(name);
    }
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = http::Request::builder()
        .method(head.method.clone())
        // A client of HTTP/1.0 cannot read chunks.
        .version(match head.version {
            Version::HTTP_10 => Version::HTTP_10,
            _ => Version::HTTP_11,
        })
        .uri(path.parse::<Uri>()?)
        .body(())?;
    *request.headers_mut() = headers;
    if is_empty {
        let body = Empty::new().map_err(|never| match never {});
        return Ok((request.map(|()| UnsyncBoxBody::new(body)), None));
    }
    let (sender, pieces) = mpsc::channel(1);
    let pieces = futures_util::stream::unfold(pieces, |mut pieces| async {
        pieces.recv().await.map(|piece| (piece, pieces))
    });
    let body = UnsyncBoxBody::new(StreamBody::new(pieces));
    Ok((request.map(|()| body), Some(sender)))
}

async fn respond(
    session: &mut ServerSession,
    response: http::Response<Incoming>,
    limits: &ConnectionLimits,
) -> Result<(), RelayError> {
    let is_head = session.req_header().method == http::Method::HEAD;
    let (parts, mut body) = response.into_parts();
    let (mut head, ()) = http::Response::new(()).into_parts();
    head.status = parts.status;
    head.headers = end_to_end(parts.headers, session.is_http2());
    let head = Box::new(ResponseHeader::from(head));
    let slow = |_| io::Error::from(io::ErrorKind::TimedOut);
    within(limits.write, session.write_response_header(head))
        .await
        .map_err(slow)??;
    if !is_head {
        let mut is_body_read = session.is_body_done();
        loop {
            let frame = tokio::select! {
                biased;
                frame = body.frame() => frame,
                () = gone(session), if is_body_read => return Err(disconnected()),
            };
            let Some(frame) = frame else { break };
            is_body_read = session.is_body_done();
            // This program sends no trailers.
            if let Ok(data) = frame?.into_data()
                && !data.is_empty()
            {
                within(limits.write, session.write_response_body(data, false))
                    .await
                    .map_err(slow)??;
            }
        }
    }
    within(
        limits.write,
        session.write_response_body(Bytes::new(), true),
    )
    .await
    .map_err(slow)??;
    Ok(())
}

/// The fields of a response without the connection's fields.
fn end_to_end(mut headers: HeaderMap, is_http2: bool) -> HeaderMap {
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
    if is_http2 {
        headers.remove(header::TRANSFER_ENCODING);
    }
    headers
}
