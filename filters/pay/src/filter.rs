//! The filter `pay`: sells the plan over one payment protocol, x402 or MPP, on one route.

use std::sync::Arc;
use std::time::Duration;

use tollgate_filter::{
    ApiError, Body, Contract, ErrorCode, Exchange, FailureMode, Filter, FilterError, Outcome,
    Phase, Principal, Step,
};
use tollgate_purchase::plan::{PaymentState, RetryAction};

use crate::mpp;
use crate::problem::{JSON, PROBLEM_JSON, Problem};
use crate::request;
use crate::x402;
use crate::x402::route::Counter;

/// The most bytes of a body: a valid one has two short members.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// `Retry-After` while nothing can be paid.
const AGAIN: Duration = Duration::from_secs(30);

/// State that all payment routes share.
pub struct Desks {
    /// The plan's name in addresses: `svc-pro`.
    plan: Arc<str>,
    /// The product: `svc-pro-monthly`.
    product: Arc<str>,
    mpp: Option<mpp::Desk>,
    /// The x402 endpoint.
    x402: Option<Counter>,
}

impl Desks {
    /// The payment protocols for the plan of this name; an absent one is not offered.
    pub fn new(plan: Arc<str>, mpp: Option<mpp::Desk>, x402: Option<x402::Desk>) -> Arc<Desks> {
        Arc::new(Desks {
            product: format!("{plan}-monthly").into(),
            plan,
            mpp,
            x402: x402.map(Counter::new),
        })
    }
}

/// Sells the plan on one route.
pub struct Pay {
    desks: Arc<Desks>,
    way: Way,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    X402,
    Mpp,
}

impl Way {
    fn of(path: &str) -> Option<Way> {
        [("/x402", Way::X402), ("/mpp", Way::Mpp)]
            .into_iter()
            .find(|(ending, _)| path.ends_with(ending))
            .map(|(_, way)| way)
    }

    /// The media type of a 402 on this route.
    fn media(self) -> &'static str {
        match self {
            Way::X402 => JSON,
            Way::Mpp => PROBLEM_JSON,
        }
    }
}

/// The path of a route names no payment protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`pay` answers paths that end in `/{{plan}}/x402` or `/{{plan}}/mpp`; `{path}` is none of them"
)]
pub struct UnknownWay {
    path: String,
}

impl Pay {
    /// The filter for a route of this path, which may start with the path of the service's address.
    pub fn new(desks: &Arc<Desks>, path: &str) -> Result<Pay, UnknownWay> {
        let way = Way::of(path);
        let unknown = || UnknownWay {
            path: path.to_owned(),
        };
        Ok(Pay {
            desks: desks.clone(),
            way: way.ok_or_else(unknown)?,
        })
    }

    /// Whether requests to a route of this path carry a payment credential in `Authorization`, so that the account's credential is in
    /// another field.
    pub fn shares_authorization(path: &str) -> bool {
        Way::of(path) == Some(Way::Mpp)
    }

    /// Whether a path names the configured plan in its last but one segment.
    fn names_the_plan(&self, path: &str) -> bool {
        path.rsplit('/').nth(1) == Some(&*self.desks.plan)
    }
}

impl Filter for Pay {
    fn name(&self) -> &'static str {
        "pay"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request.into(),
            body: Body::Json {
                bytes_max: BODY_BYTES_MAX,
            },
            on_failure: FailureMode::Deny,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        if !self.names_the_plan(&exchange.request.path) {
            let message = format!(
                "There is no such plan. The one plan on sale is `{}`.",
                self.desks.plan
            );
            return Step::now(Outcome::refuse(ApiError::new(ErrorCode::NotFound, message)));
        }
        let asked = match request::read(&exchange.request, &self.desks.product) {
            Ok(asked) => asked,
            Err(error) => {
                let problem = Problem::of(error, PaymentState::Required, RetryAction::Pay);
                return Step::now(problem.outcome(exchange, self.way.media()));
            }
        };
        if let (Way::Mpp, Some(desk)) = (self.way, &self.desks.mpp) {
            return Step::later(mpp::answer(desk, exchange, asked));
        }
        if let (Way::X402, Some(counter)) = (self.way, &self.desks.x402) {
            let Some(account) = exchange.get::<Principal>().map(|known| known.account) else {
                return Step::failed(nobody());
            };
            return Step::later(async move { Ok(counter.answer(exchange, account, &asked).await) });
        }
        let message = match self.way {
            Way::X402 => {
                "The plan cannot be bought with x402 at the moment. Nothing was charged; try again later, or choose another way of paying."
            }
            Way::Mpp => {
                "The plan cannot be bought with MPP at the moment. Nothing was charged; try again later, or choose another way of paying."
            }
        };
        let problem = Problem::new(
            ErrorCode::PaymentRouteUnavailable,
            message,
            PaymentState::Unavailable,
            RetryAction::RetrySame,
        );
        Step::now(
            problem
                .retry_after(AGAIN)
                .outcome(exchange, self.way.media()),
        )
    }
}

/// The route's filter chain does not authenticate the account.
fn nobody() -> FilterError {
    let answer = ApiError::new(
        ErrorCode::InternalError,
        "The service is not set up properly.",
    );
    FilterError::new(answer, "`pay` stands before `auth`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_a_way_of_paying_by_the_end_of_its_path() {
        let desks = Desks::new(Arc::from("svc-pro"), None, None);
        for (path, way) in [
            ("/commerce/subscriptions/{plan}/x402", Some(Way::X402)),
            ("/api/commerce/subscriptions/{plan}/mpp", Some(Way::Mpp)),
            ("/commerce/subscriptions/{plan}", None),
            ("/commerce/subscriptions/{plan}/ax402", None),
        ] {
            let made = Pay::new(&desks, path).ok().map(|pay| pay.way);
            assert_eq!(made, way, "{path}");
        }
    }
}
