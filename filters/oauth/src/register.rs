//! `POST /oauth/register`: dynamic client registration (RFC 7591 section 3).

use std::collections::BTreeMap;

use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use tollgate_filter::{ApiError, ErrorCode, Exchange, FilterError, Outcome, Reply};
use tollgate_identity::oauth::{ClientError, ClientMetadata};

use crate::Endpoints;
use crate::events::OAuthEvent;
use crate::json::Json;
use crate::store_errors::commit_failed;

/// The registered client. There is no secret and no registration management URL.
#[derive(Serialize)]
struct Registered<'a> {
    client_id: &'a str,
    client_id_issued_at: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_name: Option<&'a str>,
    redirect_uris: Vec<&'a str>,
    grant_types: &'a [&'a str],
    response_types: [&'a str; 1],
    token_endpoint_auth_method: &'a str,
}

impl Endpoints {
    pub(crate) async fn register(&self, exchange: &Exchange) -> Result<Outcome, FilterError> {
        let request = &exchange.request;
        if !is_json(&request.headers) {
            return Ok(invalid_metadata(
                "Send the metadata as application/json, uncompressed.",
            ));
        }
        let Some(members) = Json::object(&request.body) else {
            return Ok(invalid_metadata(
                "The body must be a JSON object without duplicate members.",
            ));
        };
        let metadata = match parse_metadata(members) {
            Ok(metadata) => metadata,
            Err(member) => {
                let what = format!("{member} has the wrong type.");
                let code = if member == "redirect_uris" {
                    ErrorCode::InvalidRedirectUri
                } else {
                    ErrorCode::InvalidClientMetadata
                };
                return Ok(Outcome::refuse(ApiError::new(code, what)));
            }
        };
        let client = match metadata.check(self.config.server.refresh.is_some()) {
            Ok(client) => client,
            Err(error) => return Ok(Outcome::refuse(client_error(&error))),
        };
        let row = match self
            .server
            .register(&client, request.client.limited())
            .await
        {
            Ok(row) => row,
            Err(error) => return commit_failed(error),
        };
        self.events.inc(OAuthEvent::Registered);
        let registered = Registered {
            client_id: &row.id,
            client_id_issued_at: row.created_at.as_secs(),
            client_name: row.name.as_deref(),
            redirect_uris: row.redirect_uris.iter().map(|uri| &**uri).collect(),
            grant_types: client.grant_types(),
            response_types: ["code"],
            token_endpoint_auth_method: "none",
        };
        let body = serde_json::to_vec(&registered).expect("strings and numbers serialise");
        let mut reply = Reply::of(StatusCode::CREATED, "application/json", body.into());
        let no_store = HeaderValue::from_static("no-store");
        reply.headers.insert(header::CACHE_CONTROL, no_store);
        Ok(Outcome::reply(reply))
    }
}

fn invalid_metadata(message: &'static str) -> Outcome {
    Outcome::refuse(ApiError::new(ErrorCode::InvalidClientMetadata, message))
}

pub(crate) fn client_error(error: &ClientError) -> ApiError {
    let code = match error.is_about_redirect_uris() {
        true => ErrorCode::InvalidRedirectUri,
        false => ErrorCode::InvalidClientMetadata,
    };
    ApiError::new(code, error.to_string())
}

/// Whether the body is declared as uncompressed JSON; a missing content type is accepted.
fn is_json(headers: &http::HeaderMap) -> bool {
    let is = |value: &HeaderValue, wanted: &str| {
        let essence = value.as_bytes().split(|&byte| byte == b';').next();
        essence.is_some_and(|one| one.trim_ascii().eq_ignore_ascii_case(wanted.as_bytes()))
    };
    let kinds = headers.get_all(header::CONTENT_TYPE);
    let codings = headers.get_all(header::CONTENT_ENCODING);
    kinds.iter().all(|value| is(value, "application/json"))
        && codings.iter().all(|value| is(value, "identity"))
}

/// The relevant metadata, of lists the elements that are texts, or the name of a member with a wrong type. `null` counts as absent.
pub(crate) fn parse_metadata(
    mut members: BTreeMap<String, Json>,
) -> Result<ClientMetadata, &'static str> {
    let mut text = |name: &'static str| match members.remove(name) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::Text(text)) => Ok(Some(text)),
        Some(_) => Err(name),
    };
    let (name, auth_method) = (text("client_name")?, text("token_endpoint_auth_method")?);
    let mut texts = |name: &'static str| match members.remove(name) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::List(list)) => {
            let texts = list.into_iter().filter_map(|one| match one {
                Json::Text(text) => Some(text),
                _ => None,
            });
            Ok(Some(texts.collect::<Vec<_>>()))
        }
        Some(_) => Err(name),
    };
    Ok(ClientMetadata {
        name,
        auth_method,
        redirect_uris: texts("redirect_uris")?.unwrap_or_default(),
        grant_types: texts("grant_types")?,
        response_types: texts("response_types")?,
    })
}
