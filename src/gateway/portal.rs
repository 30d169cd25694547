//! The settings of the portal's pages.

use std::num::NonZeroU32;

use tollgate_clock::Timestamp;
use tollgate_commerce::UcpSettings;
use tollgate_filter::Scope;
use tollgate_oauth::OAuthConfig;
use tollgate_portal::{Channels, DeprecationInfo, Installation, PortalSettings, RateClassInfo};
use tollgate_purchase::Credits;
use tollgate_rate_limit::Limits;

use crate::config::{Route, Settings};

/// The settings of the portal.
pub(super) fn settings(settings: &Settings) -> PortalSettings {
    let oauth: OAuthConfig = settings.sections.find().unwrap_or_default();
    let ucp: UcpSettings = settings.sections.find().unwrap_or_default();
    PortalSettings {
        buy_needs_checkbox: oauth.tick_to_buy,
        channels: Channels {
            email: settings.signin.mail.is_some(),
            phone: settings.signin.sms.is_some(),
        },
        sign_up: settings.signin.sign_up,
        refund_url: ucp.refund_url,
        installation: installation(settings),
    }
}

fn deprecation(route: &Route) -> Option<DeprecationInfo> {
    let lifecycle = route.lifecycle.as_ref()?;
    let methods: Vec<&str> = route.methods.iter().map(http::Method::as_str).collect();
    Some(DeprecationInfo {
        route: format!("{} {}", methods.join(", "), route.path),
        deprecated_at: lifecycle.deprecated_at.map(Timestamp::from),
        sunset_at: lifecycle.sunset_at.map(Timestamp::from),
        successor: lifecycle.successor.clone(),
    })
}

/// The installation's data that pages show.
fn installation(settings: &Settings) -> Installation {
    let limits: Limits = settings.sections.find().unwrap_or_default();
    let classes = limits.classes().iter().map(|class| RateClassInfo {
        name: class.name.to_string(),
        requests: class.quota.limit().get(),
        window_secs: class.quota.window_secs().get(),
        tokens: class.tokens.map(|tokens| tokens.limit().get()),
        concurrent: class.concurrent.map(NonZeroU32::get),
    });
    let credits: Option<Credits> = settings.sections.find();
    let routes = || settings.routes.iter();
    let completions = routes().find(|route| route.path.exact() == Some("/v1/chat/completions"));
    let payments = routes().filter(|route| {
        route
            .access
            .is_some_and(|access| access.any_of.has(Scope::CommerceSubscribe))
    });
    Installation {
        catalog: settings.catalog.clone(),
        credit_price: credits
            .and_then(|credits| credits.usd_per_credit)
            .map(|price| format!("1 credit costs {price} USD.")),
        classes: classes.collect(),
        completion_bytes_max: completions.map_or(0, |route| route.body_bytes_max as u64),
        payment_paths: payments.map(|route| route.path.to_string()).collect(),
        deprecations: routes().filter_map(deprecation).collect(),
    }
}
