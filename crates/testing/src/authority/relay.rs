//! The relay in front of pebble: it passes requests on as they are, or misbehaves as scripted.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::{Mutex, MutexGuard};
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::certificate::{Certificate, client_config};
use crate::fault::{Fault, Faults};
use crate::guard::within;

/// The path of renewal information.
const RENEWAL_INFO: &str = "/renewal-info";

/// A call of an ACME client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AcmeCall {
    /// The directory.
    Directory,
    /// A new account.
    NewAccount,
    /// A new order.
    NewOrder,
    /// A challenge is ready.
    Challenge,
    /// The request for the certificate.
    Finalize,
    /// Renewal information.
    RenewalInfo,
    /// Anything else.
    Other,
}

impl AcmeCall {
    /// By the paths of pebble.
    fn of(path: &str) -> AcmeCall {
        let first = path.split('/').nth(1).unwrap_or_default();
        match first {
            "dir" => AcmeCall::Directory,
            "sign-me-up" => AcmeCall::NewAccount,
            "order-plz" => AcmeCall::NewOrder,
            "chalZ" => AcmeCall::Challenge,
            "finalize-order" => AcmeCall::Finalize,
            "renewal-info" => AcmeCall::RenewalInfo,
            _ => AcmeCall::Other,
        }
    }
}

