//! The HTTP interface, and the webhook for text messages.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;

use super::smtp::base64;
use super::{Behaviour, Delivery, Received, Shared, lock};

type Answer = Response<Full<Bytes>>;

/// A text message in the webhook's format.
#[derive(Deserialize)]
struct Sms {
    id: String,
    to: String,
    text: String,
}

pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>, url: String) {
    while let Ok((socket, _)) = listener.accept().await {
        let (shared, url) = (shared.clone(), url.clone());
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let (shared, url) = (shared.clone(), url.clone());
                async move { Ok::<_, Infallible>(answer(request, &shared, &url).await) }
            });
            // A client that disconnects in the middle is no error here.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
    }
}

async fn answer(request: Request<Incoming>, shared: &Shared, url: &str) -> Answer {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return plain(StatusCode::BAD_REQUEST, "half a request");
    };
    let body = body.to_bytes();
    let query = head.uri.query().unwrap_or("");
    match (&head.method, head.uri.path()) {
        (&Method::GET, "/") => page(shared),
        (&Method::GET, "/_control/messages") => {
            let to = query.split('&').find_map(|pair| pair.strip_prefix("to="));
            let to = to.map(decoded);
            let received = lock(&shared.received);
            let own = received
                .iter()
                .filter(|message| to.as_ref().is_none_or(|to| message.to == *to));
            let own: Vec<_> = own.collect();
            let text = serde_json::to_string(&own).expect("messages serialise");
            typed(StatusCode::OK, "application/json", text)
        }
        (&Method::POST, "/_control/behave") => match serde_json::from_slice::<Behaviour>(&body) {
            Ok(behaviour) => {
                *lock(&shared.behaviour) = behaviour;
                plain(StatusCode::NO_CONTENT, "")
            }
            Err(error) => plain(StatusCode::BAD_REQUEST, &error.to_string()),
        },
        (&Method::POST, "/sms") => {
            if let Some(secret) = &shared.settings.sms_secret
                && !is_signed(&head.headers, &format!("{url}/sms"), &body, secret)
            {
                return plain(StatusCode::FORBIDDEN, "the signature is not right");
            }
            let Ok(sms) = serde_json::from_slice::<Sms>(&body) else {
                return plain(StatusCode::BAD_REQUEST, "no message");
            };
            let (delivery, lag_ms) = shared.delivery();
            if matches!(delivery, Delivery::Take | Delivery::Drop) {
                shared.keep(Received {
                    kind: "sms",
                    to: sms.to,
                    from: String::new(),
                    subject: String::new(),
                    text: sms.text,
                    id: sms.id,
                    copies: 1,
                    tls: false,
                });
            }
            tokio::time::sleep(Duration::from_millis(lag_ms)).await;
            match delivery {
                Delivery::Take => plain(StatusCode::ACCEPTED, "taken"),
                Delivery::Reject => plain(StatusCode::BAD_REQUEST, "no such number"),
                Delivery::Refuse | Delivery::Drop => {
                    plain(StatusCode::SERVICE_UNAVAILABLE, "not now")
                }
            }
        }
        _ => plain(StatusCode::NOT_FOUND, "nothing here"),
    }
}

/// Whether a request is signed according to RFC 9421, with the four components that the webhook documents.
fn is_signed(headers: &http::HeaderMap, url: &str, body: &[u8], secret: &str) -> bool {
    let field = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let (Some(digest), Some(input), Some(signature), Some(kind)) = (
        field("content-digest"),
        field("signature-input"),
        field("signature"),
        field("content-type"),
    ) else {
        return false;
    };
    let Some(params) = input.strip_prefix("sig1=") else {
        return false;
    };
    let covered =
        params.starts_with("(\"@method\" \"@target-uri\" \"content-digest\" \"content-type\");");
    let own = format!("sha-256=:{}:", base64(&Sha256::digest(body)));
    let base = format!(
        "\"@method\": POST\n\"@target-uri\": {url}\n\"content-digest\": {digest}\n\"content-type\": {kind}\n\"@signature-params\": {params}"
    );
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("any length");
    mac.update(base.as_bytes());
    let wanted = format!("sig1=:{}:", base64(&mac.finalize().into_bytes()));
    covered && own == digest && wanted == signature
}

fn page(shared: &Shared) -> Answer {
    let mut text = String::from(
        "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=3>\
         <meta name=viewport content='width=device-width'><title>Mailbox</title>\
         <style>body{font:16px/1.5 system-ui;max-width:44rem;margin:2rem auto;padding:0 1rem}\
         article{border:1px solid #ccc;border-radius:8px;padding:1rem;margin:1rem 0}pre{white-space:pre-wrap}</style>\
         <h1>Mailbox of the demo</h1><p>Everybody’s mail and text messages, the newest first.</p>",
    );
    let received = lock(&shared.received);
    if received.is_empty() {
        text += "<p>Nothing yet.</p>";
    }
    for message in received.iter().rev() {
        text += &format!(
            "<article><b>{}</b> to {}<pre>{}</pre></article>",
            escaped(&message.subject),
            escaped(&message.to),
            escaped(&message.text)
        );
    }
    typed(StatusCode::OK, "text/html; charset=utf-8", text)
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('"', "&quot;")
}

/// Decodes percent-encoding.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        let hex = after.get(..2).filter(|_| *first == b'%');
        let byte = hex
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match byte {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => bytes.push(*first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn plain(status: StatusCode, text: &str) -> Answer {
    typed(status, "text/plain; charset=utf-8", text.to_owned())
}

fn typed(status: StatusCode, kind: &'static str, text: String) -> Answer {
    let mut answer = Response::new(Full::new(text.into()));
    *answer.status_mut() = status;
    let kind = http::HeaderValue::from_static(kind);
    answer
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, kind);
    answer
}
