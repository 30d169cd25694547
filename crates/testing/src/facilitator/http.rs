//! Requests over HTTP: control calls, and those of the protocol.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, header};
use http_body_util::Full;

use super::control;
use super::state::{Reply, Shared};
use crate::server::{Answer, Arrived, Handler};

impl Handler for Shared {
    async fn handle(self: Arc<Self>, request: Arrived) -> Answer {
        let bearer = request.header("authorization");
        let reply = match request.path.strip_prefix("/_control/") {
            Some(action) => control::act(&self, action, &request),
            None => self.answer(&request.path, bearer, &request.body).await?,
        };
        Some(response(reply))
    }
}

fn response(reply: Reply) -> Response<Full<Bytes>> {
    let kind = match reply.body.first() {
        Some(b'<') => "text/html",
        _ => "application/json",
    };
    let mut response = Response::builder()
        .status(reply.status)
        .header(header::CONTENT_TYPE, kind);
    if let Some(location) = reply.location {
        response = response.header(header::LOCATION, location);
    }
    let response = response.body(Full::new(reply.body));
    response.expect("a scripted status, and a location made of a request's path")
}
