//! The admin HTTP endpoints: `/live`, `/ready`, `/metrics`, `/providers`, `/cache`, and the admin API.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tollgate_filter::gzip::{self, Effort};
use tollgate_filter::{AddressPrefix, ApiError, ErrorCode, ErrorShape};

use super::access::Access;
use super::api::Api;
use super::changes::Actor;
use super::operations::cache;
use super::operations::operation::Changes;
use super::origin;
use super::running::{JsonSource, Liveness, Readiness, Workers};
use crate::config::AdminRole;
use crate::proxy::{Connection, Connections, Places};
use crate::telemetry::{ConnectionSide, Telemetry};

/// Connections at once; a scraper needs a single connection. A new connection evicts a connection without an open request. The rest after
/// an answer is zero: with a rest, clients with repeated requests would keep out a probe of their own address.
const PLACES: Places = Places {
    max: 256,
    per_address_max: 64,
    rest: Duration::ZERO,
};
/// Time limit for a TLS handshake, and for the head of a request.
const HEAD: Duration = Duration::from_secs(5);
/// Time limit for new requests on a connection. An open request is still answered, without a time limit.
const CONNECTION: Duration = Duration::from_secs(60);
/// Time limit for the client to read the last answer of a closing connection.
const LAST_ANSWER: Duration = Duration::from_secs(10);
/// The text format of Prometheus.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The sources of the endpoints.
pub(super) struct Endpoints {
    pub(super) telemetry: Telemetry,
    pub(super) liveness: Liveness,
    pub(super) readiness: Readiness,
    pub(super) providers: JsonSource,
    pub(super) service: Arc<dyn Changes>,
    pub(super) access: Arc<Access>,
    pub(super) api: Option<Api>,
    /// Time limit for the answers to open requests when the gateway stops.
    pub(super) answers_within: Duration,
}

/// The client of a connection.
#[derive(Clone, Copy)]
struct Peer {
    address: SocketAddr,
    /// Whether reads need no token: the address is on loopback, or the client is known by a certificate.
    is_trusted: bool,
}

