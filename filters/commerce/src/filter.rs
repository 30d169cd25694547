//! The filter `commerce`: product document, UCP profile, checkout sessions and PayPal webhooks, by the path of the route.

use std::sync::Arc;

use tollgate_clock::Clock;
use tollgate_counters::Counters;
use tollgate_fetch::SetupError;
use tollgate_filter::{
    ApiError, Body, Contract, Document, ErrorCode, Exchange, FailureMode, Filter, Outcome, Phase,
    Step,
};
use tollgate_module::Snapshot;
use tollgate_purchase::checkouts::Checkouts;
use tollgate_purchase::idempotency::IdempotencyKeys;
use tollgate_purchase::plan::{Plan, PlanProtocols};
use tollgate_purchase::wire::Product;

use crate::config::{ProfileFetch, UcpSettings};
use crate::counters::WebhookResult;
use crate::discovery;
use crate::product;
use crate::ucp::checkout_sessions::{self, CheckoutFormat, CheckoutPath, CheckoutSessions};
use crate::ucp::profiles::Profiles;
use crate::ucp::wire::MerchantInfo;
use crate::ucp::{CURRENT, OLDER};
use crate::webhooks::{PayPal, Webhooks};

/// Maximum body size, in bytes: a webhook notification has a few thousand, a checkout a few hundred.
const BODY_BYTES: usize = 64 * 1024;

/// Services shared by the commerce routes.
pub struct CommerceServices {
    webhooks: Webhooks,
    /// The profiles of the current and the older version of UCP; `None` without a payment route for checkouts.
    profiles: Option<[Document; 2]>,
    product: Snapshot<Product>,
    checkouts: CheckoutSessions,
}

/// Dependencies of [`CommerceServices`].
pub struct CommerceDeps<'a> {
    /// Base URL of the service, without a trailing slash.
    pub base_url: &'a str,
    /// The product.
    pub plan: &'a Plan,
    /// The plan as documents describe it.
    pub product: Snapshot<Product>,
    /// The protocols for buying it.
    pub protocols: PlanProtocols,
    /// The PayPal webhook receiver; `None`: the webhook path is 404.
    pub paypal: Option<PayPal>,
    /// Settings of checkouts.
    pub ucp: Snapshot<UcpSettings>,
    pub checkouts: Checkouts,
    /// Idempotency keys and stored responses.
    pub idempotency: IdempotencyKeys,
    /// The clock, for the freshness of profiles.
    pub clock: Clock,
    /// URL of the terms of service, if configured.
    pub terms_url: Option<String>,
    /// URL of the privacy policy, if configured.
    pub privacy_url: Option<String>,
}

impl CommerceServices {
    /// Creates the services.
    ///
    /// # Errors
    ///
    /// The settings require fetching profiles, and the HTTP client cannot be set up.
    pub fn new(deps: CommerceDeps<'_>) -> Result<Arc<CommerceServices>, SetupError> {
        let ucp = deps.ucp.load();
        let profiles = match ucp.profile_fetch {
            ProfileFetch::Never => None,
            ProfileFetch::Listed | ProfileFetch::Always => Some(Profiles::new(deps.clock)?),
        };
        Ok(Arc::new(CommerceServices {
            webhooks: Webhooks::new(deps.paypal),
            profiles: (deps.protocols.paypal).then(|| {
                let newer = discovery::profile_of(deps.base_url, CURRENT);
                [discovery::profile(deps.base_url), newer].map(|it| Document::json(&it))
            }),
            product: deps.product.clone(),
            checkouts: CheckoutSessions {
                merchant: MerchantInfo {
                    base_url: deps.base_url.to_owned(),
                    plan: deps.plan.clone(),
                    product: deps.product,
                    links: links([
                        ("terms_of_service", deps.terms_url),
                        ("privacy_policy", deps.privacy_url),
                        ("refund_policy", ucp.refund_url.clone()),
                    ]),
                },
                settings: deps.ucp.clone(),
                checkouts: deps.checkouts,
                idempotency: deps.idempotency,
                profiles,
            },
        }))
    }

    /// Counters of webhook notifications by result.
    pub fn counters(&self) -> Arc<Counters<WebhookResult>> {
        self.webhooks.counters()
    }

