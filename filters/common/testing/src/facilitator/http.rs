//! The HTTP server: accepts connections and dispatches each request.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::control;
use super::state::{Reply, Shared};

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
    let path = head.uri.path();
    let query = head.uri.query().unwrap_or_default();
    let bearer = head
        .headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    let reply = match path.strip_prefix("/_control/") {
        Some(action) => Some(control::act(&shared, action, query, &body)),
        None => shared.answer(path, bearer.as_deref(), &body).await,
    };
    let Some(Reply {
        status,
        body,
        location,
    }) = reply
    else {
        return Err(io::Error::other("cut"));
    };
    let mut answer = Response::builder().status(status).header(
        header::CONTENT_TYPE,
        match body.first() {
            Some(b'<') => "text/html",
            _ => "application/json",
        },
    );
    if let Some(location) = location {
        answer = answer.header(header::LOCATION, location);
    }
    answer.body(Full::new(body)).map_err(io::Error::other)
}
