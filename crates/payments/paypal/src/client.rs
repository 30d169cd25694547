//! HTTP client for PayPal's API: access token, timeouts, size limits and error classes.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, redirect, retry};
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use tollgate_clock::Clock;
use zeroize::Zeroizing;

use crate::certificates::Certificates;
use crate::environment::Environment;
use crate::error::{Error, ErrorKind};
use crate::token::{self, Token, TokenResponse, Tokens};
use crate::webhook::Verify;

/// Size limit of an answer, bytes. An order has a few thousand.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The environment: live, sandbox or a stand-in.
    pub environment: Environment,
    /// The OAuth client id.
    pub client_id: SecretString,
    /// The OAuth client secret.
    pub client_secret: SecretString,
    /// The id of our webhook, which PayPal includes in the signed text. `None`: every event is rejected.
    pub webhook_id: Option<String>,
    /// How webhook signatures are verified.
    pub verify: Verify,
    /// Trusted roots instead of the public ones, for connections and for signing certificates.
    pub roots: Option<Vec<CertificateDer<'static>>>,
    /// The brand name on PayPal's pages, at most 127 characters.
    pub brand: String,
    pub timeouts: Timeouts,
}

/// Timeouts of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Of the connection, TLS included.
    pub connect: Duration,
    /// Of a whole call.
    pub call: Duration,
}

/// A client of PayPal's API. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    /// Credentials in use. Rotation replaces the credentials of the settings.
    credentials: ArcSwap<Credentials>,
    pub(crate) clock: Clock,
    pub(crate) certificates: Certificates,
    http: reqwest::Client,
}

/// The OAuth client for access tokens, and its token.
#[derive(Debug)]
struct Credentials {
    id: SecretString,
    secret: SecretString,
    tokens: Tokens,
}

/// Why a client could not be created.
#[derive(Debug, thiserror::Error)]
#[error("could not set up TLS for PayPal")]
pub struct ClientError(#[source] Box<dyn std::error::Error + Send + Sync>);

/// One call.
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    /// The operation, for logs.
    pub(crate) what: &'static str,
    /// Idempotency key (`PayPal-Request-Id`).
    pub(crate) key: Option<&'a str>,
    /// The JSON body.
    pub(crate) body: Option<Vec<u8>>,
}

impl Client {
    /// A client. Sends nothing before the first call.
    pub fn new(settings: Settings, clock: Clock) -> Result<Client, ClientError> {
        let error = |error: Box<dyn std::error::Error + Send + Sync>| ClientError(error);
        let mut roots = RootCertStore::empty();
        match &settings.roots {
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            Some(own) => {
                for root in own {
                    roots
                        .add(root.clone())
                        .map_err(|problem| error(problem.into()))?;
                }
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|problem| error(problem.into()))?
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .http1_only()
            .redirect(redirect::Policy::none())
            // Only callers know which calls are idempotent.
            .retry(retry::never())
            .no_proxy()
            .connect_timeout(settings.timeouts.connect)
            .timeout(settings.timeouts.call)
            .pool_max_idle_per_host(8)
            .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|problem| error(problem.into()))?;
        Ok(Client {
            shared: Arc::new(Shared {
                certificates: Certificates::new(roots),
                credentials: ArcSwap::from_pointee(Credentials::of(&settings)),
                settings,
                clock,
                http,
            }),
        })
    }

    /// The environment of this client.
    pub fn environment(&self) -> &Environment {
        &self.shared.settings.environment
    }

    /// Makes a call and parses its answer. After a 401 the token is renewed once, and the call repeated.
    pub(crate) async fn call<T: DeserializeOwned>(&self, call: Call<'_>) -> Result<T, Error> {
        let what = call.what;
        let (status, body) = self.answer(call).await?;
        serde_json::from_slice(&body).map_err(|problem| {
            let detail = format!(
                "{status} with an unreadable answer (line {}, column {})",
                problem.line(),
                problem.column()
            );
            Error::new(ErrorKind::OutcomeUnknown, what, detail)
        })
    }

    /// The same for a call without an answer body (204), or whose body is not needed.
    pub(crate) async fn execute(&self, call: Call<'_>) -> Result<(), Error> {
        self.answer(call).await.map(|_| ())
    }

    async fn answer(&self, call: Call<'_>) -> Result<(u16, Vec<u8>), Error> {
        let mut again = true;
        loop {
            let token = self.token().await?;
            let (status, headers, body) = self.send(&call, &token).await?;
            if status == 401 && again {
                self.shared
                    .credentials
                    .load_full()
                    .tokens
                    .drop_refused(&token)
                    .await;
                again = false;
                continue;
            }
            let debug_id = headers
                .get("paypal-debug-id")
                .and_then(|value| value.to_str().ok());
            if !(200..300).contains(&status) {
                return Err(Error::from_response(call.what, status, debug_id, &body));
            }
            return Ok((status, body));
        }
    }

    /// Fetches a URL without credentials, at most `bytes_max` bytes.
    pub(crate) async fn fetch(
        &self,
        address: &str,
        limit: Duration,
        bytes_max: usize,
        what: &'static str,
    ) -> Result<Vec<u8>, Error> {
        let request = self.shared.http.get(address).timeout(limit);
        let answer = request
            .send()
            .await
            .map_err(|error| Error::from_transport(what, &error))?;
        if answer.status() != 200 {
            let status = answer.status().as_u16();
            return Err(Error::from_response(what, status, None, b""));
        }
        read(answer, bytes_max, what).await
    }

