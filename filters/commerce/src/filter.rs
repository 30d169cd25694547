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
use crate::counters::Counters;
use crate::discovery;
use crate::notices::{Notices, PayPal};
use crate::product;
use crate::ucp::profiles::Profiles;
use crate::ucp::sessions::{self, At, Form, Sessions};
use crate::ucp::wire::Shown;

/// The most bytes of a body: a notice has a few thousand, a checkout a few hundred.
const BODY_BYTES: usize = 64 * 1024;

/// What the routes of commerce share.
pub struct Shop {
    notices: Notices,
    profile: Document,
    product: Document,
    sessions: Sessions,
}

/// What a shop is built from.
pub struct Parts<'a> {
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
    pub once: IdempotencyKeys,
    /// What time it is, for how long profiles are fresh.
    pub clock: Clock,
    /// Documents that a buyer agrees to, where there are any.
    pub terms_url: Option<String>,
    /// What becomes of what is known of people.
    pub privacy_url: Option<String>,
}

impl Shop {
    /// A shop.
    ///
    /// # Errors
    ///
    /// Profiles are to be fetched, and there is nothing to fetch them with.
    pub fn new(parts: Parts<'_>) -> Result<Arc<Shop>, SetupError> {
        let profiles = match parts.ucp.profile_fetch {
            ProfileFetch::Never => None,
            ProfileFetch::Listed | ProfileFetch::Always => Some(Profiles::new(parts.clock)?),
        };
        Ok(Arc::new(Shop {
            notices: Notices::new(parts.paypal),
            profile: Document::json(&discovery::profile(parts.base_url)),
            product: Document::json(&product::product(
                parts.plan,
                parts.base_url,
                parts.root_url,
            )),
            sessions: Sessions {
                shown: Shown {
                    base_url: parts.base_url.to_owned(),
                    root_url: parts.root_url.to_owned(),
                    plan: parts.plan.clone(),
                    links: links([
                        ("terms_of_service", parts.terms_url),
                        ("privacy_policy", parts.privacy_url),
                        ("refund_policy", parts.ucp.refund_url.clone()),
                    ]),
                },
                settings: parts.ucp,
                checkouts: parts.checkouts,
                once: parts.once,
                profiles,
            },
        }))
    }

    /// What became of notices.
    pub fn counters(&self) -> Arc<Counters> {
        self.notices.counters()
    }

    fn product(&self, exchange: &Exchange) -> Outcome {
        let request = &exchange.request;
        let slug = &self.sessions.shown.plan.slug;
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
    shop: Arc<Shop>,
    place: Place,
}

/// What stands at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Notices of a payment provider.
    Notices,
    /// What platforms are told of the service.
    Profile,
    /// What is sold.
    Product,
    /// Checkouts.
    Sessions(sessions::Place),
}

/// Where checkouts of a form stand.
const fn at(form: Form, at: At) -> Place {
    Place::Sessions(sessions::Place { form, at })
}

/// How the paths of each place end.
const PLACES: [(&str, Place); 9] = [
    ("/webhooks/paypal", Place::Notices),
    ("/.well-known/ucp", Place::Profile),
    ("/commerce/products/{plan}", Place::Product),
    ("/ucp/v1/checkout-sessions", at(Form::Service, At::All)),
    (
        "/ucp/v1/checkout-sessions/{session}",
        at(Form::Service, At::One),
    ),
    (
        "/ucp/2026-04-08/checkout-sessions",
        at(Form::Protocol, At::All),
    ),
    (
        "/ucp/2026-04-08/checkout-sessions/{session}",
        at(Form::Protocol, At::One),
    ),
    (
        "/ucp/2026-04-08/checkout-sessions/{session}/complete",
        at(Form::Protocol, At::Complete),
    ),
    (
        "/ucp/2026-04-08/checkout-sessions/{session}/cancel",
        at(Form::Protocol, At::Cancel),
    ),
];

/// A route that leads to nothing in the shop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`commerce` has nothing at `{path}`; it has `{}`", PLACES.map(|(path, _)| path).join("`, `"))]
pub struct UnknownPlace {
    path: String,
}

impl Commerce {
    /// The filter for a route of this path, which may begin with the path of the service's address.
    pub fn new(shop: &Arc<Shop>, path: &str) -> Result<Commerce, UnknownPlace> {
        let found = PLACES.iter().find(|(ending, _)| path.ends_with(ending));
        let unknown = || UnknownPlace {
            path: path.to_owned(),
        };
        Ok(Commerce {
            shop: shop.clone(),
            place: found.ok_or_else(unknown)?.1,
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
            body: match self.place {
                Place::Profile | Place::Product => Body::Unread,
                Place::Notices => Body::Bytes {
                    bytes_max: BODY_BYTES,
                },
                Place::Sessions(_) => Body::Json {
                    bytes_max: BODY_BYTES,
                },
            },
            on_failure: FailureMode::Deny,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        match self.place {
            Place::Notices => self.shop.notices.answer(exchange),
            Place::Profile => Step::now(Outcome::reply(self.shop.profile.reply(&exchange.request))),
            Place::Product => Step::now(self.shop.product(exchange)),
            Place::Sessions(place) => {
                let answer = self.shop.sessions.answer(place, exchange);
                Step::later(answer)
            }
        }
    }
}
