//! The filter `key-revocation`: revokes the API key presented by a request.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tollgate_clock::{Clock, Entropy};
use tollgate_filter::{
    ApiError, Body, Contract, ErrorCode, Exchange, FailureMode, Filter, FilterError, Outcome,
    Phase, Phases, Reply, ReplyBody, Step,
};
use tollgate_identity::{Digest, Form, revoke_presented_key};
use tollgate_store::Store;

use crate::bearer::{Presented, Unreadable};

/// `Retry-After` while the store cannot be read or written.
const RETRY: Duration = Duration::from_secs(1);

/// Revokes the API key in `Authorization`, and no other key. The answer does not depend on the key.
pub struct KeyRevocation {
    form: Form,
    store: Arc<dyn Store>,
    clock: Clock,
    entropy: Entropy,
}

impl KeyRevocation {
    /// A filter that revokes keys of this form.
    pub fn new(form: Form, store: Arc<dyn Store>, clock: Clock, entropy: Entropy) -> KeyRevocation {
        KeyRevocation {
            form,
            store,
            clock,
            entropy,
        }
    }

    /// A request without a readable credential is refused.
    fn refused(&self, presented: Presented<'_>) -> Option<ApiError> {
        let prefix = self.form.prefix();
        let (code, message) = match presented {
            Presented::Text(_) => return None,
            Presented::Nothing => (
                ErrorCode::MissingCredential,
                format!(
                    "Send the key to revoke in the header `Authorization: Bearer {prefix}...`. A key in the body or the query is not read."
                ),
            ),
            Presented::Unreadable(Unreadable::Twice) => (
                ErrorCode::InvalidHeader,
                String::from("There is more than one `Authorization` header. Send one."),
            ),
            Presented::Unreadable(Unreadable::Malformed) => (
                ErrorCode::InvalidHeader,
                format!(
                    "The `Authorization` header cannot be read. Send `Authorization: Bearer {prefix}...`, with one space and without quotes."
                ),
            ),
        };
        let error = ApiError::new(code, message);
        Some(match code {
            // RFC 9110 section 15.5.2: a 401 has a challenge.
            ErrorCode::MissingCredential => {
                error.header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
            }
            _ => error,
        })
    }

    async fn revoke(&self, digest: Digest, exchange: &mut Exchange) -> Result<(), FilterError> {
        let now = exchange.now(&self.clock);
        let request = exchange.request.id.to_string();
        let draw = |out: &mut [u8]| self.entropy.fill(out);
        let revoked = revoke_presented_key(&self.store, digest, &request, now, draw).await;
        revoked.map_err(|error| FilterError::new(unavailable(), error))
    }
}

impl Filter for KeyRevocation {
    fn name(&self) -> &'static str {
        "key-revocation"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phases::from(Phase::Request),
            body: Body::Unread,
            on_failure: FailureMode::Deny,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let presented = Presented::read(&exchange.request.headers);
        if let Some(error) = self.refused(presented) {
            return Step::now(Outcome::refuse(error));
        }
        let digest = match presented {
            Presented::Text(text) => self.form.digest(text),
            _ => None,
        };
        let Some(digest) = digest else {
            return Step::now(done());
        };
        Step::later(async move {
            self.revoke(digest, exchange).await?;
            Ok(done())
        })
    }
}

/// 200 without a body, for every key.
fn done() -> Outcome {
    let mut headers = HeaderMap::with_capacity(4);
    let no_store = HeaderValue::from_static("no-store");
    headers.insert(header::CACHE_CONTROL, no_store);
    Outcome::reply(Reply {
        status: StatusCode::OK,
        headers,
        body: ReplyBody::Whole(Bytes::new()),
    })
}

fn unavailable() -> ApiError {
    ApiError::new(
        ErrorCode::StoreUnavailable,
        "The service cannot write at the moment, and the key was not revoked. Send the request again in a second.",
    )
    .retry_after(RETRY)
}