    async fn send(
        &self,
        call: &Call<'_>,
        token: &Token,
    ) -> Result<(u16, HeaderMap, Vec<u8>), Error> {
        let Shared { settings, http, .. } = &*self.shared;
        let mut request = http
            .request(call.method.clone(), settings.environment.call(call.path))
            .header(AUTHORIZATION, bearer(token)?)
            .header(ACCEPT, "application/json");
        if let Some(key) = call.key {
            request = request.header("PayPal-Request-Id", key);
        }
        if let Some(body) = &call.body {
            request = request
                .header(CONTENT_TYPE, "application/json")
                .header("Prefer", "return=representation")
                .body(body.clone());
        }
        let lost = |error: reqwest::Error| Error::from_transport(call.what, &error);
        let answer = request.send().await.map_err(lost)?;
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let body = read(answer, ANSWER_BYTES_MAX, call.what).await?;
        Ok((status, headers, body))
    }

    /// Uses the OAuth client of other settings from the next call on. A changed client requests a new access token.
    pub fn replace_credentials(&self, settings: &Settings) {
        let (old, new) = (self.shared.credentials.load(), Credentials::of(settings));
        let pair =
            |of: &Credentials| [&of.id, &of.secret].map(|one| one.expose_secret().to_owned());
        if pair(&old) != pair(&new) {
            self.shared.credentials.store(Arc::new(new));
        }
    }

    async fn token(&self) -> Result<Token, Error> {
        let Shared {
            settings,
            http,
            clock,
            ..
        } = &*self.shared;
        let credentials = self.shared.credentials.load_full();
        (credentials.tokens)
            .get(clock, || async {
                let (id, secret) = (
                    credentials.id.expose_secret(),
                    credentials.secret.expose_secret(),
                );
                let pair = Zeroizing::new([id, ":", secret].concat());
                let mut basic =
                    HeaderValue::from_str(&format!("Basic {}", BASE64.encode(pair.as_bytes())))
                        .expect("base64 is visible ASCII");
                basic.set_sensitive(true);
                let request = http
                    .post(settings.environment.call("/v1/oauth2/token"))
                    .header(AUTHORIZATION, basic)
                    .header(ACCEPT, "application/json")
                    .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
                    .body("grant_type=client_credentials");
                // A failure to get a token means that the call itself was not made.
                let failed = |mut error: Error| {
                    if error.kind == ErrorKind::OutcomeUnknown {
                        error.kind = ErrorKind::Unavailable;
                    }
                    error
                };
                let answer = request
                    .send()
                    .await
                    .map_err(|error| failed(Error::from_transport(token::WHAT, &error)))?;
                let status = answer.status().as_u16();
                let body = read(answer, ANSWER_BYTES_MAX, token::WHAT)
                    .await
                    .map_err(failed)?;
                if status != 200 {
                    return Err(failed(Error::from_response(
                        token::WHAT,
                        status,
                        None,
                        &body,
                    )));
                }
                serde_json::from_slice::<TokenResponse>(&body).map_err(|_| {
                    let detail = "unreadable answer";
                    Error::new(ErrorKind::Unavailable, token::WHAT, detail)
                })
            })
            .await
    }
}

impl Credentials {
    fn of(settings: &Settings) -> Credentials {
        Credentials {
            id: settings.client_id.clone(),
            secret: settings.client_secret.clone(),
            tokens: Tokens::default(),
        }
    }
}

impl Settings {
    /// Whether a client of these settings can serve `other` by [`Client::replace_credentials`]. The brand is ignored: a fixed setting.
    pub fn differs_in_credentials_alone(&self, other: &Settings) -> bool {
        self.environment == other.environment
            && (&self.webhook_id, &self.roots) == (&other.webhook_id, &other.roots)
            && (self.verify, self.timeouts) == (other.verify, other.timeouts)
    }
}

fn bearer(token: &Token) -> Result<HeaderValue, Error> {
    let text = format!("Bearer {}", token.text.expose_secret());
    let mut value = HeaderValue::from_str(&text).map_err(|_| {
        let detail = "the token contains invalid characters";
        Error::new(ErrorKind::Unavailable, token::WHAT, detail)
    })?;
    value.set_sensitive(true);
    Ok(value)
}

async fn read(
    mut answer: reqwest::Response,
    bytes_max: usize,
    what: &'static str,
) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    loop {
        match answer.chunk().await {
            Ok(None) => return Ok(body),
            Ok(Some(chunk)) if body.len() + chunk.len() > bytes_max => {
                let detail = format!("an answer of more than {bytes_max} bytes");
                return Err(Error::new(ErrorKind::OutcomeUnknown, what, detail));
            }
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            // The head has arrived, so the call was carried out or refused, with an unknown result.
            Err(error) => {
                let mut error = Error::from_transport(what, &error);
                error.kind = ErrorKind::OutcomeUnknown;
                return Err(error);
            }
        }
    }
}
