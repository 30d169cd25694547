//! The filter `oauth`: one endpoint of the authorization server per route.

use std::sync::Arc;

use tollgate_filter::{
    ApiError, Body, Contract, ErrorCode, Exchange, FailureMode, Filter, Outcome, Phase, Step,
};

use crate::Endpoints;

/// Maximum body size; registrations and token requests are smaller.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// Serves one route of the authorization server.
pub struct OAuth {
    endpoints: Arc<Endpoints>,
    endpoint: Endpoint,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Register,
    Authorize,
    Token,
    Revoke,
    Discovery,
}

/// A route path without an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`oauth` answers paths that end in `/oauth/register`, `/oauth/authorize`, `/oauth/token` or `/oauth/revoke`, and those with `/.well-known/`; `{path}` is not one of them"
)]
pub struct UnknownEndpoint {
    path: String,
}

impl OAuth {
    /// The filter for a route path, which may be prefixed with the path of the service URL.
    pub fn new(endpoints: &Arc<Endpoints>, path: &str) -> Result<OAuth, UnknownEndpoint> {
        let endpoint = [
            ("/oauth/register", Endpoint::Register),
            ("/oauth/authorize", Endpoint::Authorize),
            ("/oauth/token", Endpoint::Token),
            ("/oauth/revoke", Endpoint::Revoke),
        ]
        .into_iter()
        .find(|(known, _)| path.ends_with(known))
        .map(|(_, endpoint)| endpoint)
        .or_else(|| {
            path.contains("/.well-known/")
                .then_some(Endpoint::Discovery)
        });
        let unknown = || UnknownEndpoint {
            path: path.to_owned(),
        };
        Ok(OAuth {
            endpoints: endpoints.clone(),
            endpoint: endpoint.ok_or_else(unknown)?,
        })
    }
}

impl Filter for OAuth {
    fn name(&self) -> &'static str {
        "oauth"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request.into(),
            body: match self.endpoint {
                Endpoint::Register | Endpoint::Token | Endpoint::Revoke => Body::Bytes {
                    bytes_max: BODY_BYTES_MAX,
                },
                Endpoint::Authorize | Endpoint::Discovery => Body::Unread,
            },
            on_failure: FailureMode::Deny,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let endpoints = &*self.endpoints;
        match self.endpoint {
            Endpoint::Register => Step::later(endpoints.register(exchange)),
            Endpoint::Authorize => {
                Step::later(async move { Ok(endpoints.authorize(exchange).await) })
            }
            Endpoint::Token => Step::later(endpoints.token(exchange)),
            Endpoint::Revoke => Step::later(endpoints.revoke(exchange)),
            Endpoint::Discovery => Step::now(match endpoints.discovery.find(&exchange.request) {
                Some(document) => Outcome::reply(document.reply(&exchange.request)),
                None => Outcome::refuse(ApiError::new(
                    ErrorCode::NotFound,
                    "There is no such document. The authorization server supports OAuth, not OpenID Connect.",
                )),
            }),
        }
    }
}
