//! The settings' values for the onboarding documents.

use tollgate_filter::PaymentAsset;
use tollgate_onboarding::{Deprecated, Installation};

use crate::config::Settings;

/// The contract of USDC on Base, for a service without x402 settings.
const USDC: &str = "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913";

/// The description of the service; `None` without the section `[plan]`.
pub(crate) fn installation(settings: &Settings) -> Option<Installation> {
    let asset: Option<PaymentAsset> = settings.sections.find();
    Some(Installation {
        service: settings.service.identity(),
        plan: settings.sections.find()?,
        usdc: asset.map_or_else(|| USDC.to_owned(), |asset| asset.0.to_string()),
        deprecated: deprecated(settings),
    })
}

/// Every method of every deprecated route. A route that has only a sunset date is deprecated too: a client that reads that date should not
/// start to use it.
fn deprecated(settings: &Settings) -> Vec<Deprecated> {
    let ending = settings
        .routes
        .iter()
        .filter(|route| route.lifecycle.is_some());
    ending
        .flat_map(|route| {
            route.methods.iter().map(|method| Deprecated {
                method: method.clone(),
                path: route.path.to_string(),
            })
        })
        .collect()
}
