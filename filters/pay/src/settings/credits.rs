//! The section `[credits]`: the price of a credit, and limits of purchases.

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::settings::{Amount, At, Problems, PublicUrl};
use tollgate_filter::{ServiceIdentity, SignupGrant};
use tollgate_module::{Section, SectionContext, Services};
use tollgate_money::{Micros, Usd, UsdPerCredit};
use tollgate_purchase::{Credits, Offer};

/// The page of this service for buying credits.
const ADD_CREDITS: &str = "/credits/add";

/// Default proposed amounts, in cents.
const AMOUNTS: [i64; 4] = [1_000, 2_000, 5_000, 10_000];
const MIN: Usd = Usd::from_cents(500);
const MAX: Usd = Usd::from_cents(50_000);

/// A million dollars: a larger amount is more likely a typing error than a sale.
const LIMIT: Usd = Usd::from_cents(100_000_000);

/// The price of a credit, and limits of purchases.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawCredits {
    /// The price of a credit. Basis of the prices in dollars in the model list (`pricing`); without it they are null, and nothing can be
    /// bought.
    ///
    /// Type: US dollars, decimal string
    /// Range: above 0, six places
    usd_per_credit: Option<At<String>>,
    /// The URL for adding credits: the member `topup_url`, and part of the message, of a 402.
    ///
    /// Type: URL
    /// Default: `/credits/add` of this service
    /// Range: `http` or `https`, no user, query or fragment
    topup_url: Option<At<String>>,
    /// Proposed amounts on the page, beside a free amount.
    ///
    /// Type: list of US dollars, decimal strings
    /// Default: `["10", "20", "50", "100"]`
    /// Range: within the two limits
    topup_usd: Option<At<Vec<At<String>>>>,
    /// Minimum purchase.
    ///
    /// Type: US dollars, decimal string
    /// Default: `"5"`
    /// Range: above 0
    topup_usd_min: Option<At<String>>,
    /// Maximum purchase.
    ///
    /// Type: US dollars, decimal string
    /// Default: `"500"`
    /// Range: `topup_usd_min` to a million
    topup_usd_max: Option<At<String>>,
    /// Credits granted to accounts created by sign-up, once for each mailbox (an address without its tag, from a `+` on) or number,
    /// and not for a mailbox that is a login of another account; `[signin]` limits them for networks and domains.
    ///
    /// Default: `"0"`
    signup_grant: Amount,
}

impl Section for RawCredits {
    const NAME: &'static str = "credits";
    type Settings = Credits;

    /// `None` only for an invalid price: a missing price is reported in any case.
    fn check(&self, context: &SectionContext<'_>, problems: &mut Problems) -> Option<Credits> {
        let service: ServiceIdentity = context.find()?;
        let key = |name: &str| context.key(name);
        let rate = match &self.usd_per_credit {
            None => Some(None),
            Some(at) => rate(&key("usd_per_credit"), at, problems).map(Some),
        };
        let topup_url = self.topup_url.as_ref();
        let topup_url: Option<PublicUrl> =
            topup_url.and_then(|at| problems.parse(key("topup_url"), at));
        let offer = self.offer(rate.flatten(), context, problems);
        let signup_grant = self.signup_grant.check(key("signup_grant"), problems);
        Some(Credits {
            usd_per_credit: rate?,
            topup_url: topup_url.map_or_else(
                || format!("{}{ADD_CREDITS}", service.base_url),
                |url| url.to_string(),
            ),
            offer,
            signup_grant: signup_grant.unwrap_or_default(),
        })
    }

    fn provide(settings: Credits, services: &mut Services) {
        services.provide(SignupGrant(settings.signup_grant));
        services.provide(settings);
    }
}

impl RawCredits {
    fn offer(
        &self,
        rate: Option<UsdPerCredit>,
        context: &SectionContext<'_>,
        problems: &mut Problems,
    ) -> Option<Offer> {
        let mut dollars = |name: &str, at: &Option<At<String>>, default| {
            let Some(at) = at else { return default };
            amount(&context.key(name), at, problems).unwrap_or(default)
        };
        let min = dollars("topup_usd_min", &self.topup_usd_min, MIN);
        let max = dollars("topup_usd_max", &self.topup_usd_max, MAX.max(min));
        if let (true, Some(at)) = (
            max < min,
            self.topup_usd_max.as_ref().or(self.topup_usd_min.as_ref()),
        ) {
            let message = format_args!(
                "leaves no amount between {min} and {max}; raise the maximum or lower the minimum"
            );
            problems.note(context.key("topup_usd_max"), at, message);
        }
        let amounts = match &self.topup_usd {
            None => AMOUNTS
                .map(Usd::from_cents)
                .into_iter()
                .filter(|amount| (min..=max).contains(amount))
                .collect(),
            Some(list) => {
                let mut amounts = Vec::with_capacity(list.value.len());
                for (number, at) in list.value.iter().enumerate() {
                    let key = format!("{}.{number}", context.key("topup_usd"));
                    let Some(amount) = amount(&key, at, problems) else {
                        continue;
                    };
                    if !(min..=max).contains(&amount) {
                        let message = format_args!(
                            "is {amount}, which is not between {min} and {max}; propose an amount in this range, or change `topup_usd_min` or `topup_usd_max`"
                        );
                        problems.note(&key, at, message);
                    }
                    amounts.push(amount);
                }
                amounts
            }
        };
        Some(Offer {
            micro_dollars_per_credit: rate?.micro_dollars(),
            amounts,
            min,
            max,
        })
    }
}

fn rate(key: &str, at: &At<String>, problems: &mut Problems) -> Option<UsdPerCredit> {
    // Dollars have six decimal places here, as credits have; the parser of credits reads them.
    let dollars: Micros = problems.parse(key, at)?;
    let rate = UsdPerCredit::from_micro_dollars(dollars.get());
    if rate.is_none() {
        problems.note(key, at, format_args!("is `{}`; use more than 0", at.value));
    }
    rate
}

fn amount(key: &str, at: &At<String>, problems: &mut Problems) -> Option<Usd> {
    let amount: Usd = problems.parse(key, at)?;
    if !amount.is_positive() || amount > LIMIT {
        let message = format_args!("is `{}`; use more than 0 and at most {LIMIT}", at.value);
        problems.note(key, at, message);
        return None;
    }
    Some(amount)
}
