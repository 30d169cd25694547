//! The HTTP exchange on a connection: the head and body of a call, the head of its answer, the body of an error.

use std::time::Duration;

use bytes::BytesMut;
use http::{HeaderName, HeaderValue, Method, StatusCode, Version, header};
use pingora_core::RetryType;
use pingora_core::protocols::http::client::HttpSession;
use pingora_http::{RequestHeader, ResponseHeader};
use tollgate_chain::UpstreamError;

use super::endpoint::Endpoint;
use super::fault;
use super::h1::{self, RequestHead};
use super::link::{Link, plain_error, pooled_error};
use super::request::{AttemptError, Delivery, ProviderRequest, RequestIds};
use super::retry_after::RetryAfter;
use crate::upstream::wait::within;

/// Maximum bytes read of an error's body.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// Maximum time of the read.
const ERROR_READ_MAX: Duration = Duration::from_secs(5);

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The wait in milliseconds: of Azure and OpenAI, whose client libraries read it first.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
pub(in crate::upstream) const USER_AGENT: HeaderValue =
    HeaderValue::from_static(concat!("tollgate/", env!("CARGO_PKG_VERSION")));
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// The head of a call through Pingora's connector. The head contains no field of the client's head, above all not the client's credential.
fn head(
    endpoint: &Endpoint,
    request: &ProviderRequest,
) -> Result<Box<RequestHeader>, UpstreamError> {
    let url = &endpoint.settings.base_url;
    let target = [url.path.as_str(), request.path].concat();
    let build = || -> pingora_core::Result<RequestHeader> {
        let mut head = RequestHeader::build_no_case(Method::POST, target.as_bytes(), Some(8))?;
        head.set_version(if endpoint.settings.http2 {
            Version::HTTP_2
        } else {
            Version::HTTP_11
        });
        head.insert_header(header::HOST, url.authority.as_str())?;
        head.insert_header(header::CONTENT_TYPE, JSON)?;
        head.insert_header(
            header::CONTENT_LENGTH,
            HeaderValue::from(request.body.len()),
        )?;
        head.insert_header(
            header::ACCEPT,
            if request.stream { EVENT_STREAM } else { JSON },
        )?;
        head.insert_header(header::ACCEPT_ENCODING, IDENTITY)?;
        head.insert_header(header::USER_AGENT, USER_AGENT)?;
        if let Some(authorization) = &endpoint.authorization {
            head.insert_header(header::AUTHORIZATION, authorization.clone())?;
        }
        if let Some(client) = request.client {
            head.insert_header(X_FORWARDED_FOR, client.to_string())?;
        }
        for (name, value) in request.ids.iter().flat_map(RequestIds::fields) {
            head.insert_header(name, value)?;
        }
        Ok(head)
    };
    build()
        .map(Box::new)
        .map_err(|error| fault::invalid(format!("cannot build the call: {error}")))
}

/// Sends a request and reads the head of its answer. `reused` says whether the connection has carried another call.
pub(super) async fn send_request(
    link: &mut Link,
    endpoint: &Endpoint,
    request: &ProviderRequest,
    reused: bool,
) -> Result<ResponseHead, AttemptError> {
    match link {
        Link::Plain(connection, _) => {
            let head = RequestHead {
                heads: &endpoint.heads,
                path: request.path,
                stream: request.stream,
                client: request.client,
                ids: request.ids.as_ref(),
            };
            match connection.send_request(head, &request.body).await {
                Ok(head) => Ok(ResponseHead::from(head)),
                Err(error) => Err(AttemptError {
                    delivery: match error {
                        h1::Error::Unanswered(_) if reused => Delivery::Refused,
                        _ => Delivery::Unknown,
                    },
                    ..plain_error(&error).into()
                }),
            }
        }
        Link::Pooled(session, _) => {
            Box::pin(send_request_pooled(session, endpoint, request, reused)).await
        }
    }
}