    fn product(&self, exchange: &Exchange) -> Outcome {
        let request = &exchange.request;
        let slug = &self.checkouts.merchant.plan.slug;
        if request.path.rsplit('/').next() == Some(&**slug) {
            let document = Document::json(&product::product(&self.product.load()));
            return Outcome::reply(document.reply(request));
        }
        let message = format!("Unknown plan. The only plan for sale is `{slug}`.");
        Outcome::refuse(ApiError::new(ErrorCode::NotFound, message))
    }
}

/// The configured links.
fn links(all: [(&'static str, Option<String>); 3]) -> Vec<(&'static str, String)> {
    let known = |(kind, url): (&'static str, Option<String>)| Some((kind, url?));
    all.into_iter().filter_map(known).collect()
}

/// The filter of one commerce route.
pub struct Commerce {
    services: Arc<CommerceServices>,
    endpoint: Endpoint,
}

/// Endpoint of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    /// Webhook of a payment provider.
    Webhooks,
    /// UCP profile of the service: of the current version (0), or of the older one (1).
    Profile(usize),
    Product,
    Checkouts(checkout_sessions::CheckoutRoute),
}

/// The endpoint of checkouts in a format and a version of UCP.
const fn checkout(format: CheckoutFormat, version: &'static str, path: CheckoutPath) -> Endpoint {
    Endpoint::Checkouts(checkout_sessions::CheckoutRoute {
        format,
        version,
        path,
    })
}

/// Path suffix of each endpoint.
const ENDPOINTS: [(&str, Endpoint); 14] = [
    ("/webhooks/paypal", Endpoint::Webhooks),
    ("/.well-known/ucp", Endpoint::Profile(0)),
    ("/.well-known/ucp/2026-08-25", Endpoint::Profile(1)),
    ("/commerce/products/{plan}", Endpoint::Product),
    (
        "/ucp/v1/checkout-sessions",
        checkout(CheckoutFormat::Service, OLDER, CheckoutPath::All),
    ),
    (
        "/ucp/v1/checkout-sessions/{session}",
        checkout(CheckoutFormat::Service, OLDER, CheckoutPath::One),
    ),
    (
        "/ucp/2026-08-25/checkout-sessions",
        checkout(CheckoutFormat::Protocol, CURRENT, CheckoutPath::All),
    ),
    (
        "/ucp/2026-08-25/checkout-sessions/{session}",
        checkout(CheckoutFormat::Protocol, CURRENT, CheckoutPath::One),
    ),
    (
        "/ucp/2026-08-25/checkout-sessions/{session}/complete",
        checkout(CheckoutFormat::Protocol, CURRENT, CheckoutPath::Complete),
    ),
    (
        "/ucp/2026-08-25/checkout-sessions/{session}/cancel",
        checkout(CheckoutFormat::Protocol, CURRENT, CheckoutPath::Cancel),
    ),
    (
        "/ucp/2026-04-08/checkout-sessions",
        checkout(CheckoutFormat::Protocol, OLDER, CheckoutPath::All),
    ),
    (
        "/ucp/2026-04-08/checkout-sessions/{session}",
        checkout(CheckoutFormat::Protocol, OLDER, CheckoutPath::One),
    ),
    (
        "/ucp/2026-04-08/checkout-sessions/{session}/complete",
        checkout(CheckoutFormat::Protocol, OLDER, CheckoutPath::Complete),
    ),
    (
        "/ucp/2026-04-08/checkout-sessions/{session}/cancel",
        checkout(CheckoutFormat::Protocol, OLDER, CheckoutPath::Cancel),
    ),
];

/// A route path without an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`commerce` has nothing at `{path}`; it has `{}`", ENDPOINTS.map(|(path, _)| path).join("`, `"))]
pub struct UnknownEndpoint {
    path: String,
}

impl Commerce {
    /// The filter for a route path, which may be prefixed with the path of the service URL.
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
                Endpoint::Profile(_) | Endpoint::Product => Body::Unread,
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
            Endpoint::Profile(version) => Step::now(match &self.services.profiles {
                Some(profiles) => Outcome::reply(profiles[version].reply(&exchange.request)),
                None => Outcome::refuse(ApiError::new(
                    ErrorCode::NotFound,
                    "Checkouts are not configured on this service.",
                )),
            }),
            Endpoint::Product => Step::now(self.services.product(exchange)),
            Endpoint::Checkouts(endpoint) => {
                let answer = self.services.checkouts.answer(endpoint, exchange);
                Step::later(answer)
            }
        }
    }
}
