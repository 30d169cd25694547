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
use crate::x402::endpoint::X402Endpoint;

/// The most bytes of a body: a valid one has two short members.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// `Retry-After` while no payment is possible.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// The payment protocols of a plan, shared by all payment routes.
pub struct PaymentProtocols {
    /// The plan's name in addresses: `svc-pro`.
    plan: Arc<str>,
    /// The product: `svc-pro-monthly`.
    product: Arc<str>,
    mpp: Option<mpp::Processor>,
    x402: Option<X402Endpoint>,
}

impl PaymentProtocols {
    /// The payment protocols for the plan of this name; an absent protocol is not offered.
    pub fn new(
        plan: Arc<str>,
        mpp: Option<mpp::Processor>,
        x402: Option<x402::Processor>,
    ) -> Arc<PaymentProtocols> {
        Arc::new(PaymentProtocols {
            product: format!("{plan}-monthly").into(),
            plan,
            mpp,
            x402: x402.map(X402Endpoint::new),
        })
    }
}

/// Sells the plan on one route.
pub struct Pay {
    protocols: Arc<PaymentProtocols>,
    protocol: PaymentProtocol,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PaymentProtocol {
    X402,
    Mpp,
}

impl PaymentProtocol {
    fn of(path: &str) -> Option<PaymentProtocol> {
        [
            ("/x402", PaymentProtocol::X402),
            ("/mpp", PaymentProtocol::Mpp),
        ]
        .into_iter()
        .find(|(ending, _)| path.ends_with(ending))
        .map(|(_, protocol)| protocol)
    }

    /// The media type of a 402 on this route.
    fn media(self) -> &'static str {
        match self {
            PaymentProtocol::X402 => JSON,
            PaymentProtocol::Mpp => PROBLEM_JSON,
        }
    }
}

/// The path of a route names no payment protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`pay` answers paths that end in `/{{plan}}/x402` or `/{{plan}}/mpp`; `{path}` is none of them"
)]
pub struct UnknownProtocol {
    path: String,
}

impl Pay {
    /// The filter for a route of this path. The path may start with the path of the service's address.
    pub fn new(protocols: &Arc<PaymentProtocols>, path: &str) -> Result<Pay, UnknownProtocol> {
        let protocol = PaymentProtocol::of(path);
        let unknown = || UnknownProtocol {
            path: path.to_owned(),
        };
        Ok(Pay {
            protocols: protocols.clone(),
            protocol: protocol.ok_or_else(unknown)?,
        })
    }

    /// Whether requests to a route of this path carry a payment credential in `Authorization`, and the account's credential in another
    /// field.
    pub fn shares_authorization(path: &str) -> bool {
        PaymentProtocol::of(path) == Some(PaymentProtocol::Mpp)
    }

    /// Whether the last but one segment of a path names the configured plan.
    fn is_for_plan(&self, path: &str) -> bool {
        path.rsplit('/').nth(1) == Some(&*self.protocols.plan)
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
        if !self.is_for_plan(&exchange.request.path) {
            let message = format!(
                "The path names an unknown plan. The only plan is `{}`.",
                self.protocols.plan
            );
            return Step::now(Outcome::refuse(ApiError::new(ErrorCode::NotFound, message)));
        }
        let validated = match request::read(&exchange.request, &self.protocols.product) {
            Ok(validated) => validated,
            Err(error) => {
                let problem = Problem::of(error, PaymentState::Required, RetryAction::Pay);
                return Step::now(problem.outcome(exchange, self.protocol.media()));
            }
        };
        if let (PaymentProtocol::Mpp, Some(processor)) = (self.protocol, &self.protocols.mpp) {
            return Step::later(mpp::answer(processor, exchange, validated));
        }
        if let (PaymentProtocol::X402, Some(endpoint)) = (self.protocol, &self.protocols.x402) {
            let Some(account) = exchange
                .get::<Principal>()
                .map(|principal| principal.account)
            else {
                return Step::failed(no_principal());
            };
            return Step::later(
                async move { Ok(endpoint.answer(exchange, account, &validated).await) },
            );
        }
        let message = match self.protocol {
            PaymentProtocol::X402 => {
                "The plan cannot be bought with x402 at the moment. Nothing was charged. Retry later, or use another payment method."
            }
            PaymentProtocol::Mpp => {
                "The plan cannot be bought with MPP at the moment. Nothing was charged. Retry later, or use another payment method."
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
                .retry_after(RETRY_AFTER)
                .outcome(exchange, self.protocol.media()),
        )
    }
}

/// The route's filter chain does not authenticate the account.
fn no_principal() -> FilterError {
    let answer = ApiError::new(
        ErrorCode::InternalError,
        "The gateway is misconfigured: this route does not authenticate the account. Report the request id to the operator.",
    );
    FilterError::new(
        answer,
        "the exchange has no principal; put `auth` before `pay`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_path_names_the_payment_protocol() {
        let protocols = PaymentProtocols::new(Arc::from("svc-pro"), None, None);
        for (path, protocol) in [
            (
                "/commerce/subscriptions/{plan}/x402",
                Some(PaymentProtocol::X402),
            ),
            (
                "/api/commerce/subscriptions/{plan}/mpp",
                Some(PaymentProtocol::Mpp),
            ),
            ("/commerce/subscriptions/{plan}", None),
            ("/commerce/subscriptions/{plan}/ax402", None),
        ] {
            let built = Pay::new(&protocols, path).ok().map(|pay| pay.protocol);
            assert_eq!(built, protocol, "{path}");
        }
    }
}