async fn send_request_pooled(
    session: &mut HttpSession,
    endpoint: &Endpoint,
    request: &ProviderRequest,
    reused: bool,
) -> Result<ResponseHead, AttemptError> {
    let head = head(endpoint, request)?;
    let is_http2 = matches!(session, HttpSession::H2(_));
    let sent = async {
        session.write_request_header(head).await?;
        session
            .write_request_body(request.body.clone(), true)
            .await?;
        session.finish_request_body().await
    };
    sent.await.map_err(|error| delivery_error(&error, reused))?;
    let mut has_begun = false;
    loop {
        session.read_response_header().await.map_err(|error| {
            // A stream that the provider resets is no evidence of a stale connection, and the provider has received the request.
            let unprocessed = if is_http2 {
                is_unprocessed(&error, reused)
            } else {
                reused
            };
            // After an interim response the provider has the request, and may work on it.
            delivery_error(&error, unprocessed && !has_begun)
        })?;
        match session.response_header() {
            // Ignored (RFC 9110 section 15.2).
            Some(head) if head.status.is_informational() => has_begun = true,
            Some(head) => return Ok(ResponseHead::of(head)),
            None => return Err(fault::cut("the answer has no head").into()),
        }
    }
}

/// Whether an error on an HTTP/2 connection proves that the provider has not processed the request: the provider refused the stream, sent
/// GOAWAY, or had closed the connection already (RFC 9113 section 8.7).
fn is_unprocessed(error: &pingora_core::Error, reused: bool) -> bool {
    match error.retry {
        RetryType::Decided(unprocessed) => unprocessed,
        RetryType::ReusedOnly => reused,
    }
}

fn delivery_error(error: &pingora_core::Error, unprocessed: bool) -> AttemptError {
    let is_valid = *error.etype() != pingora_core::ErrorType::InvalidHTTPHeader;
    let delivery = if unprocessed && is_valid {
        Delivery::Refused
    } else {
        Delivery::Unknown
    };
    AttemptError {
        delivery,
        ..pooled_error(error).into()
    }
}

/// The relevant fields of the head of an answer.
pub(super) struct ResponseHead {
    pub(super) status: StatusCode,
    pub(super) is_stream: bool,
    pub(super) is_encoded: bool,
    pub(super) retry_after: Option<RetryAfter>,
}

impl ResponseHead {
    fn of(head: &ResponseHeader) -> ResponseHead {
        let is_stream = head.headers.get(header::CONTENT_TYPE).is_some_and(|kind| {
            let essence = kind
                .as_bytes()
                .split(|&byte| byte == b';')
                .next()
                .unwrap_or_default();
            essence
                .trim_ascii()
                .eq_ignore_ascii_case(b"text/event-stream")
        });
        let encodings = head.headers.get_all(header::CONTENT_ENCODING);
        let field = |name| head.headers.get(name).map(HeaderValue::as_bytes);
        ResponseHead {
            status: head.status,
            is_stream,
            is_encoded: encodings.iter().any(|value| h1::is_coded(value.as_bytes())),
            retry_after: RetryAfter::read(field(header::RETRY_AFTER), field(RETRY_AFTER_MS)),
        }
    }
}

impl From<h1::Head> for ResponseHead {
    fn from(head: h1::Head) -> ResponseHead {
        ResponseHead {
            status: head.status,
            is_stream: head.is_stream,
            is_encoded: head.is_encoded,
            retry_after: head.retry_after,
        }
    }
}

/// The start of an error's body, bounded in size and time; `left` is the time of the call.
pub(super) async fn read_error(link: &mut Link, left: Duration) -> Vec<u8> {
    let mut body = BytesMut::new();
    let read = async {
        while body.len() < ERROR_BYTES_MAX {
            match link.read_body().await {
                Ok(Some(piece)) => body.extend_from_slice(&piece),
                Ok(None) | Err(_) => break,
            }
        }
    };
    // A body cut by the time limit is used as far as received.
    let _ = within(ERROR_READ_MAX.min(left), read).await;
    body.truncate(ERROR_BYTES_MAX);
    body.to_vec()
}
