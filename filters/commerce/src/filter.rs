//! The filter `commerce`: what stands at the path of its route.

use std::sync::Arc;

use tollgate_fetch::SetupError;
use tollgate_filter::{
    ApiError, Body, Clock, Contract, Document, ErrorCode, Exchange, FailureMode, Filter, Outcome,
    Phase, Step,
};
use tollgate_purchase::checkouts::Checkouts;
use tollgate_purchase::idempotency::IdempotencyKeys;
use tollgate_purchase::plan::Plan;

use crate::config::{ProfileFetch, UcpSettings};
use crate::counters::WebhookCounters;
use crate::discovery;
use crate::product;
use crate::ucp::checkout_sessions::{self, CheckoutFormat, CheckoutPath, CheckoutSessions};
use crate::ucp::profiles::Profiles;
use crate::ucp::wire::MerchantInfo;
use crate::webhooks::{PayPal, Webhooks};

/// The most bytes of a body: a notice has a few thousand, a checkout a few hundred.
const BODY_BYTES: usize = 64 * 1024;

/// What the routes of commerce share.
pub struct CommerceServices {
    webhooks: Webhooks,
    profile: Document,
    product: Document,
    checkouts: CheckoutSessions,
}

/// What a shop is built from.
pub struct CommerceDeps<'a> {
    /// The service's address, without a slash at its end.
    pub base_url: &'a str,
    /// Where its pages are, without a slash at its end.
    pub root_url: &'a str,
    /// What is sold.
    pub plan: &'a Plan,
    /// Whoever tells of payments; without it there is nothing at the address of notices.
    pub paypal: Option<PayPal>,
    /// How checkouts are served.
    pub ucp: UcpSettings,
    /// Where checkouts are kept.
    pub checkouts: Checkouts,
    /// Tells answers again.
    pub idempotency: IdempotencyKeys,
    /// What time it is, for how long profiles are fresh.
    pub clock: Clock,
    /// Documents that a buyer agrees to, where there are any.
    pub terms_url: Option<String>,
    /// What becomes of what is known of people.
    pub privacy_url: Option<String>,
}

impl CommerceServices {
    /// A shop.
    ///
    /// # Errors
    ///
    /// Profiles are to be fetched, and there is nothing to fetch them with.
    pub fn new(deps: CommerceDeps<'_>) -> Result<Arc<CommerceServices>, SetupError> {
        let profiles = match deps.ucp.profile_fetch {
            ProfileFetch::Never => None,
            ProfileFetch::Listed | ProfileFetch::Always => Some(Profiles::new(deps.clock)?),
        };
        Ok(Arc::new(CommerceServices {
            webhooks: Webhooks::new(deps.paypal),
            profile: Document::json(&discovery::profile(deps.base_url)),
            product: Document::json(&product::product(deps.plan, deps.base_url, deps.root_url)),
            checkouts: CheckoutSessions {
                merchant: MerchantInfo {
                    base_url: deps.base_url.to_owned(),
                    root_url: deps.root_url.to_owned(),
                    plan: deps.plan.clone(),
                    links: links([
                        ("terms_of_service", deps.terms_url),
                        ("privacy_policy", deps.privacy_url),
                        ("refund_policy", deps.ucp.refund_url.clone()),
                    ]),
                },
                settings: deps.ucp,
                checkouts: deps.checkouts,
                idempotency: deps.idempotency,
                profiles,
            },
        }))
    }

    /// What became of notices.
    pub fn counters(&self) -> Arc<WebhookCounters> {
        self.webhooks.counters()
    }

    fn product(&self, exchange: &Exchange) -> Outcome {
        let request = &exchange.request;
        let slug = &self.checkouts.merchant.plan.slug;
        if request.path.rsplit('/').next() == Some(&**slug) {
            return Outcome::reply(self.product.reply(request));
        }
        let message = format!("There is no such plan. The one plan on sale is `{slug}`.");
        Outcome::refuse(ApiError::new(ErrorCode::NotFound, message))
    }
}