/// What happens to a call instead.
#[derive(Clone, Debug)]
pub enum Misbehaviour {
    /// A problem (RFC 8555 section 6.7): status, type without its prefix, and `Retry-After` in seconds.
    Problem(u16, &'static str, Option<u32>),
    /// A status with a page of HTML, as of a proxy in front of an authority.
    Page(u16),
    /// The connection is cut.
    Cut,
    /// No answer.
    Never,
}

/// The relay. It stops when this is dropped.
pub(super) struct Relay {
    port: u16,
    state: Arc<State>,
    task: AbortHandle,
}

struct State {
    pebble: SocketAddr,
    connector: TlsConnector,
    faults: Mutex<Faults<AcmeCall, Misbehaviour>>,
    window: Mutex<Option<(i64, i64)>>,
    replaced: Mutex<Vec<String>>,
    called: watch::Sender<()>,
}

impl Relay {
    pub(super) async fn start(pebble: SocketAddr, certificate: &Certificate) -> Relay {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port on loopback");
        let port = listener
            .local_addr()
            .expect("a bound socket has one")
            .port();
        let acceptor = TlsAcceptor::from(certificate.server_config(&["http/1.1"]));
        let config = client_config(&certificate.ca_pem, &["http/1.1"], None);
        let state = Arc::new(State {
            pebble,
            connector: TlsConnector::from(config),
            faults: Mutex::default(),
            window: Mutex::default(),
            replaced: Mutex::default(),
            called: watch::Sender::new(()),
        });
        let serving = state.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, state) = (acceptor.clone(), serving.clone());
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(socket).await else {
                        return;
                    };
                    let answer = service_fn(move |request| state.clone().answer(request));
                    let served = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), answer);
                    // A deliberately cut connection ends in an error.
                    let _ = served.await;
                });
            }
        });
        Relay {
            port,
            state,
            task: task.abort_handle(),
        }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn misbehave(&self, at: AcmeCall, how: Misbehaviour, times: u32) {
        lock(&self.state.faults).add(Fault::once(at, how).times(times));
    }

    pub(super) fn calls(&self, of: AcmeCall) -> u64 {
        lock(&self.state.faults).calls(of)
    }

    pub(super) async fn called(&self, of: AcmeCall, times: u64) {
        let mut called = self.state.called.subscribe();
        let reached = called.wait_for(|()| self.calls(of) >= times);
        within("calls of the authority", reached)
            .await
            .expect("the relay runs");
    }

    pub(super) fn suggest_renewal(&self, start: i64, end: i64) {
        *lock(&self.state.window) = Some((start, end));
    }

    pub(super) fn replaced(&self) -> Vec<String> {
        lock(&self.state.replaced).clone()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl State {
    async fn answer(
        self: Arc<State>,
        request: Request<Incoming>,
    ) -> io::Result<Response<Full<Bytes>>> {
        let call = AcmeCall::of(request.uri().path());
        let fault = lock(&self.faults).on_call(call);
        self.called.send_replace(());
        match fault {
            None => self.pass(call, request).await,
            Some(Misbehaviour::Problem(status, kind, retry_after)) => {
                let problem = json!({
                    "type": format!("urn:ietf:params:acme:error:{kind}"),
                    "detail": "as the test has scripted",
                    "status": status,
                });
                let mut answer = json_answer(&problem, "application/problem+json");
                *answer.status_mut() = StatusCode::from_u16(status).expect("a status");
                if let Some(seconds) = retry_after {
                    let headers = answer.headers_mut();
                    headers.insert(header::RETRY_AFTER, seconds.into());
                }
                Ok(answer)
            }
            Some(Misbehaviour::Page(status)) => {
                let mut answer = Response::new(Full::new(Bytes::from("<h1>Trouble</h1>")));
                *answer.status_mut() = StatusCode::from_u16(status).expect("a status");
                Ok(answer)
            }
            Some(Misbehaviour::Cut) => Err(io::Error::other("cut")),
            Some(Misbehaviour::Never) => std::future::pending().await,
        }
    }

    async fn pass(
        &self,
        call: AcmeCall,
        request: Request<Incoming>,
    ) -> io::Result<Response<Full<Bytes>>> {
        let window = *lock(&self.window);
        if let (AcmeCall::RenewalInfo, Some((start, end))) = (call, window) {
            return Ok(information(start, end));
        }
        let host = request.headers().get(header::HOST).cloned();
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let replaces = replaces(&body).filter(|_| call == AcmeCall::NewOrder);
        let socket = TcpStream::connect(self.pebble).await?;
        let name = ServerName::try_from("localhost").expect("a name");
        let stream = self.connector.connect(name, socket).await?;
        let sent = hyper::client::conn::http1::handshake(TokioIo::new(stream));
        let (mut sender, connection) = sent.await.map_err(io::Error::other)?;
        let connection = tokio::spawn(connection);
        let passed = sender.send_request(Request::from_parts(head, Full::new(body)));
        let (mut head, body) = passed.await.map_err(io::Error::other)?.into_parts();
        let mut body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        connection.abort();
        let mut change = |name: &str, value: Value| {
            if let Ok(mut document) = serde_json::from_slice::<Value>(&body) {
                document[name] = value;
                body = document.to_string().into();
                head.headers.remove(header::CONTENT_LENGTH);
            }
        };
        if let (AcmeCall::Directory, Some(_), Some(host)) = (call, window, host) {
            let host = host.to_str().unwrap_or_default();
            change(
                "renewalInfo",
                format!("https://{host}{RENEWAL_INFO}").into(),
            );
        }
        if let Some(id) = replaces
            && head.status == StatusCode::CREATED
        {
            change("replaces", id.as_str().into());
            lock(&self.replaced).push(id);
        }
        Ok(Response::from_parts(head, Full::new(body)))
    }
}

/// Renewal information (RFC 9773 section 4.2).
fn information(start: i64, end: i64) -> Response<Full<Bytes>> {
    let time = |seconds| {
        let at = jiff::Timestamp::from_second(seconds).expect("a time");
        at.to_string()
    };
    let window = json!({"suggestedWindow": {"start": time(start), "end": time(end)}});
    let mut answer = json_answer(&window, "application/json");
    let headers = answer.headers_mut();
    headers.insert(header::RETRY_AFTER, 21_600_u32.into());
    answer
}

fn json_answer(document: &Value, kind: &'static str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from(document.to_string())));
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    answer
}

/// The member `replaces` of a signed order.
fn replaces(body: &[u8]) -> Option<String> {
    let signed: Value = serde_json::from_slice(body).ok()?;
    let payload = BASE64_URL_SAFE_NO_PAD
        .decode(signed["payload"].as_str()?)
        .ok()?;
    let order: Value = serde_json::from_slice(&payload).ok()?;
    order["replaces"].as_str().map(str::to_owned)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
