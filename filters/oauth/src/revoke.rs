//! `POST /oauth/revoke`: token revocation (RFC 7009).

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tollgate_filter::{Exchange, FilterError, Outcome, Reply, ReplyBody};
use tollgate_identity::oauth::RevokeError;

use crate::Endpoints;
use crate::events::OAuthEvent;
use crate::store_errors::{commit_failed, read_failed};
use crate::token::{form, missing};

impl Endpoints {
    /// 200 without a body for every token, valid or not (RFC 7009 section 2.2). The hint is not needed, since the token format shows its
    /// type.
    pub(crate) async fn revoke(&self, exchange: &Exchange) -> Result<Outcome, FilterError> {
        let request = &exchange.request;
        let form = match form(&request.headers, &request.body) {
            Ok(form) => form,
            Err(error) => return Ok(Outcome::refuse(error)),
        };
        let Some(token) = form.get("token") else {
            return Ok(missing("token"));
        };
        match self.server.revoke(token, form.get("client_id")).await {
            Ok(()) => {}
            Err(RevokeError::Read(error)) => return Err(read_failed(error)),
            Err(RevokeError::Store(error)) => return commit_failed(error),
            Err(error) => {
                return Err(FilterError::new(crate::store_errors::unavailable(), error));
            }
        }
        self.events.inc(OAuthEvent::Revoked);
        let mut headers = HeaderMap::with_capacity(4);
        let no_store = HeaderValue::from_static("no-store");
        headers.insert(header::CACHE_CONTROL, no_store);
        Ok(Outcome::reply(Reply {
            status: StatusCode::OK,
            headers,
            body: ReplyBody::Whole(Bytes::new()),
        }))
    }
}
