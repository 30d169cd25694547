//! A collector of OpenTelemetry traces: OTLP over HTTP in JSON, with answers scripted in advance.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode};
use http_body_util::Full;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;

use crate::certificate::Certificate;
use crate::guard::within;
use crate::server::{Answer, Arrived, Handler, Server};

/// A collector of traces on loopback. It accepts every export unless an answer was scripted.
pub struct Collector {
    server: Server,
    state: Arc<State>,
    tls: Option<Tls>,
}

/// TLS in front of the server. It ends when this is dropped.
struct Tls {
    port: u16,
    connections: Arc<AtomicUsize>,
    task: AbortHandle,
}

impl Drop for Tls {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Default)]
struct State {
    answers: Mutex<VecDeque<Scripted>>,
    /// The header fields of each export.
    exports: Mutex<Vec<HeaderMap>>,
    spans: watch::Sender<Vec<Span>>,
    arrived: watch::Sender<usize>,
}

#[derive(Clone, Copy)]
enum Scripted {
    Status(u16),
    Never,
}

/// A span that the collector has accepted.
#[derive(Clone, Debug)]
pub struct Span(Value);

impl Span {
    /// A member of the span, as text; empty where there is none.
    pub fn member(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_default()
    }

    /// A member of the span that is a number.
    pub fn number(&self, name: &str) -> u64 {
        let value = &self.0[name];
        let text = value.as_str().and_then(|text| text.parse().ok());
        value.as_u64().or(text).unwrap_or_default()
    }

    /// The value of an attribute, as text whatever its type; empty where there is none.
    pub fn attribute(&self, name: &str) -> String {
        let list = self.0["attributes"].as_array().expect("attributes");
        let found = list.iter().find(|one| one["key"] == name);
        let value = found.and_then(|one| one["value"].as_object()?.values().next());
        match value {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => String::new(),
        }
    }

    /// Whether its status is an error.
    pub fn failed(&self) -> bool {
        self.0["status"]["code"] == 2
    }
}

impl Collector {
    /// Starts one on a free port.
    ///
    /// # Panics
    ///
    /// When this machine has no free port.
    pub async fn start() -> Collector {
        let (server, state) = Server::start(|_: SocketAddr| State::default()).await;
        Collector {
            server,
            state,
            tls: None,
        }
    }

    /// The same, reached by TLS alone, as `localhost` with this certificate.
    ///
    /// # Panics
    ///
    /// As [`Collector::start`].
    pub async fn start_with_tls(certificate: &Certificate) -> Collector {
        let mut collector = Collector::start().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener
            .local_addr()
            .expect("a bound socket has one")
            .port();
        let acceptor = TlsAcceptor::from(certificate.server_config(&["http/1.1"]));
        let behind = collector.server.url().replace("http://", "");
        let connections = Arc::<AtomicUsize>::default();
        let counted = connections.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                counted.fetch_add(1, Relaxed);
                let (acceptor, behind) = (acceptor.clone(), behind.clone());
                tokio::spawn(async move {
                    // A handshake that the client ends is what a test may want.
                    let mut secured = acceptor.accept(socket).await?;
                    let mut plain = TcpStream::connect(behind).await?;
                    tokio::io::copy_bidirectional(&mut secured, &mut plain).await
                });
            }
        });
        collector.tls = Some(Tls {
            port,
            connections,
            task: accepting.abort_handle(),
        });
        collector
    }

    /// Its address as a URL without a path.
    pub fn url(&self) -> String {
        match &self.tls {
            Some(tls) => format!("https://localhost:{}", tls.port),
            None => self.server.url(),
        }
    }

    /// The connections that have been made to it, with a handshake that succeeded or not. Of one with TLS alone.
    pub fn connections(&self) -> usize {
        let tls = self.tls.as_ref();
        tls.map_or(0, |tls| tls.connections.load(Relaxed))
    }

    /// Answers the next exports with these statuses, each once.
    pub fn answer(&self, statuses: &[u16]) {
        let statuses = statuses.iter().map(|status| Scripted::Status(*status));
        lock(&self.state.answers).extend(statuses);
    }

    /// Never answers the next export.
    pub fn hold(&self) {
        lock(&self.state.answers).push_back(Scripted::Never);
    }

    /// Waits until so many exports have arrived, and returns their header fields.
    pub async fn exports(&self, count: usize) -> Vec<HeaderMap> {
        let mut arrived = self.state.arrived.subscribe();
        within("exports of spans", arrived.wait_for(|seen| *seen >= count))
            .await
            .expect("the collector runs");
        lock(&self.state.exports).clone()
    }

    /// Waits until so many spans are accepted, and returns all.
    pub async fn spans(&self, count: usize) -> Vec<Span> {
        let mut spans = self.state.spans.subscribe();
        let spans = within("spans", spans.wait_for(|seen| seen.len() >= count)).await;
        spans.expect("the collector runs").clone()
    }
}

impl Handler for State {
    async fn handle(self: Arc<Self>, request: Arrived) -> Answer {
        lock(&self.exports).push(request.headers.clone());
        let scripted = lock(&self.answers).pop_front();
        self.arrived.send_modify(|seen| *seen += 1);
        let status = match scripted {
            Some(Scripted::Never) => std::future::pending().await,
            Some(Scripted::Status(status)) => status,
            None => match accepted(&request) {
                Some(spans) => {
                    self.spans.send_modify(|all| all.extend(spans));
                    200
                }
                None => 400,
            },
        };
        let mut answer = Response::new(Full::new(Bytes::from(json!({}).to_string())));
        *answer.status_mut() = StatusCode::from_u16(status).expect("a status");
        Some(answer)
    }
}

/// The spans of an export, if all of it is valid OTLP.
fn accepted(request: &Arrived) -> Option<Vec<Span>> {
    let is_export = request.method == Method::POST
        && request.path == "/v1/traces"
        && request.header("content-type") == Some("application/json");
    let body: Value = serde_json::from_slice(&request.body).ok()?;
    let mut spans = Vec::new();
    for resource in body["resourceSpans"].as_array()? {
        resource["resource"]["attributes"].as_array()?;
        for scope in resource["scopeSpans"].as_array()? {
            spans.extend(scope["spans"].as_array()?.iter().cloned().map(Span));
        }
    }
    let is_id = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let all = spans.iter().all(|span| {
        is_id(span.member("traceId"), 32)
            && is_id(span.member("spanId"), 16)
            && !span.member("name").is_empty()
            && span.number("startTimeUnixNano") > 0
            && span.number("startTimeUnixNano") <= span.number("endTimeUnixNano")
    });
    (is_export && all).then_some(spans)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
