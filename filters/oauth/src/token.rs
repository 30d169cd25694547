//! `POST /oauth/token`: the token endpoint, with code exchange and refresh token rotation (RFC 6749 section 3.2).

use std::borrow::Cow;

use http::{HeaderMap, HeaderValue, header};
use secrecy::ExposeSecret;
use serde::Serialize;
use tollgate_filter::{ApiError, ErrorCode, Exchange, FilterError, Outcome, Reply, Scopes};
use tollgate_identity::oauth::{CodeRequest, RefreshRequest, Requested, TokenError, TokenResponse};

use crate::Endpoints;
use crate::events::OAuthEvent;
use crate::form::Form;
use crate::scopes::scopes_in;
use crate::store_errors::{commit_failed, read_failed};

/// The token response (RFC 6749 section 5.1).
#[derive(Serialize)]
struct TokenResponseBody<'a> {
    access_token: &'a str,
    token_type: &'static str,
    expires_in: u64,
    scope: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    refresh_token: Option<&'a str>,
}

impl Endpoints {
    pub(crate) async fn token(&self, exchange: &mut Exchange) -> Result<Outcome, FilterError> {
        set_no_store(&mut exchange.reply_headers);
        let request = &exchange.request;
        let form = match form(&request.headers, &request.body) {
            Ok(form) => form,
            Err(error) => return Ok(Outcome::refuse(error)),
        };
        let authenticates = request.headers.contains_key(header::AUTHORIZATION);
        let result = match form.get("grant_type") {
            None => return Ok(missing("grant_type")),
            Some("authorization_code") => self.exchange_code(&form, authenticates).await,
            Some("refresh_token") if self.config.server.refresh.is_some() => {
                self.refresh_token(&form, authenticates).await
            }
            Some(_) => {
                let message = match self.config.server.refresh {
                    Some(_) => "grant_type must be authorization_code or refresh_token.",
                    None => "grant_type must be authorization_code.",
                };
                let error = ApiError::new(ErrorCode::UnsupportedGrantType, message);
                return Ok(Outcome::refuse(error));
            }
        };
        match result {
            Ok(granted) => Ok(Outcome::reply(reply(&granted))),
            Err(TokenFailure::Response(outcome)) => Ok(outcome),
            Err(TokenFailure::Grant(error)) => self.refuse(error),
        }
    }

    async fn exchange_code(
        &self,
        form: &Form,
        authenticates: bool,
    ) -> Result<TokenResponse, TokenFailure> {
        let parameter = |name| {
            form.get(name)
                .ok_or_else(|| TokenFailure::Response(missing(name)))
        };
        let request = CodeRequest {
            client: parameter("client_id")?,
            code: parameter("code")?,
            redirect_uri: parameter("redirect_uri")?,
            verifier: parameter("code_verifier")?,
            resource: self.names.requested(form.all("resource")),
        };
        if authenticates {
            return Err(TokenFailure::Response(self.unexpected_authentication()));
        }
        let granted = self.server.exchange(request).await?;
        self.events.inc(OAuthEvent::CodeExchanged);
        Ok(granted)
    }

    async fn refresh_token(
        &self,
        form: &Form,
        authenticates: bool,
    ) -> Result<TokenResponse, TokenFailure> {
        let parameter = |name| {
            form.get(name)
                .ok_or_else(|| TokenFailure::Response(missing(name)))
        };
        let request = RefreshRequest {
            client: parameter("client_id")?,
            token: parameter("refresh_token")?,
            resource: self.names.requested(form.all("resource")),
            scopes: match form.get("scope") {
                None => Requested::Omitted,
                // A scope of this service outside the grant is an error (RFC 6749 section 6), even a scope of another resource.
                Some(text) => Requested::Bits(scopes_in(text).bits()),
            },
        };
        if authenticates {
            return Err(TokenFailure::Response(self.unexpected_authentication()));
        }
        let granted = self.server.refresh(request).await?;
        self.events.inc(OAuthEvent::Refreshed);
        Ok(granted)
    }

