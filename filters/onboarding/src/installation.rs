//! Properties of this installation that the documents state.

use tollgate_filter::ServiceIdentity;
use tollgate_purchase::plan::Plan;

/// Properties of this installation for the OpenAPI document.
#[derive(Clone, Debug)]
pub struct Installation {
    /// Name and URLs.
    pub service: ServiceIdentity,
    /// The plan.
    pub plan: Plan,
    /// Contract address of the token that x402 requires.
    pub usdc: String,
    /// Deprecated routes.
    pub deprecated: Vec<Deprecated>,
}

/// A deprecated route.
#[derive(Clone, Debug)]
pub struct Deprecated {
    /// Method.
    pub method: http::Method,
    /// Path, as in the settings.
    pub path: String,
}
