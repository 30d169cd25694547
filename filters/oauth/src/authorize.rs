//! `GET /oauth/authorize` (RFC 6749 section 4.1.1): validates the request and redirects to the consent page.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use tollgate_filter::{Exchange, Outcome, Reply, ReplyBody, Resource, Resources};
use tollgate_identity::oauth::{
    AuthorizationError, AuthorizationRequest, Challenge, Requested, redirect_matches, response_url,
};
use tollgate_store::{ClientRow, ReadError};

use crate::Endpoints;
use crate::error_pages::{authorization_error_page, unavailable_page, untrusted_request_page};
use crate::form::Form;
use crate::scopes::scopes_at;

/// Maximum length of `state`, in bytes.
const STATE_BYTES_MAX: usize = 2048;

/// Errors reported on a local page, never by redirect, because client or `redirect_uri` are not verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalError {
    /// The query is not validly encoded.
    Encoding,
    /// `client_id` is missing or duplicated.
    MissingClient,
    /// `redirect_uri` is missing or duplicated.
    MissingRedirect,
    UnknownClient,
    /// The client metadata document cannot be fetched or is invalid.
    ClientDocument,
    /// The client has not registered this redirect URI.
    UnknownRedirect,
}

/// A request whose client and redirect URI are verified.
struct VerifiedClient<'a> {
    form: &'a Form,
    client: ClientRow,
    redirect_uri: &'a str,
    state: Option<&'a str>,
}

impl Endpoints {
    pub(crate) async fn authorize(&self, exchange: &Exchange) -> Outcome {
        let query = exchange.request.query.as_deref().unwrap_or_default();
        let Ok(form) = Form::parse(query.as_bytes()) else {
            return self.local_error(exchange, LocalError::Encoding);
        };
        let verified = match self
            .verify_client(&form, exchange.request.client.limited())
            .await
        {
            Ok(Ok(verified)) => verified,
            Ok(Err(error)) => return self.local_error(exchange, error),
            Err(error) => {
                tracing::error!(%error, "validating authorization request failed");
                return Outcome::reply(unavailable_page(&self.renderer, &exchange.request));
            }
        };
        let answer = match authorization_request(self, &verified) {
            Err(error) => Err(error),
            // `HEAD` stores no request; the redirect is that of a request without a session.
            Ok(_) if exchange.request.method == Method::HEAD => {
                Ok(format!("{}/sign-in", self.base_path))
            }
            Ok(asking) => match self.server.store_request(asking).await {
                Ok(id) => Ok(format!("{}/consent/{id}", self.base_path)),
                Err(error) => {
                    tracing::warn!(%error, "storing authorization request failed");
                    Err(AuthorizationError::TemporarilyUnavailable)
                }
            },
        };
        let error = match answer {
            Ok(address) => return see_other(&address),
            Err(error) => error,
        };
        let issuer = self.server.issuer();
        let address = response_url(verified.redirect_uri, Err(error), verified.state, issuer);
        match host(verified.redirect_uri) {
            // A loopback address: no open redirect.
            None => see_other(&address),
            // Registration is open, so a link to this service must not redirect an unasked person to an arbitrary address (RFC 9700 section
            // 4.11.2). The page shows the destination as a link.
            Some(host) => Outcome::reply(authorization_error_page(
                &self.renderer,
                &exchange.request,
                error,
                (&host, &address),
            )),
        }
    }

    /// The client with this id: registered, or described by a metadata document at the id's URL.
    async fn client(
        &self,
        id: &str,
        requester: Option<IpAddr>,
    ) -> Result<Result<ClientRow, LocalError>, ReadError> {
        if let Some(documents) = &self.documents
            && id.starts_with("https://")
        {
            return Ok(documents.client(id, requester).await.map_err(|error| {
                tracing::info!(%error, "rejected client metadata document");
                LocalError::ClientDocument
            }));
        }
        // A row stored for a metadata document is not a registration.
        let client = self.server.client(id).await?.filter(|row| !row.document);
        Ok(client.ok_or(LocalError::UnknownClient))
    }

    fn local_error(&self, exchange: &Exchange, error: LocalError) -> Outcome {
        Outcome::reply(untrusted_request_page(
            &self.renderer,
            &exchange.request,
            error,
        ))
    }

