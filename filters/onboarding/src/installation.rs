//! Properties of this installation that the documents state.

use tollgate_filter::{
    OfferedResources, PaymentAsset, RateClasses, Resource, Resources, RouteList, ServiceIdentity,
};
use tollgate_identity::signin::CodeChannels;
use tollgate_module::{BuildError, Services};
use tollgate_purchase::plan::{Plan, PlanProtocols, benefits};

use crate::config::OnboardingSettings;

/// The name of this module.
pub(crate) const NAME: &str = "onboarding";

/// The contract of USDC on Base, for a service without x402 settings.
const USDC: &str = "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913";

/// Properties of this installation for the OpenAPI document.
#[derive(Clone, Debug)]
pub struct Installation {
    /// Name and URLs.
    pub service: ServiceIdentity,
    /// The plan.
    pub plan: Plan,
    /// The rate classes.
    pub classes: RateClasses,
    /// The configured protocols for a purchase.
    pub protocols: PlanProtocols,
    /// The configured resources.
    pub offered: Resources,
    /// Whether codes for signing in and up can be sent.
    pub sign_up: bool,
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

impl Installation {
    /// Whether the MCP server of the free tier is there: configured here, or at an address elsewhere.
    pub(crate) fn has_free_tier(&self, settings: &OnboardingSettings) -> bool {
        let own = self.service.resource_url(Resource::McpAndroid);
        self.offered.has(Resource::McpAndroid) || settings.free_tier.endpoint != own
    }

    /// The request quota of an account with the plan, in words.
    pub(crate) fn plan_quota(&self) -> Option<String> {
        self.classes.quota_text(&self.plan.class)
    }

    /// What each payment for the plan buys, as phrases.
    pub(crate) fn plan_benefits(&self) -> Vec<String> {
        benefits(&self.plan, self.plan_quota())
    }

    /// What the services say of this installation.
    ///
    /// # Errors
    ///
    /// A service is missing.
    pub fn of(services: &Services) -> Result<Installation, BuildError> {
        let RouteList(routes) = services.get(NAME)?;
        let asset: Option<PaymentAsset> = services.find();
        // A route that has only a sunset date is deprecated too: a client that reads that date should not start to use it.
        let ending = routes.iter().filter(|route| route.lifecycle.is_some());
        let deprecated = ending.flat_map(|route| {
            route.methods.iter().map(|method| Deprecated {
                method: method.clone(),
                path: route.path.to_string(),
            })
        });
        let OfferedResources(offered) = services.get(NAME)?;
        let channels: CodeChannels = services.get(NAME)?;
        Ok(Installation {
            service: services.get(NAME)?,
            plan: services.get(NAME)?,
            classes: services.get(NAME)?,
            protocols: services.get(NAME)?,
            offered,
            sign_up: channels.email || channels.phone,
            usdc: asset.map_or_else(
                || USDC.to_owned(),
                |PaymentAsset(contract)| contract.to_string(),
            ),
            deprecated: deprecated.collect(),
        })
    }
}