    /// An authenticating client assumes confidentiality (RFC 6749 section 5.2).
    fn unexpected_authentication(&self) -> Outcome {
        let error = ApiError::new(
            ErrorCode::InvalidClient,
            "Clients have no secret here. Omit Authorization and send client_id in the form.",
        );
        Outcome::refuse(error.header(header::WWW_AUTHENTICATE, self.basic.clone()))
    }

    fn refuse(&self, error: TokenError) -> Result<Outcome, FilterError> {
        let (code, message) = match error {
            TokenError::UnknownClient => (
                ErrorCode::InvalidClient,
                "This client is not registered. Register again and request authorization again.",
            ),
            // The exact reason is not disclosed: it would only help unauthorized holders of a code.
            TokenError::InvalidGrant => (
                ErrorCode::InvalidGrant,
                "The grant is not valid: used, expired, or issued for another request. Request authorization again.",
            ),
            TokenError::InvalidTarget => (
                ErrorCode::InvalidTarget,
                "The grant is for another resource. Send the authorized resource, or omit it.",
            ),
            TokenError::InvalidScope => (
                ErrorCode::InvalidScope,
                "The grant does not include all of these scopes. Request fewer, or omit scope.",
            ),
            TokenError::Read(error) => return Err(read_failed(error)),
            TokenError::Store(error) => return commit_failed(error),
            _ => (ErrorCode::InternalError, "Internal error."),
        };
        self.events.inc(OAuthEvent::GrantRefused);
        Ok(Outcome::refuse(ApiError::new(code, message)))
    }
}

/// Failure of a token request.
enum TokenFailure {
    Response(Outcome),
    Grant(TokenError),
}

impl From<TokenError> for TokenFailure {
    fn from(error: TokenError) -> TokenFailure {
        TokenFailure::Grant(error)
    }
}

/// Headers against caching, as in RFC 6749 section 5.1.
fn set_no_store(headers: &mut HeaderMap) {
    headers.insert(header::PRAGMA, HeaderValue::from_static("no-cache"));
}

/// Parses an unambiguous form. Only `resource` may occur more than once (RFC 8707 section 2).
pub(crate) fn form(headers: &HeaderMap, body: &[u8]) -> Result<Form, ApiError> {
    let wrong = |message: Cow<'static, str>| ApiError::new(ErrorCode::InvalidRequest, message);
    let mut kinds = headers.get_all(header::CONTENT_TYPE).iter();
    let is_form = |value: &HeaderValue| {
        let essence = value.as_bytes().split(|&byte| byte == b';').next();
        essence.is_some_and(|one| {
            one.trim_ascii()
                .eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
        })
    };
    let one_form = kinds.next().is_some_and(is_form) && kinds.next().is_none();
    if !one_form || headers.contains_key(header::CONTENT_ENCODING) {
        return Err(wrong(Cow::Borrowed(
            "Send the parameters as application/x-www-form-urlencoded, uncompressed.",
        )));
    }
    let form =
        Form::parse(body).map_err(|_| wrong(Cow::Borrowed("The form is not validly encoded.")))?;
    match form.duplicate(&["resource"]) {
        None => Ok(form),
        Some(_) => Err(wrong(Cow::Borrowed("A parameter occurs twice."))),
    }
}

pub(crate) fn missing(name: &str) -> Outcome {
    let message = format!("The parameter {name} is missing.");
    Outcome::refuse(ApiError::new(ErrorCode::InvalidRequest, message))
}

fn reply(granted: &TokenResponse) -> Reply {
    let answer = TokenResponseBody {
        access_token: granted.access.expose_secret(),
        token_type: "Bearer",
        expires_in: granted.life.as_secs(),
        scope: Scopes::from_bits(granted.scopes).to_string(),
        refresh_token: granted.refresh.as_ref().map(|token| token.expose_secret()),
    };
    let body = serde_json::to_vec(&answer).expect("strings and numbers serialise");
    let mut reply = Reply::json(body.into());
    let no_store = HeaderValue::from_static("no-store");
    reply.headers.insert(header::CACHE_CONTROL, no_store);
    reply
}