/// Serves until `stopped` completes.
pub(super) async fn serve(
    listener: std::net::TcpListener,
    endpoints: Endpoints,
    mut stopped: watch::Receiver<bool>,
    mut released: watch::Receiver<bool>,
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "serving health and metrics failed");
            return;
        }
    };
    let connections = Connections::new(
        PLACES,
        endpoints.access.clock().clone(),
        endpoints.telemetry.clone(),
        ConnectionSide::Admin,
    );
    let answers_within = endpoints.answers_within;
    let endpoints = Arc::new(endpoints);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stop| *stop) => break,
            _ = released.wait_for(|released| *released) => break,
        };
        let Ok((stream, peer)) = accepted else {
            // Out of file descriptors, most likely: wait until a descriptor is closed.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Some(mut connection) = connections.accept(Some(AddressPrefix::of(peer.ip()))) else {
            continue;
        };
        // Waits only while every place has an open request.
        tokio::select! {
            () = connection.take_place() => {}
            _ = stopped.wait_for(|stop| *stop) => break,
        }
        let (endpoints, stopped) = (endpoints.clone(), stopped.clone());
        let task_slot = connection.task_slot();
        let task = tokio::spawn(async move {
            let mut peer = Peer {
                address: peer,
                is_trusted: endpoints.access.is_local(),
            };
            match endpoints.access.acceptor() {
                None => serve_connection(stream, endpoints, peer, &connection, stopped).await,
                Some((acceptor, is_known)) => {
                    peer.is_trusted |= is_known;
                    let handshake = tokio::time::timeout(HEAD, acceptor.accept(stream));
                    match handshake.await {
                        Ok(Ok(stream)) => {
                            serve_connection(stream, endpoints, peer, &connection, stopped).await;
                        }
                        Ok(Err(error)) => {
                            tracing::debug!(%error, peer = %peer.address, "admin TLS handshake failed");
                        }
                        Err(_) => {}
                    }
                }
            }
        });
        task_slot.set(task.abort_handle());
    }
    drop(listener);
    let _ = stopped.wait_for(|stop| *stop).await;
    let _ = tokio::time::timeout(answers_within, connections.all_ended()).await;
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    endpoints: Arc<Endpoints>,
    peer: Peer,
    place: &Connection,
    mut stopped: watch::Receiver<bool>,
) {
    let (under_way, mut is_under_way) = watch::channel(false);
    let service = service_fn(|request: Request<Incoming>| {
        let endpoints = endpoints.clone();
        under_way.send_replace(true);
        // A separate task: an operator's act is completed and recorded even after the client has disconnected.
        let answer = place
            .begin()
            .then(|| tokio::spawn(async move { endpoints.answer(request, peer).await }));
        let under_way = &under_way;
        async move {
            let Some(answer) = answer else {
                return Err(EndedError::Evicted);
            };
            let answer = answer.await;
            under_way.send_replace(false);
            place.end();
            answer.map_err(EndedError::Panicked)
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        // Errors of a scraper's connection are ignored.
        _ = connection.as_mut() => return,
        () = tokio::time::sleep(CONNECTION) => {}
        _ = stopped.wait_for(|stop| *stop) => {}
    }
    connection.as_mut().graceful_shutdown();
    let limit = async {
        // The sender lives until the end of the function.
        let _ = is_under_way.wait_for(|is| !is).await;
        tokio::time::sleep(LAST_ANSWER).await;
    };
    tokio::select! {
        _ = connection => {}
        () = limit => {}
    }
}

/// Why a connection ends without an answer.
#[derive(Debug, thiserror::Error)]
enum EndedError {
    #[error("the connection is being closed for a new one")]
    Evicted,
    #[error("the request panicked")]
    Panicked(#[source] tokio::task::JoinError),
}

impl Endpoints {
    async fn answer(&self, request: Request<Incoming>, peer: Peer) -> Response<Full<Bytes>> {
        if let Err(refusal) = origin::check(&request, self.access.is_local()) {
            return refused(&refusal);
        }
        let path = request.uri().path();
        if let Some(api) = self.api.as_ref().filter(|_| Api::has(path)) {
            return api.respond(request, peer.address).await;
        }
        let is_purge = path == "/cache" && *request.method() == Method::DELETE;
        let is_change = is_purge && !self.access.is_local();
        let is_health = matches!(path, "/live" | "/ready");
        let mut peer = peer;
        // The reasons are for clients with access to metrics. A client with an invalid token gets the status alone, like a client without a
        // token.
        if is_health && !peer.is_trusted && request.headers().contains_key(header::AUTHORIZATION) {
            peer.is_trusted = self.access.token(request.headers(), peer.address).is_ok();
        }
        let mut actor = Actor::Address(peer.address.ip());
        if is_change || !(peer.is_trusted || is_health) {
            let role = match path {
                _ if is_change => AdminRole::Operate,
                "/cache" => AdminRole::Read,
                _ => AdminRole::Monitor,
            };
            match self.access.token(request.headers(), peer.address) {
                Ok(token) if token.role >= role => actor = Actor::Token(token.name.to_string()),
                Ok(token) => {
                    let (has, needs) = (token.role.word(), role.word());
                    let message =
                        format!("The token has the role `{has}`, and this needs `{needs}`.");
                    return refused(&ApiError::new(ErrorCode::KeyNotPermitted, message));
                }
                Err(error) => return refused(&error),
            }
        }
        match path {
            "/cache" => {
                let (method, query) = (request.method(), request.uri().query());
                self.cache(method, query, actor).await
            }
            _ => self.respond(&request, peer).await,
        }
    }

    async fn respond(&self, request: &Request<Incoming>, peer: Peer) -> Response<Full<Bytes>> {
        let known = matches!(
            request.uri().path(),
            "/live" | "/ready" | "/metrics" | "/providers"
        );
        if known && !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = response(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "use GET\n");
            response
                .headers_mut()
                .insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match request.uri().path() {
            "/live" => live(&(self.liveness)().await),
            "/ready" => self.ready(peer.is_trusted).await,
            "/metrics" => self.metrics(request.headers()),
            "/providers" => {
                let body = format!("{}\n", (self.providers)());
                response(StatusCode::OK, "application/json", body)
            }
            _ => response(
                StatusCode::NOT_FOUND,
                "text/plain",
                "here are /live, /ready, /metrics, /providers, /cache and /admin/v1/openapi.json\n",
            ),
        }
    }

    /// The metrics, with gzip for a scraper that accepts gzip: Prometheus does.
    fn metrics(&self, headers: &HeaderMap) -> Response<Full<Bytes>> {
        let text = self.telemetry.metrics().render();
        let is_compressed = gzip::is_accepted(headers);
        let body = match is_compressed {
            true => gzip::compress(text.as_bytes(), Effort::Fast),
            false => text.into(),
        };
        let mut response = response(StatusCode::OK, METRICS, body);
        let headers = response.headers_mut();
        let vary = HeaderValue::from_static("accept-encoding");
        headers.insert(header::VARY, vary);
        if is_compressed {
            let coding = HeaderValue::from_static("gzip");
            headers.insert(header::CONTENT_ENCODING, coding);
        }
        response
    }

    /// The contents of the cache (GET), or the removal of entries (DELETE with `?id=`, `?model=` or `?all`).
    async fn cache(
        &self,
        method: &Method,
        query: Option<&str>,
        actor: Actor,
    ) -> Response<Full<Bytes>> {
        let caller = actor.into();
        let answer = match *method {
            Method::GET | Method::HEAD => {
                let shown = self.service.perform(cache::Show {}, caller).await;
                shown.map(|state| serde_json::json!(state))
            }
            Method::DELETE => {
                let (name, value) = query
                    .map(|query| query.split_once('=').unwrap_or((query, "")))
                    .unwrap_or_default();
                let named = (!value.is_empty()).then(|| value.to_owned());
                let (id, model) = match (name, named) {
                    ("id", id @ Some(_)) => (id, None),
                    ("model", model @ Some(_)) => (None, model),
                    ("all", None) => (None, None),
                    _ => {
                        let message = "use ?id=ENTRY, ?model=NAME or ?all\n";
                        return response(StatusCode::BAD_REQUEST, "text/plain", message);
                    }
                };
                let purged = self.service.perform(cache::Purge { id, model }, caller);
                purged.await.map(|purged| serde_json::json!(purged))
            }
            _ => {
                let message = "use GET or DELETE\n";
                let mut response = response(StatusCode::METHOD_NOT_ALLOWED, "text/plain", message);
                let allow = HeaderValue::from_static("GET, HEAD, DELETE");
                response.headers_mut().insert(header::ALLOW, allow);
                return response;
            }
        };
        match answer {
            Ok(body) => response(StatusCode::OK, "application/json", format!("{body}\n")),
            Err(error) => response(StatusCode::BAD_REQUEST, "text/plain", format!("{error}\n")),
        }
    }

    /// Readiness; the reasons only `with_reasons`.
    async fn ready(&self, with_reasons: bool) -> Response<Full<Bytes>> {
        let workers = (self.liveness)().await;
        let mut ready = (self.readiness)();
        if let Some(message) = unresponsive(&workers) {
            // The responsive workers still serve. Without a responsive worker no request is served.
            if workers.unresponsive.len() == workers.all {
                ready.reasons.push(message);
            } else {
                ready.warnings.push(message);
            }
        }
        let status = if ready.reasons.is_empty() {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        let mut body = serde_json::json!({ "ready": ready.reasons.is_empty() });
        if with_reasons {
            body["reasons"] = ready.reasons.into();
            body["warnings"] = ready.warnings.into();
        }
        response(status, "application/json", format!("{body}\n"))
    }
}

fn live(workers: &Workers) -> Response<Full<Bytes>> {
    match unresponsive(workers) {
        None => response(StatusCode::OK, "text/plain", "live\n"),
        Some(message) => {
            let message = format!("{message}\n");
            response(StatusCode::SERVICE_UNAVAILABLE, "text/plain", message)
        }
    }
}

/// A message with the names of the unresponsive workers.
fn unresponsive(workers: &Workers) -> Option<String> {
    let Workers { all, unresponsive } = workers;
    if unresponsive.is_empty() {
        return None;
    }
    let names: Vec<String> = unresponsive
        .iter()
        .map(|number| format!("worker-{number}"))
        .collect();
    let (count, names) = (names.len(), names.join(", "));
    Some(format!("{count} of {all} workers do not answer: {names}"))
}

fn refused(error: &ApiError) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(error.body(ErrorShape::Envelope)));
    *response.status_mut() = error.status();
    error.write_headers(response.headers_mut());
    response
}

fn response(
    status: StatusCode,
    media_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests;
