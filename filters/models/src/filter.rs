//! The filter `models`: `GET /v1/models` for the authenticated account.

use tollgate_filter::{
    ApiError, Body, Catalog, Contract, ErrorCode, Exchange, FailureMode, Filter, FilterError,
    Outcome, Phase, Phases, Principal, Reply, Step,
};
use tollgate_ledger::Ledger;
use tollgate_money::UsdPerCredit;

use crate::listing::{ListContext, Listing};

/// Lists the models for sale.
pub struct Models {
    listing: Listing,
    ledger: Ledger,
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
            listing: Listing::new(service, catalog, rate),
            ledger,
        }
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
        let Some(principal) = exchange.get::<Principal>() else {
            return Step::failed(filter_error(
                "the exchange has no principal; put `auth` before `models`",
            ));
        };
        let account = principal.account;
        let Some(balance) = self.ledger.balance(account) else {
            return Step::failed(filter_error("the ledger has no account for the principal"));
        };
        let body = self.listing.body(&ListContext {
            owner: account,
            credits_remaining: balance.available,
            models: &principal.models,
        });
        // The balance is private to the account and changes with every request.
        exchange.reply_headers.insert(
            http::header::CACHE_CONTROL,
            http::HeaderValue::from_static("no-store"),
        );
        Step::now(Outcome::reply(Reply::json(body)))
    }
}

fn filter_error(cause: &'static str) -> FilterError {
    let answer = ApiError::new(
        ErrorCode::InternalError,
        "the model list is unavailable; try again later",
    );
    FilterError::new(answer, cause)
}