/// The documents that there are.
fn links(all: [(&'static str, Option<String>); 3]) -> Vec<(&'static str, String)> {
    let known = |(kind, url): (&'static str, Option<String>)| Some((kind, url?));
    all.into_iter().filter_map(known).collect()
}

/// Answers one route of the shop.
pub struct Commerce {
    services: Arc<CommerceServices>,
    endpoint: Endpoint,
}

/// What stands at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    /// Notices of a payment provider.
    Webhooks,
    /// What platforms are told of the service.
    Profile,
    /// What is sold.
    Product,
    /// Checkouts.
    Checkouts(checkout_sessions::CheckoutRoute),
}

/// Where checkouts of a form stand.
const fn checkout(format: CheckoutFormat, path: CheckoutPath) -> Endpoint {
    Endpoint::Checkouts(checkout_sessions::CheckoutRoute { format, path })
}

/// How the paths of each place end.
const ENDPOINTS: [(&str, Endpoint); 9] = [
    ("/webhooks/paypal", Endpoint::Webhooks),
    ("/.well-known/ucp", Endpoint::Profile),
    ("/commerce/products/{plan}", Endpoint::Product),
    (
        "/ucp/v1/checkout-sessions",
        checkout(CheckoutFormat::Service, CheckoutPath::All),
    ),
    (
        "/ucp/v1/checkout-sessions/{session}",
        checkout(CheckoutFormat::Service, CheckoutPath::One),
    ),
    (
        "/ucp/2026-04-08/checkout-sessions",
        checkout(CheckoutFormat::Protocol, CheckoutPath::All),
    ),
    (
        "/ucp/2026-04-08/checkout-sessions/{session}",
        checkout(CheckoutFormat::Protocol, CheckoutPath::One),
    ),
    (
        "/ucp/2026-04-08/checkout-sessions/{session}/complete",
        checkout(CheckoutFormat::Protocol, CheckoutPath::Complete),
    ),
    (
        "/ucp/2026-04-08/checkout-sessions/{session}/cancel",
        checkout(CheckoutFormat::Protocol, CheckoutPath::Cancel),
    ),
];

/// A route that leads to nothing in the shop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`commerce` has nothing at `{path}`; it has `{}`", ENDPOINTS.map(|(path, _)| path).join("`, `"))]
pub struct UnknownEndpoint {
    path: String,
}

impl Commerce {
    /// The filter for a route of this path, which may begin with the path of the service's address.
    pub fn new(services: &Arc<CommerceServices>, path: &str) -> Result<Commerce, UnknownEndpoint> {
        let found = ENDPOINTS.iter().find(|(ending, _)| path.ends_with(ending));
        let unknown = || UnknownEndpoint {
            path: path.to_owned(),
        };
        Ok(Commerce {
            services: services.clone(),
            endpoint: found.ok_or_else(unknown)?.1,
        })
    }
}

impl Filter for Commerce {
    fn name(&self) -> &'static str {
        "commerce"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request.into(),
            body: match self.endpoint {
                Endpoint::Profile | Endpoint::Product => Body::Unread,
                Endpoint::Webhooks => Body::Bytes {
                    bytes_max: BODY_BYTES,
                },
                Endpoint::Checkouts(_) => Body::Json {
                    bytes_max: BODY_BYTES,
                },
            },
            on_failure: FailureMode::Deny,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        match self.endpoint {
            Endpoint::Webhooks => self.services.webhooks.answer(exchange),
            Endpoint::Profile => Step::now(Outcome::reply(
                self.services.profile.reply(&exchange.request),
            )),
            Endpoint::Product => Step::now(self.services.product(exchange)),
            Endpoint::Checkouts(endpoint) => {
                let answer = self.services.checkouts.answer(endpoint, exchange);
                Step::later(answer)
            }
        }
    }
}
