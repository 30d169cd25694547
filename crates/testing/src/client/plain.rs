//! A client for tests that are not about the protocol.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderMap, Request, Response, Uri, Version};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::event::{self, Event, StreamEnd};
use crate::certificate::{Certificate, client_config};
use crate::guard::within;
use crate::head::one_value;
use crate::wire::{Io, Wire};

/// A client of one server. Over HTTP/1.1 each request has its own connection, over HTTP/2 all share one.
///
/// Its methods panic when the server sends no valid response within a minute; [`Client::try_send`] does not.
pub struct Client {
    uri: Uri,
    tls: Option<Arc<ClientConfig>>,
    http2: bool,
    key: Option<String>,
    repeated: Option<&'static str>,
    shared: Mutex<Option<http2::SendRequest<Full<Bytes>>>>,
}

/// A whole response.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status, e.g. 200.
    pub status: u16,
    /// Field lines by name.
    pub headers: HeaderMap,
    /// The body without its framing.
    pub body: Bytes,
}

/// A streamed response whose head was received.
#[derive(Debug)]
pub struct EventStream {
    /// The status; when it is not 200, read the rest with [`EventStream::whole`].
    pub status: u16,
    /// Field lines by name.
    pub headers: HeaderMap,
    body: AnswerBody,
    inbox: BytesMut,
    /// When the next frame is read, for a client that is slow.
    pace: Option<tokio::time::Interval>,
}

/// The body of an answer, which a client that may repeat the request has read before.
type AnswerBody = Either<Incoming, Full<Bytes>>;

impl Client {
    /// A client of the server at `url`: scheme, host and port; host names resolve to 127.0.0.1.
    ///
    /// # Panics
    ///
    /// When it is no URL with a port.
    pub fn new(url: &str) -> Self {
        let uri: Uri = url.parse().expect("a URL");
        assert!(uri.port_u16().is_some(), "`{url}` names no port");
        Self {
            uri,
            tls: None,
            http2: false,
            key: None,
            repeated: None,
            shared: Mutex::new(None),
        }
    }

    /// The same with `key` as the bearer of every request.
    #[must_use]
    pub fn with_key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    /// The client with repeats of each request while its answer is a 503 with this text.
    #[must_use]
    pub fn repeating(mut self, text: &'static str) -> Self {
        self.repeated = Some(text);
        self
    }

    /// The same over HTTP/2: by ALPN with TLS, by prior knowledge without.
    #[must_use]
    pub fn with_http2(mut self) -> Self {
        self.http2 = true;
        self.tls = self.tls.map(|config| {
            let mut config = (*config).clone();
            config.alpn_protocols = vec![b"h2".to_vec()];
            Arc::new(config)
        });
        self
    }

    /// The same over TLS, trusting only the authority in `ca_pem`.
    #[must_use]
    pub fn with_tls(mut self, ca_pem: &str) -> Self {
        self.tls = Some(client_config(
            ca_pem,
            &[if self.http2 { "h2" } else { "http/1.1" }],
            None,
        ));
        self
    }

    /// The same, with a certificate of its own.
    #[must_use]
    pub fn with_tls_as(mut self, ca_pem: &str, own: &Certificate) -> Self {
        let alpn = [if self.http2 { "h2" } else { "http/1.1" }];
        self.tls = Some(client_config(ca_pem, &alpn, Some(own)));
        self
    }

