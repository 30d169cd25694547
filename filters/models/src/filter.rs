//! The filter `models`: `GET /v1/models` and `GET /v1/models/{id}` for the authenticated account.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tollgate_filter::{
    ApiError, Body, Catalog, Contract, ErrorCode, Exchange, FailureMode, Filter, FilterError,
    Outcome, Phase, Phases, Principal, Reply, Step,
};
use tollgate_ledger::Ledger;
use tollgate_money::UsdPerCredit;

use crate::listing::{ListContext, Listing};

/// Lists the models for sale, and describes a single model.
#[derive(Clone)]
pub struct Models {
    listing: Arc<Listing>,
    ledger: Ledger,
    /// The text before the id of a model in the path, on a route for a single model.
    before_id: Option<Arc<str>>,
}

impl Models {
    /// Creates the filter for a catalog. `service` is the service name, `svc` in `x_svc`; without a rate the list contains no dollar
    /// prices.
    pub fn new(
        service: &str,
        catalog: &Catalog,
        rate: Option<UsdPerCredit>,
        ledger: Ledger,
    ) -> Models {
        Models {
            listing: Arc::new(Listing::new(service, catalog, rate)),
            ledger,
            before_id: None,
        }
    }

    /// The filter on a route of this pattern: a wildcard at the end of the pattern is the id of a model.
    pub fn on_route(&self, pattern: &str) -> Models {
        let wildcard = pattern.ends_with('}').then(|| pattern.rfind('{')).flatten();
        Models {
            before_id: wildcard.map(|at| Arc::from(&pattern[..at])),
            ..self.clone()
        }
    }

    /// The list, or a model of the list, for an account in memory.
    fn list(&self, exchange: &mut Exchange) -> Result<Outcome, FilterError> {
        let principal = exchange.get::<Principal>().ok_or_else(|| {
            filter_error("the exchange has no principal; put `auth` before `models`")
        })?;
        let account = principal.account;
        let balance = self.ledger.balance(account);
        let balance =
            balance.ok_or_else(|| filter_error("the ledger has no account for the principal"))?;
        let before_id = self.before_id.as_deref();
        let id = before_id.and_then(|before| exchange.request.path.strip_prefix(before));
        let body = match id {
            None => self.listing.body(&ListContext {
                owner: account,
                credits_remaining: balance.available,
                models: &principal.models,
            }),
            Some(id) => {
                let id = percent_decode(id);
                match self.listing.one(&id, &principal.models) {
                    Some(body) => body,
                    None => return Ok(Outcome::refuse(unknown(&id))),
                }
            }
        };
        // The balance is private to the account and changes with every request.
        exchange.reply_headers.insert(
            http::header::CACHE_CONTROL,
            http::HeaderValue::from_static("no-store"),
        );
        Ok(Outcome::reply(Reply::json(body)))
    }
}

impl Filter for Models {
    fn name(&self) -> &'static str {
        "models"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phases::from(Phase::Request),
            body: Body::Unread,
            on_failure: FailureMode::Deny,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let account = exchange.get::<Principal>().map(|it| it.account);
        match account.filter(|account| self.ledger.balance(*account).is_none()) {
            None => Step::Now(self.list(exchange)),
            Some(account) => Step::later(async move {
                let loaded = self.ledger.load(account).await;
                loaded.map_err(|error| FilterError::new(unread(), error))?;
                self.list(exchange)
            }),
        }
    }
}

/// An id as clients write the id into a path: some clients encode slashes and colons, other clients do not.
fn percent_decode(id: &str) -> Cow<'_, str> {
    if !id.contains('%') {
        return Cow::Borrowed(id);
    }
    let mut bytes = Vec::with_capacity(id.len());
    let mut rest = id.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let decoded = match (first, after) {
            (b'%', [high, low, ..]) => hex(*high).zip(hex(*low)),
            _ => None,
        };
        (rest, _) = match decoded {
            Some((high, low)) => (&after[2..], bytes.push(high << 4 | low)),
            None => (after, bytes.push(first)),
        };
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

fn unknown(id: &str) -> ApiError {
    let short: String = id.chars().take(64).collect();
    let message = format!(
        "There is no model `{short}` for this credential. GET /v1/models lists those that it may use."
    );
    ApiError::new(ErrorCode::NotFound, message).param("model")
}

fn unread() -> ApiError {
    let text = "The gateway cannot read its database at the moment. Try again in a second.";
    ApiError::new(ErrorCode::StoreUnavailable, text).retry_after(Duration::from_secs(1))
}

fn filter_error(cause: &'static str) -> FilterError {
    let answer = ApiError::new(
        ErrorCode::InternalError,
        "the model list is unavailable; try again later",
    );
    FilterError::new(answer, cause)
}
