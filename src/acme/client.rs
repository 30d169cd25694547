//! The HTTP client of a certificate authority, for `instant_acme`.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use parking_lot::Mutex;

use crate::config::AcmeOrder;

/// Time limit of a request.
const REQUEST_MAX: Duration = Duration::from_secs(30);

/// Maximum length of an answer in bytes; a chain has some thousands.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// The longest respected `Retry-After`, so that a mistake of the authority does not end renewals for good.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(2 * 24 * 3600);

/// A client for one attempt.
#[derive(Clone)]
pub(super) struct DirectoryClient {
    client: reqwest::Client,
    retry_after: Arc<Mutex<Option<Duration>>>,
}

impl DirectoryClient {
    pub(super) fn new(order: &AcmeOrder) -> io::Result<DirectoryClient> {
        let mut roots = rustls::RootCertStore::empty();
        match &order.roots {
            Some(own) => roots.add_parsable_certificates(own.iter().cloned()),
            None => roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .https_only(true)
            .redirect(reqwest::redirect::Policy::none())
            .timeout(REQUEST_MAX)
            .no_proxy()
            .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(io::Error::other)?;
        Ok(DirectoryClient {
            client,
            retry_after: Arc::default(),
        })
    }

    /// How long the authority wants no request, by its last refusal.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        *self.retry_after.lock()
    }

    async fn send(self, request: Request<BodyWrapper<Bytes>>) -> Result<BytesResponse, Error> {
        let (parts, body) = request.into_parts();
        let Ok(body) = body.collect().await;
        let mut headers = parts.headers;
        // The gateway's own.
        headers.remove(header::USER_AGENT);
        let sent = self
            .client
            .request(parts.method, parts.uri.to_string())
            .headers(headers)
            .body(body.to_bytes())
            .send();
        let mut response = sent.await.map_err(failed)?;
        let status = response.status();
        if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
            let mut retry_after = self.retry_after.lock();
            *retry_after = seconds(response.headers());
        }
        let mut answer = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if answer.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(Error::Str("an answer of the authority of a usable length"));
            }
            answer.extend_from_slice(&chunk);
        }
        let kind = response.headers().get(header::CONTENT_TYPE);
        let is_problem = kind.is_some_and(|kind| {
            kind.as_bytes().starts_with(b"application/problem+json")
                || kind.as_bytes().starts_with(b"application/json")
        });
        if (status.is_client_error() || status.is_server_error()) && !is_problem {
            let text = format!("the authority answered with status {}", status.as_u16());
            return Err(Error::Other(text.into()));
        }
        let mut complete = Response::new(Full::new(answer.freeze()));
        *complete.status_mut() = status;
        *complete.headers_mut() = std::mem::take(response.headers_mut());
        Ok(BytesResponse::from(complete))
    }
}

impl HttpClient for DirectoryClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        Box::pin(self.clone().send(request))
    }
}

/// `Retry-After` as seconds (RFC 9110 section 10.2.3). Authorities send no dates in this field.
fn seconds(headers: &header::HeaderMap) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    let seconds = value.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

fn failed(error: reqwest::Error) -> Error {
    Error::Other(Box::new(error))
}