    /// Checks 1 to 3: failures before the redirect URI is verified are reported on a local page.
    async fn verify_client<'a>(
        &self,
        form: &'a Form,
        requester: Option<IpAddr>,
    ) -> Result<Result<VerifiedClient<'a>, LocalError>, ReadError> {
        let once = |name: &str| form.get(name).filter(|_| form.count(name) == 1);
        let Some(id) = once("client_id") else {
            return Ok(Err(LocalError::MissingClient));
        };
        if form.count("redirect_uri") > 1 {
            return Ok(Err(LocalError::MissingRedirect));
        }
        let client = match self.client(id, requester).await? {
            Ok(client) => client,
            Err(error) => return Ok(Err(error)),
        };
        let Some(redirect_uri) = once("redirect_uri") else {
            return Ok(Err(LocalError::MissingRedirect));
        };
        let registered = client
            .redirect_uris
            .iter()
            .any(|one| redirect_matches(one, redirect_uri));
        if !registered {
            return Ok(Err(LocalError::UnknownRedirect));
        }
        let state = form
            .all("state")
            .next()
            .filter(|state| form.count("state") == 1 && state.len() <= STATE_BYTES_MAX);
        Ok(Ok(VerifiedClient {
            form,
            client,
            redirect_uri,
            state,
        }))
    }
}

/// Checks 4 to 8, whose failures are reported to the client.
fn authorization_request(
    endpoints: &Endpoints,
    verified: &VerifiedClient<'_>,
) -> Result<AuthorizationRequest, AuthorizationError> {
    let form = verified.form;
    let long = |state: &str| state.len() > STATE_BYTES_MAX;
    if form.duplicate(&["resource"]).is_some() || form.all("state").any(long) {
        return Err(AuthorizationError::InvalidRequest);
    }
    match form.get("response_type") {
        Some("code") => {}
        Some(_) => return Err(AuthorizationError::UnsupportedResponseType),
        None => return Err(AuthorizationError::InvalidRequest),
    }
    // A missing method means `plain` (RFC 7636 section 4.3), which gives no protection if the request is observed.
    let challenge = form
        .get("code_challenge")
        .filter(|_| form.get("code_challenge_method") == Some("S256"))
        .and_then(Challenge::parse)
        .ok_or(AuthorizationError::InvalidRequest)?;
    let resource = match endpoints.names.requested(form.all("resource")) {
        Requested::Omitted => Resource::Api,
        Requested::Bits(bits) => Resources::from_bits(bits)
            .iter()
            .next()
            .ok_or(AuthorizationError::InvalidTarget)?,
        Requested::Unknown => return Err(AuthorizationError::InvalidTarget),
    };
    let scopes = match form.get("scope") {
        None => resource.default_scopes(),
        Some(text) => scopes_at(resource, text),
    };
    if scopes.is_empty() {
        return Err(AuthorizationError::InvalidScope);
    }
    Ok(AuthorizationRequest {
        client: verified.client.id.clone(),
        client_name: verified.client.name.clone(),
        refresh: verified.client.refresh,
        document: verified.client.document,
        redirect_uri: Arc::from(verified.redirect_uri),
        state: verified.state.map(Arc::from),
        challenge,
        resource: Resources::only(resource).bits(),
        asked: form.get("resource").map(Arc::from),
        scopes: scopes.bits(),
    })
}

/// The host of a redirect URI; `None` for loopback.
fn host(redirect_uri: &str) -> Option<String> {
    let uri: Uri = redirect_uri.parse().ok()?;
    let is_there = uri.scheme_str() == Some("https");
    uri.host().filter(|_| is_there).map(str::to_owned)
}

/// 303: with 307 the browser would repeat the POST body to the client (RFC 9700 section 4.12).
fn see_other(address: &str) -> Outcome {
    let mut headers = HeaderMap::with_capacity(4);
    let location = HeaderValue::try_from(address)
        .expect("the appended part is encoded, and the rest was validated");
    headers.insert(header::LOCATION, location);
    let no_store = HeaderValue::from_static("no-store");
    headers.insert(header::CACHE_CONTROL, no_store);
    Outcome::reply(Reply {
        status: StatusCode::SEE_OTHER,
        headers,
        body: ReplyBody::Whole(Bytes::new()),
    })
}