    /// `GET path`.
    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request("GET", path, Bytes::new())).await
    }

    /// `POST path` with `body` as JSON.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(self.request("POST", path, body.to_string().into()))
            .await
    }

    /// `POST path` with `body` as JSON, up to the head of the response; the events are read one by one.
    pub async fn stream(&self, path: &str, body: &Value) -> EventStream {
        let request = self.request("POST", path, body.to_string().into());
        self.try_stream(request).await.expect("an answer")
    }

    /// Sends `request` and reads up to the head of the response.
    ///
    /// # Errors
    ///
    /// When the connection is refused or broken before that.
    pub async fn try_stream(&self, request: Request<Bytes>) -> io::Result<EventStream> {
        let answer = within("the head of an answer", self.open(request)).await?;
        let (head, body) = answer.into_parts();
        Ok(EventStream {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
            inbox: BytesMut::new(),
            pace: None,
        })
    }

    /// A request to this server with the client's key, to be changed and sent with [`Client::send`]. `path` starts with a slash.
    ///
    /// # Panics
    ///
    /// When the method or the path is invalid.
    pub fn request(&self, method: &str, path: &str, body: Bytes) -> Request<Bytes> {
        let authority = self.uri.authority().expect("checked in `new`");
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let mut request = Request::builder()
            .method(method)
            .header(CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        let target = match self.http2 {
            true => format!("{scheme}://{authority}{path}"),
            false => path.to_owned(),
        };
        if !self.http2 {
            request = request.header(HOST, authority.as_str());
        }
        request.uri(target).body(body).expect("a method and a path")
    }

    /// Sends `request` and reads the whole response.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub async fn send(&self, request: Request<Bytes>) -> Answer {
        self.try_send(request).await.expect("a whole answer")
    }

    /// Sends `request` and reads the whole response.
    ///
    /// # Errors
    ///
    /// When the connection is refused or broken, or the response is invalid.
    pub async fn try_send(&self, request: Request<Bytes>) -> io::Result<Answer> {
        within("an answer", async {
            let (head, body) = self.open(request).await?.into_parts();
            Ok(Answer {
                status: head.status.as_u16(),
                headers: head.headers,
                body: body.collect().await.map_err(io::Error::other)?.to_bytes(),
            })
        })
        .await
    }

    async fn open(&self, request: Request<Bytes>) -> io::Result<Response<AnswerBody>> {
        loop {
            let (head, body) = self.open_once(request.clone()).await?.into_parts();
            let repeated = self.repeated.filter(|_| head.status.as_u16() == 503);
            let Some(text) = repeated else {
                return Ok(Response::from_parts(head, Either::Left(body)));
            };
            let whole = body.collect().await.map_err(io::Error::other)?.to_bytes();
            if !String::from_utf8_lossy(&whole).contains(text) {
                return Ok(Response::from_parts(head, Either::Right(Full::new(whole))));
            }
        }
    }

    async fn open_once(&self, request: Request<Bytes>) -> io::Result<Response<Incoming>> {
        let mut request = request.map(Full::new);
        if !self.http2 {
            let (mut sender, connection) = http1::handshake(TokioIo::new(self.connect().await?))
                .await
                .map_err(io::Error::other)?;
            tokio::spawn(connection);
            return sender.send_request(request).await.map_err(io::Error::other);
        }
        *request.version_mut() = Version::HTTP_2;
        let shared = self.shared.lock().expect("no panic under the lock").clone();
        let mut sender = match shared.filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => {
                let (sender, connection) =
                    http2::handshake(TokioExecutor::new(), TokioIo::new(self.connect().await?))
                        .await
                        .map_err(io::Error::other)?;
                tokio::spawn(connection);
                *self.shared.lock().expect("no panic under the lock") = Some(sender.clone());
                sender
            }
        };
        sender.ready().await.map_err(io::Error::other)?;
        sender.send_request(request).await.map_err(io::Error::other)
    }

    async fn connect(&self) -> io::Result<Wire> {
        let host = self.uri.host().unwrap_or_default();
        let ip: IpAddr = host.parse().unwrap_or(Ipv4Addr::LOCALHOST.into());
        let port = self.uri.port_u16().unwrap_or_default();
        let socket = TcpStream::connect(SocketAddr::new(ip, port)).await?;
        socket.set_nodelay(true)?;
        let io: Box<dyn Io> = match &self.tls {
            None => Box::new(socket),
            Some(config) => {
                let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
                Box::new(
                    TlsConnector::from(config.clone())
                        .connect(name, socket)
                        .await?,
                )
            }
        };
        Ok(Wire::new(io))
    }
}

impl Answer {
    /// The only value of field `name`; `None` when there is no such field.
    ///
    /// # Panics
    ///
    /// When the field occurs more than once.
    pub fn header(&self, name: &str) -> Option<&str> {
        one_value(&self.headers, name)
    }

    /// The body as text.
    ///
    /// # Panics
    ///
    /// When it is not UTF-8.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a body of text")
    }

    /// The body as JSON.
    ///
    /// # Panics
    ///
    /// When it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|problem| {
            panic!(
                "{problem} in the body {:?}",
                String::from_utf8_lossy(&self.body)
            )
        })
    }
}

impl EventStream {
    /// The only value of field `name`; `None` when there is no such field.
    ///
    /// # Panics
    ///
    /// When the field occurs more than once.
    pub fn header(&self, name: &str) -> Option<&str> {
        one_value(&self.headers, name)
    }

    /// Reads one frame of the body in each period from now on: a client that is slow, and reads all the time.
    pub fn read_slowly(&mut self, period: Duration) {
        self.pace = Some(tokio::time::interval(period));
    }

    /// The next event.
    ///
    /// # Errors
    ///
    /// How the stream ended, when there is no further event.
    pub async fn next_event(&mut self) -> Result<Event, StreamEnd> {
        let mut may_end = true;
        loop {
            if may_end && let Some(event) = event::take(&mut self.inbox) {
                return Ok(event);
            }
            if let Some(pace) = &mut self.pace {
                pace.tick().await;
            }
            match within("an event", self.body.frame()).await {
                Some(Ok(frame)) => {
                    let data = frame.into_data().unwrap_or_default();
                    // A large event is not searched again for each frame of it.
                    may_end = data.contains(&b'\n') || data.contains(&b'\r');
                    self.inbox.extend_from_slice(&data);
                }
                Some(Err(problem)) => return Err(StreamEnd::Cut(problem.to_string())),
                None => return Err(event::end(&self.inbox)),
            }
        }
    }

    /// The remaining events, and how the stream ended.
    pub async fn rest(&mut self) -> (Vec<Event>, StreamEnd) {
        let mut events = Vec::new();
        loop {
            match self.next_event().await {
                Ok(event) => events.push(event),
                Err(end) => return (events, end),
            }
        }
    }

    /// The whole response, for one that turned out not to be a stream.
    ///
    /// # Panics
    ///
    /// When it does not arrive in full.
    pub async fn whole(self) -> Answer {
        self.try_whole().await.expect("the whole body")
    }

    /// The whole response.
    ///
    /// # Errors
    ///
    /// When it does not arrive in full.
    pub async fn try_whole(self) -> io::Result<Answer> {
        let body = within("the body of an answer", self.body.collect()).await;
        Ok(Answer {
            status: self.status,
            headers: self.headers,
            body: body.map_err(io::Error::other)?.to_bytes(),
        })
    }
}
