//! The settings of `[filter.price-limit]`, as written and as checked.

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate::filter::settings::{At, Problems};
use tollgate::module::{Section, SectionContext};
use tollgate::money::Micros;

/// The highest price of one request.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RawPriceLimit {
    /// Credits, as a decimal string; 1 by default.
    credits_max: Option<At<String>>,
}

/// Checked settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PriceLimitSettings {
    pub(crate) price_max: Micros,
}

tollgate::module::provided! { "price-limit" => [PriceLimitSettings]; }

impl Section for RawPriceLimit {
    const NAME: &'static str = "filter.price-limit";
    type Settings = PriceLimitSettings;

    fn check(
        &self,
        context: &SectionContext<'_>,
        problems: &mut Problems,
    ) -> Option<PriceLimitSettings> {
        let price_max = match &self.credits_max {
            Some(at) => problems.parse(context.key("credits_max"), at)?,
            None => Micros::new(1_000_000),
        };
        Some(PriceLimitSettings { price_max })
    }
}
