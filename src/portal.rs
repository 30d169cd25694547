//! Construction of the portal's pages from the settings.

use std::num::NonZeroU32;
use std::sync::Arc;

use tollgate_clock::{Clock, Entropy, Timestamp};
use tollgate_filter::Scope;
use tollgate_identity::oauth::AuthorizationServer;
use tollgate_identity::{Credentials, Signin};
use tollgate_ledger::Ledger;
use tollgate_pages::PageRenderer;
use tollgate_portal::{Channels, DeprecationInfo, Installation, Portal, RateClassInfo};
use tollgate_purchase::TopUps;
use tollgate_purchase::checkouts::Checkouts;
use tollgate_purchase::mandates::Mandates;
use tollgate_purchase::plan::Plans;
use tollgate_store::Store;

use crate::config::{Route, Settings};
use crate::proxy::InProcessClient;

/// The services that the pages read and change.
pub(crate) struct Deps<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) renderer: &'a Arc<PageRenderer>,
    pub(crate) signin: &'a Signin,
    pub(crate) authorization: &'a Arc<AuthorizationServer>,
    pub(crate) store: &'a Arc<dyn Store>,
    pub(crate) ledger: &'a Ledger,
    pub(crate) credentials: &'a Arc<Credentials>,
    pub(crate) api: &'a Arc<InProcessClient>,
    pub(crate) top_ups: Option<&'a TopUps>,
    pub(crate) mandates: Option<&'a Mandates>,
    pub(crate) checkouts: &'a Checkouts,
    pub(crate) plans: &'a Plans,
    pub(crate) clock: &'a Clock,
    pub(crate) entropy: &'a Entropy,
}

/// The pages of a gateway.
pub(crate) fn portal(deps: &Deps<'_>) -> Portal {
    let settings = deps.settings;
    let service = &settings.service;
    Portal::new(tollgate_portal::PortalDeps {
        renderer: deps.renderer.clone(),
        authorization: deps.authorization.clone(),
        buy_needs_checkbox: settings.oauth.tick_to_buy,
        signin: deps.signin.clone(),
        store: deps.store.clone(),
        ledger: deps.ledger.clone(),
        channels: Channels {
            email: settings.signin.mail.is_some(),
            phone: settings.signin.sms.is_some(),
        },
        sign_up: settings.signin.sign_up,
        service: service.identity(),
        installation: installation(settings),
        credentials: deps.credentials.clone(),
        api: Some(deps.api.clone()),
        top_ups: deps.top_ups.cloned(),
        mandates: deps.mandates.cloned(),
        checkouts: deps.checkouts.clone(),
        refund_url: settings.ucp.refund_url.clone(),
        plans: deps.plans.clone(),
        clock: deps.clock.clone(),
        entropy: deps.entropy.clone(),
    })
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
    let classes = settings.limits.classes().iter().map(|class| RateClassInfo {
        name: class.name.to_string(),
        requests: class.quota.limit().get(),
        window_secs: class.quota.window_secs().get(),
        tokens: class.tokens.map(|tokens| tokens.limit().get()),
        concurrent: class.concurrent.map(NonZeroU32::get),
    });
    let routes = || settings.routes.iter();
    let completions = routes().find(|route| route.path.exact() == Some("/v1/chat/completions"));
    let payments = routes().filter(|route| {
        route
            .access
            .is_some_and(|access| access.any_of.has(Scope::CommerceSubscribe))
    });
    Installation {
        catalog: settings.catalog.clone(),
        credit_price: settings
            .credits
            .usd_per_credit
            .map(|price| format!("1 credit costs {price} USD.")),
        classes: classes.collect(),
        completion_bytes_max: completions.map_or(0, |route| route.body_bytes_max as u64),
        payment_paths: payments.map(|route| route.path.to_string()).collect(),
        deprecations: routes().filter_map(deprecation).collect(),
    }
}
