//! Dependencies and derived values shared by all page handlers.

use std::sync::Arc;

use tollgate_clock::{Clock, Entropy, Timestamp};
use tollgate_filter::{CreditsStep, RateClasses, ServiceIdentity};
use tollgate_identity::oauth::AuthorizationServer;
use tollgate_identity::signin::CodeChannels;
use tollgate_identity::{Credentials, Form, Signin};
use tollgate_ledger::Ledger;
use tollgate_pages::PageRenderer;
use tollgate_purchase::checkouts::Checkouts;
use tollgate_purchase::mandates::Mandates;
use tollgate_purchase::plan::{Plans, benefits};
use tollgate_purchase::{Offer, TopUps};
use tollgate_store::Store;

use crate::drafts::Drafts;
use crate::in_process_api::InProcessApi;
use crate::installation::Installation;
use crate::public_pages::PublicPages;
use crate::samples::Address;

/// Dependencies of the portal.
#[derive(Clone)]
pub struct PortalDeps {
    pub settings: PortalSettings,
    /// Rendering of pages: brand, stylesheets, headers.
    pub renderer: Arc<PageRenderer>,
    pub store: Arc<dyn Store>,
    /// Account balances.
    pub ledger: Ledger,
    /// Sign-in with one-time codes.
    pub signin: Signin,
    /// The OAuth authorization server: connected apps and their grants.
    pub authorization: Arc<AuthorizationServer>,
    /// Name and URLs of the service.
    pub service: ServiceIdentity,
    /// The credential cache, which holds the time of last use.
    pub credentials: Arc<Credentials>,
    /// The API for the sandbox without JavaScript; `None`: the sandbox reports unavailability.
    pub api: Option<Arc<dyn InProcessApi>>,
    /// Credit purchases; `None` without a payment provider.
    pub top_ups: Option<TopUps>,
    /// Monthly mandates for the plan; `None` where the plan is not sold through PayPal.
    pub mandates: Option<Mandates>,
    /// Checkouts created through the API.
    pub checkouts: Checkouts,
    /// Subscriptions to the plan.
    pub plans: Plans,
    pub clock: Clock,
    /// The source of randomness.
    pub entropy: Entropy,
}

/// The settings of the portal.
#[derive(Clone, Debug)]
pub struct PortalSettings {
    /// Whether permission to buy is a separate checkbox on the consent page, not preselected.
    pub buy_needs_checkbox: bool,
    /// The step for an account without credits before consent.
    pub credits_step: CreditsStep,
    /// Channels through which one-time codes are sent.
    pub channels: CodeChannels,
    /// URL of the refund policy, if any.
    pub refund_url: Option<Arc<str>>,
    /// Configuration of this installation for the pages.
    pub installation: Installation,
}

/// The dependencies and values derived from them once.
pub(crate) struct PortalContext {
    pub(crate) deps: PortalDeps,
    /// Name of the session cookie.
    pub(crate) cookie: String,
    /// Name of the cookie for the mark of a browser since the first sign-in.
    pub(crate) mark_cookie: String,
    /// Origins accepted for forms, in addition to the request's own origin.
    pub(crate) origins: Vec<String>,
    /// Service name and URL used in code examples.
    pub(crate) address: Address,
    /// Format of API keys.
    pub(crate) key_form: Form,
    /// Format of access tokens.
    pub(crate) token_form: Form,
    /// Forms of browsers whose session has ended.
    pub(crate) drafts: Arc<Drafts>,
    /// Pages identical for every signed-out visitor.
    pub(crate) public_pages: PublicPages,
}

impl PortalContext {
    pub(crate) fn new(deps: PortalDeps) -> PortalContext {
        let origins = [&deps.service.base_url, &deps.service.root_url];
        PortalContext {
            cookie: format!("__Host-{}-session", deps.service.name),
            mark_cookie: format!("__Host-{}-browser", deps.service.name),
            origins: origins.map(|url| crate::origin::of(url)).to_vec(),
            address: Address::new(&deps.service.name, &deps.service.base_url),
            key_form: Form::api_key(&deps.service.name),
            token_form: Form::access_token(&deps.service.name),
            drafts: Arc::default(),
            public_pages: PublicPages::default(),
            deps,
        }
    }

    /// This context with other settings; state held for browsers is shared.
    pub(crate) fn with_settings(&self, settings: PortalSettings) -> PortalContext {
        let deps = PortalDeps {
            settings,
            ..self.deps.clone()
        };
        PortalContext {
            drafts: self.drafts.clone(),
            ..PortalContext::new(deps)
        }
    }

    /// The purchases of credits, with their prices and limits; `None` where credits are not for sale.
    pub(crate) fn credit_offer(&self) -> Option<(&TopUps, &Offer)> {
        let top_ups = self.deps.top_ups.as_ref()?;
        Some((top_ups, top_ups.offer()?))
    }

    /// The benefits of each payment for the plan, as phrases.
    pub(crate) fn plan_benefits(&self) -> Vec<String> {
        let plan = self.plans.plan();
        let classes = RateClasses(self.settings.installation.classes.clone());
        benefits(plan, classes.quota_text(&plan.class))
    }

    /// Whether credits are for sale.
    pub(crate) fn sells_credits(&self) -> bool {
        self.credit_offer().is_some()
    }

    /// A source of random bytes as a closure.
    pub(crate) fn draw(&self) -> impl FnMut(&mut [u8]) + Send + use<> {
        let entropy = self.deps.entropy.clone();
        move |out| entropy.fill(out)
    }

    /// The current time.
    pub(crate) fn now(&self) -> Timestamp {
        self.deps.clock.now()
    }
}

impl std::ops::Deref for PortalContext {
    type Target = PortalDeps;

    fn deref(&self) -> &PortalDeps {
        &self.deps
    }
}
