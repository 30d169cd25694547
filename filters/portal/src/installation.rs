//! Configuration of this installation for the pages: models, prices, limits, deprecations.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_filter::{Catalog, RateClass, RateClasses, RouteFacts, RouteList, Scope};
use tollgate_module::{BuildError, Services};
use tollgate_purchase::Credits;
use tollgate_purchase::plan::PlanProtocols;

/// The name of the page module.
pub(crate) const NAME: &str = "portal";

/// Configuration of this installation for the pages.
#[derive(Clone, Debug)]
pub struct Installation {
    /// Models for sale.
    pub catalog: Arc<Catalog>,
    /// Price of a credit as a sentence, if configured.
    pub credit_price: Option<String>,
    pub classes: Arc<[RateClass]>,
    /// Maximum size of a completion request, in bytes.
    pub completion_bytes_max: u64,
    /// Paths of the payment endpoints that are configured.
    pub payment_paths: Vec<String>,
    /// Deprecated routes.
    pub deprecations: Vec<DeprecationInfo>,
}

/// Deprecation and sunset of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeprecationInfo {
    /// Methods and path: `POST /v1/completions`.
    pub route: String,
    /// Time of deprecation; may be in the future.
    pub deprecated_at: Option<Timestamp>,
    /// Time from which the route may be removed.
    pub sunset_at: Option<Timestamp>,
    /// URL of the successor.
    pub successor: Option<String>,
}

impl Installation {
    /// The services' view of this installation.
    pub(crate) fn of(services: &Services) -> Result<Installation, BuildError> {
        let RouteList(routes) = services.get(NAME)?;
        let RateClasses(classes) = services.get(NAME)?;
        let credits: Credits = services.get(NAME)?;
        let price = credits.usd_per_credit;
        let completions = routes
            .iter()
            .find(|route| &*route.path == "/v1/chat/completions");
        let PlanProtocols { x402, mpp, paypal } = services.get(NAME)?;
        let payments = routes.iter().filter(|route| {
            let access = route.access.as_ref();
            let is_on = match &*route.path {
                path if path.ends_with("/x402") => x402,
                path if path.ends_with("/mpp") => mpp,
                _ => paypal,
            };
            is_on && access.is_some_and(|access| access.any_of.has(Scope::CommerceSubscribe))
        });
        Ok(Installation {
            catalog: services.get(NAME)?,
            credit_price: price.map(|price| format!("1 credit costs {price} USD.")),
            classes,
            completion_bytes_max: completions.map_or(0, |route| route.body_bytes_max as u64),
            payment_paths: payments.map(|route| route.path.to_string()).collect(),
            deprecations: routes.iter().filter_map(deprecation).collect(),
        })
    }
}

fn deprecation(route: &RouteFacts) -> Option<DeprecationInfo> {
    let lifecycle = route.lifecycle.as_ref()?;
    let methods: Vec<&str> = route.methods.iter().map(http::Method::as_str).collect();
    Some(DeprecationInfo {
        route: format!("{} {}", methods.join(", "), route.path),
        deprecated_at: lifecycle.deprecated_at,
        sunset_at: lifecycle.sunset_at,
        successor: lifecycle.successor.clone(),
    })
}
