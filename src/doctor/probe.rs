//! Requests to model providers, and the HTTP client of `doctor`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, DATE, USER_AGENT};
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use reqwest::redirect;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use secrecy::ExposeSecret;

use crate::config::Provider;
use crate::telemetry;

/// Time limit of the request.
pub(super) const LIMIT: Duration = Duration::from_secs(8);

/// The most bytes of a list of models.
const BODY_BYTES_MAX: usize = 4 << 20;

/// An answer.
pub(super) struct Probed {
    pub(super) status: u16,
    /// The value of `Date`, in seconds since 1970.
    pub(super) date: Option<i64>,
    pub(super) body: Bytes,
}

/// `GET /models` at a provider, with the gateway's key: the cheapest request of its protocol, without charge.
pub(super) async fn list_models(provider: &Provider) -> Result<Probed, String> {
    let mut request = Request::get(format!("{}/models", provider.base_url))
        .header(ACCEPT, "application/json")
        .header(
            USER_AGENT,
            concat!("tollgate/", env!("CARGO_PKG_VERSION"), " doctor"),
        );
    if let Some(key) = &provider.api_key {
        let value = HeaderValue::try_from(format!("Bearer {}", key.expose_secret()));
        let mut value = value.map_err(|_| "its key has characters that no key has".to_owned())?;
        value.set_sensitive(true);
        request = request.header(AUTHORIZATION, value);
    }
    let request = request.body(Full::<Bytes>::default());
    let request = request.map_err(|error| telemetry::chain(&error))?;
    let sent = async {
        match provider.http2 && !provider.base_url.tls {
            true => send_h2c(request).await,
            false => {
                let tls = provider.base_url.tls;
                let client = client(provider.roots.as_deref(), tls)?;
                let client = client.connect_timeout(provider.timeouts.connect).build();
                send(&client.map_err(|error| telemetry::chain(&error))?, request).await
            }
        }
    };
    let limited = tokio::time::timeout(LIMIT, sent).await;
    limited.unwrap_or_else(|_| Err(format!("no answer within {} seconds", LIMIT.as_secs())))
}

async fn send(client: &reqwest::Client, request: Request<Full<Bytes>>) -> Result<Probed, String> {
    let failed = |error: reqwest::Error| telemetry::chain(&error.without_url());
    let request = reqwest::Request::try_from(request.map(|_| reqwest::Body::default()));
    let sent = client.execute(request.map_err(failed)?).await;
    collect(Response::<reqwest::Body>::from(sent.map_err(failed)?)).await
}

/// HTTP/2 by prior knowledge, as a provider without TLS and with `http2` is called.
async fn send_h2c(request: Request<Full<Bytes>>) -> Result<Probed, String> {
    let client = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    let sent = client.request(request).await;
    collect(sent.map_err(|error| telemetry::chain(&error))?).await
}

async fn collect<B>(answer: Response<B>) -> Result<Probed, String>
where
    B: hyper::body::Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, BODY_BYTES_MAX).collect().await;
    let body = body.map_err(|error| telemetry::chain(&*error))?;
    let date = head.headers.get(DATE).and_then(|date| date.to_str().ok());
    let date = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok());
    Ok(Probed {
        status: head.status.as_u16(),
        date: date.map(|date| date.timestamp().as_second()),
        body: body.to_bytes(),
    })
}

/// A client that trusts these roots or, for `tls`, the system's roots. The client follows no redirect: keys are for a single server.
pub(super) fn client(
    own: Option<&[CertificateDer<'static>]>,
    tls: bool,
) -> Result<reqwest::ClientBuilder, String> {
    let mut roots = RootCertStore::empty();
    match own {
        Some(own) => {
            roots.add_parsable_certificates(own.iter().cloned());
        }
        None if tls => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        None => {}
    }
    let crypto = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(crypto)
        .with_safe_default_protocol_versions()
        .map_err(|error| telemetry::chain(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(redirect::Policy::none())
        .retry(reqwest::retry::never())
        .no_proxy())
}
