//! What is said on a connection: the head and body of a call, the head of its answer, the words of an error.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, StatusCode, Version, header};
use pingora_http::{RequestHeader, ResponseHeader};
use tollgate_chain::UpstreamError;

use super::call::Link;
use super::fault;
use super::providers::Provider;
use super::retry_after::RetryAfter;
use crate::socket::{Corked, Tcp};
use crate::wait::within;

/// Of an error's body no more than this is read.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// For no longer than this.
const ERROR_READ_MAX: Duration = Duration::from_secs(5);

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
pub(super) const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("tollgate/", env!("CARGO_PKG_VERSION")));
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// The head of a call. Nothing of the client's head is in it: above all not its credential.
pub(super) fn head(
    provider: &Provider,
    path: &str,
    stream: bool,
    length: usize,
) -> Result<Box<RequestHeader>, UpstreamError> {
    let url = &provider.settings.base_url;
    let target = [url.path.as_str(), path].concat();
    let build = || -> pingora_core::Result<RequestHeader> {
        let mut head = RequestHeader::build_no_case(Method::POST, target.as_bytes(), Some(8))?;
        head.set_version(if provider.settings.http2 {
            Version::HTTP_2
        } else {
            Version::HTTP_11
        });
        head.insert_header(header::HOST, url.authority.as_str())?;
        head.insert_header(header::CONTENT_TYPE, JSON)?;
        head.insert_header(header::CONTENT_LENGTH, HeaderValue::from(length))?;
        head.insert_header(header::ACCEPT, if stream { EVENT_STREAM } else { JSON })?;
        head.insert_header(header::ACCEPT_ENCODING, IDENTITY)?;
        head.insert_header(header::USER_AGENT, AGENT)?;
        if let Some(authorization) = &provider.authorization {
            head.insert_header(header::AUTHORIZATION, authorization.clone())?;
        }
        Ok(head)
    };
    build()
        .map(Box::new)
        .map_err(|error| fault::invalid(format!("cannot build the call: {error}")))
}

pub(super) async fn send(
    link: &mut Link,
    head: Box<RequestHeader>,
    body: Bytes,
) -> pingora_core::Result<()> {
    match link {
        Link::Plain(session, _) => {
            // The stream is corked, so that head and body leave in one packet; the end of the body lets both go.
            session.write_request_header(head).await?;
            session.write_body(&body).await?;
            if let Some(stream) = session.stream().as_any().downcast_ref::<Corked<Tcp>>() {
                stream.handle().set(false);
            }
            session.finish_body().await?;
            if let Some(stream) = session.stream().as_any().downcast_ref::<Corked<Tcp>>() {
                stream.handle().set(true);
            }
            Ok(())
        }
        Link::Pooled(session, _) => {
            session.write_request_header(head).await?;
            session.write_request_body(body, true).await?;
            session.finish_request_body().await
        }
    }
}

/// What matters of the head of an answer.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) is_stream: bool,
    pub(super) is_encoded: bool,
    pub(super) retry_after: Option<RetryAfter>,
}

impl Answer {
    fn of(head: &ResponseHeader) -> Answer {
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
        let encoding = head.headers.get(header::CONTENT_ENCODING);
        let wait = head.headers.get(header::RETRY_AFTER);
        Answer {
            status: head.status,
            is_stream,
            is_encoded: encoding.is_some_and(|value| value != IDENTITY),
            retry_after: wait.and_then(|value| RetryAfter::read(value.to_str().ok()?)),
        }
    }
}

/// The final head of the answer; informational ones are passed over (RFC 9110 section 15.2).
pub(super) async fn read_head(link: &mut Link) -> pingora_core::Result<Answer> {
    loop {
        let head = match link {
            Link::Plain(session, _) => {
                session.read_response().await?;
                session.resp_header()
            }
            Link::Pooled(session, _) => {
                session.read_response_header().await?;
                session.response_header()
            }
        };
        match head {
            Some(head) if head.status.is_informational() => {}
            Some(head) => return Ok(Answer::of(head)),
            None => {
                let kind = pingora_core::ErrorType::ConnectionClosed;
                return Err(pingora_core::Error::new(kind));
            }
        }
    }
}

/// As much of an error's body as is worth reading.
pub(super) async fn read_error(link: &mut Link) -> Vec<u8> {
    let mut body = BytesMut::new();
    let read = async {
        while body.len() < ERROR_BYTES_MAX {
            match link.read_body().await {
                Ok(Some(piece)) => body.extend_from_slice(&piece),
                Ok(None) | Err(_) => break,
            }
        }
    };
    // What came in time is better than nothing.
    let _ = within(ERROR_READ_MAX, read).await;
    body.truncate(ERROR_BYTES_MAX);
    body.to_vec()
}
