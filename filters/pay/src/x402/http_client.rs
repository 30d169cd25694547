//! HTTP clients of the facilitator and of the chain's node.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::HeaderValue;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use reqwest::{Client, Method, Url, redirect, retry};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use tollgate_module::Snapshot;

use super::facilitator::{CallError, Facilitator, Node, Operation, Response};

/// Connect timeout, TLS included.
const CONNECT: Duration = Duration::from_secs(3);

/// Timeout of a call to the node.
const NODE: Duration = Duration::from_secs(10);

/// Timeout of `/settle`. A transfer takes as long as the chain; the buyer is answered before that and asked to retry.
pub(super) const SETTLE: Duration = Duration::from_secs(60);

/// The most bytes of an answer. The facilitator's have a few hundred; receipts and logs of the chain more.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// The most redirects, all within one host.
const REDIRECTS_MAX: usize = 3;

/// Authorization at the facilitator, computed for each call: some facilitators require a token that names the call.
pub trait Bearer: Send + Sync {
    /// The value of `Authorization`, marked sensitive.
    fn authorization(&self, operation: Operation) -> Option<HeaderValue>;
}

/// A fixed value for every call, or none.
#[derive(Clone)]
pub struct FixedBearer(pub Option<HeaderValue>);

impl Bearer for FixedBearer {
    fn authorization(&self, _: Operation) -> Option<HeaderValue> {
        self.0.clone()
    }
}

impl<T: Bearer> Bearer for Snapshot<T> {
    fn authorization(&self, operation: Operation) -> Option<HeaderValue> {
        self.load().authorization(operation)
    }
}

/// Why a client cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum HttpClientError {
    /// A URL is invalid. The message omits the URL, which may contain a key.
    #[error("the address of the {0} cannot be used")]
    Address(&'static str),
    /// TLS cannot be set up.
    #[error("cannot prepare TLS for the facilitator")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A facilitator's HTTP client.
pub struct HttpFacilitator {
    http: Client,
    base: Url,
    bearer: Arc<dyn Bearer>,
}

/// A node's HTTP client.
pub struct HttpNode {
    http: Client,
    address: Snapshot<NodeAddress>,
}

/// The address of a node, which may contain a key.
pub(crate) struct NodeAddress(Url);

impl HttpFacilitator {
    /// A client of the facilitator below `base_url`. Nothing is sent before the first call.
    pub fn new(
        base_url: &str,
        roots: Option<&[CertificateDer<'static>]>,
        bearer: Arc<dyn Bearer>,
    ) -> Result<HttpFacilitator, HttpClientError> {
        Ok(HttpFacilitator {
            http: client(roots)?,
            base: address("facilitator", base_url.trim_end_matches('/'))?,
            bearer,
        })
    }
}

impl HttpNode {
    /// A client of the node at `url`.
    pub fn new(
        url: &str,
        roots: Option<&[CertificateDer<'static>]>,
    ) -> Result<HttpNode, HttpClientError> {
        Ok(HttpNode {
            http: client(roots)?,
            address: Snapshot::from(NodeAddress(address("node", url)?)),
        })
    }

    /// An address for [`HttpNode::replace_address`].
    pub(crate) fn address(url: &SecretString) -> Result<NodeAddress, HttpClientError> {
        address("node", url.expose_secret()).map(NodeAddress)
    }

    /// Calls the node at another address from now on.
    pub(crate) fn replace_address(&self, address: NodeAddress) {
        self.address.replace(address);
    }
}

#[async_trait]
impl Facilitator for HttpFacilitator {
    async fn call(&self, operation: Operation, body: Bytes) -> Result<Response, CallError> {
        let (method, time) = match operation {
            Operation::Supported => (Method::GET, Duration::from_secs(5)),
            Operation::Verify => (Method::POST, Duration::from_secs(10)),
            Operation::Settle => (Method::POST, SETTLE),
        };
        let mut address = self.base.clone();
        address.set_path(&format!(
            "{}/{}",
            self.base.path().trim_end_matches('/'),
            operation.word()
        ));
        let mut request = self
            .http
            .request(method.clone(), address)
            .timeout(time)
            .header(ACCEPT, "application/json");
        if let Some(value) = self.bearer.authorization(operation) {
            request = request.header(AUTHORIZATION, value);
        }
        if method == Method::POST {
            request = request.header(CONTENT_TYPE, "application/json").body(body);
        }
        let answer = request.send().await.map_err(call_error)?;
        read(answer).await
    }
}

#[async_trait]
impl Node for HttpNode {
    async fn call(&self, request: &Value) -> Result<Value, CallError> {
        let request = self
            .http
            .post(self.address.load().0.clone())
            .timeout(NODE)
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/json")
            .body(request.to_string());
        let response = read(request.send().await.map_err(call_error)?).await?;
        serde_json::from_slice(&response.body)
            .map_err(|_| CallError(format!("status {} without JSON", response.status)))
    }
}

fn address(whose: &'static str, text: &str) -> Result<Url, HttpClientError> {
    text.parse().map_err(|_| HttpClientError::Address(whose))
}

fn client(roots: Option<&[CertificateDer<'static>]>) -> Result<Client, HttpClientError> {
    let mut store = RootCertStore::empty();
    match roots {
        None => store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(own) => {
            for root in own {
                store
                    .add(root.clone())
                    .map_err(|error| HttpClientError::Tls(error.into()))?;
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| HttpClientError::Tls(error.into()))?
        .with_root_certificates(store)
        .with_no_client_auth();
    // The body can move money, so redirects to a host other than the configured host are not followed.
    let same_host = redirect::Policy::custom(|attempt| {
        let first = &attempt.previous()[0];
        let place = |url: &Url| {
            (
                url.scheme().to_owned(),
                url.host_str().map(str::to_owned),
                url.port_or_known_default(),
            )
        };
        if attempt.previous().len() > REDIRECTS_MAX || place(first) != place(attempt.url()) {
            attempt.stop()
        } else {
            attempt.follow()
        }
    });
    Client::builder()
        .tls_backend_preconfigured(tls)
        .http1_only()
        .redirect(same_host)
        // Only the caller knows which calls are idempotent, and decides about retries.
        .retry(retry::never())
        .no_proxy()
        .connect_timeout(CONNECT)
        .pool_max_idle_per_host(8)
        .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| HttpClientError::Tls(error.into()))
}

async fn read(mut answer: reqwest::Response) -> Result<Response, CallError> {
    let status = answer.status().as_u16();
    let mut body = BytesMut::new();
    while let Some(chunk) = answer.chunk().await.map_err(call_error)? {
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            let text = format!("an answer of more than {ANSWER_BYTES_MAX} bytes");
            return Err(CallError(text));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Response {
        status,
        body: body.freeze(),
    })
}

/// Converts an error without the URL, which may contain the key of a node.
fn call_error(error: reqwest::Error) -> CallError {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    CallError(text)
}
