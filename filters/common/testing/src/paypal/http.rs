//! The HTTP server: accepts connections and dispatches each request.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::fault::Operation;
use super::state::Shared;
use super::{control, notices, orders, page, plans, subscriptions};

/// A complete request.
pub(super) struct Arrived {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) headers: http::HeaderMap,
    pub(super) body: Bytes,
}

/// A response; `None` cuts the connection instead.
pub(super) type Answer = Option<Response<Full<Bytes>>>;

pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((socket, _)) = accepted else { continue };
                let shared = shared.clone();
                let answer = service_fn(move |request| respond(request, shared.clone()));
                connections.spawn(async move {
                    let io = TokioIo::new(socket);
                    // A deliberately cut connection ends in an error.
                    let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, answer).await;
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn respond(
    request: Request<Incoming>,
    shared: Arc<Shared>,
) -> io::Result<Response<Full<Bytes>>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let arrived = Arrived {
        method: head.method,
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        headers: head.headers,
        body,
    };
    route(&shared, &arrived)
        .await
        .ok_or_else(|| io::Error::other("cut"))
}

async fn route(shared: &Arc<Shared>, request: &Arrived) -> Answer {
    let segments: Vec<&str> = request.path.split('/').skip(1).collect();
    let post = request.method == Method::POST;
    match segments[..] {
        ["_control", ..] => control::act(shared, request).await,
        ["v1", "oauth2", "token"] if post => orders::token(shared, request),
        ["v2", "checkout", "orders"] if post => orders::create(shared, request),
        ["v2", "checkout", "orders", id] if !post => orders::read(shared, request, id),
        ["v2", "checkout", "orders", id, "capture"] if post => orders::capture(shared, request, id),
        ["v1", "notifications", "certs", _] if !post => notices::certificate(shared),
        ["v1", "notifications", "verify-webhook-signature"] if post => {
            notices::verify(shared, request)
        }
        ["v1", "catalogs", "products"] if post => plans::create_product(shared, request),
        ["v1", "catalogs", "products", id] if !post => plans::read_product(shared, request, id),
        ["v1", "billing", "plans"] if post => plans::create(shared, request),
        ["v1", "billing", "plans"] => plans::list(shared, request),
        ["v1", "billing", "plans", id] if !post => plans::read(shared, request, id),
        ["v1", "billing", "subscriptions"] if post => subscriptions::create(shared, request),
        ["v1", "billing", "subscriptions", id] if !post => subscriptions::read(shared, request, id),
        ["v1", "billing", "subscriptions", id, "transactions"] if !post => {
            subscriptions::transactions(shared, request, id)
        }
        [
            "v1",
            "billing",
            "subscriptions",
            id,
            verb @ ("cancel" | "suspend" | "activate"),
        ] if post => subscriptions::change(shared, request, id, verb),
        ["v2", "payments", "captures", id, "refund"] if post => {
            subscriptions::refund(shared, request, id)
        }
        ["webapps", "billing", "subscriptions"] => page::agreement(shared, request).await,
        ["checkoutnow"] => page::checkout(shared, request).await,
        _ => failure(404, "RESOURCE_NOT_FOUND", None),
    }
}

/// Counts a call and applies its scripted fault: `Err` is a response in its place.
pub(super) fn befall(
    shared: &Shared,
    operation: Operation,
) -> Result<Option<super::Effect>, Box<Answer>> {
    use super::Effect;
    match shared.with(|state| state.befalls(operation)) {
        Some(Effect::LoseCall) => Err(Box::new(None)),
        Some(Effect::Unavailable) => Err(Box::new(failure(503, "SERVICE_UNAVAILABLE", None))),
        Some(Effect::TooMany) => Err(Box::new(failure(429, "RATE_LIMIT_REACHED", None))),
        Some(Effect::Unauthorized) => Err(Box::new(failure(401, "AUTHENTICATION_FAILURE", None))),
        Some(Effect::Refuse) => {
            let issue = Some("COMPLIANCE_VIOLATION");
            Err(Box::new(failure(422, "UNPROCESSABLE_ENTITY", issue)))
        }
        other => Ok(other),
    }
}

/// The effect on the response once its call was executed.
pub(super) fn afterwards(effect: Option<super::Effect>, answer: Answer) -> Answer {
    use super::Effect;
    match effect {
        Some(Effect::LoseAnswer | Effect::Blackout) => None,
        Some(Effect::FailAfter) => failure(500, "INTERNAL_SERVER_ERROR", None),
        _ => answer,
    }
}

pub(super) fn answer(status: u16, body: &Value) -> Answer {
    respond_with(status, "application/json", body.to_string())
}

pub(super) fn respond_with(status: u16, kind: &str, body: impl Into<Bytes>) -> Answer {
    let answer = Response::builder()
        .status(StatusCode::from_u16(status).expect("a status"))
        .header(header::CONTENT_TYPE, kind)
        .header("Paypal-Debug-Id", "f0stand1n")
        .body(Full::new(body.into()));
    Some(answer.expect("plain parts"))
}

/// 204.
pub(super) fn nothing() -> Answer {
    let answer = Response::builder()
        .status(StatusCode::NO_CONTENT)
        .header("Paypal-Debug-Id", "f0stand1n")
        .body(Full::default());
    Some(answer.expect("plain parts"))
}

pub(super) fn redirect(to: &str) -> Answer {
    let answer = Response::builder()
        .status(StatusCode::SEE_OTHER)
        .header(header::LOCATION, to)
        .body(Full::default());
    Some(answer.expect("an address that the merchant gave"))
}

/// An error in PayPal's format.
pub(super) fn failure(status: u16, name: &str, issue: Option<&str>) -> Answer {
    let details: Vec<Value> = issue
        .map(|issue| json!({"issue": issue, "description": "As scripted."}))
        .into_iter()
        .collect();
    answer(
        status,
        &json!({"name": name, "message": "As scripted.", "debug_id": "f0stand1n",
            "details": details, "links": []}),
    )
}
