//! What all pages work on.

use std::sync::Arc;

use tollgate_filter::{Clock, Entropy};
use tollgate_identity::oauth::AuthorizationServer;
use tollgate_identity::{Credentials, Form, Signin};
use tollgate_ledger::Ledger;
use tollgate_pages::Look;
use tollgate_purchase::TopUps;
use tollgate_purchase::checkouts::Checkouts;
use tollgate_purchase::mandates::Mandates;
use tollgate_purchase::plan::Plans;
use tollgate_store::Store;

use crate::in_process_api::InProcessApi;
use crate::installation::Installation;
use crate::pages::sandbox::SandboxTokens;
use crate::samples::Address;

/// What the portal is built from.
pub struct PortalDeps {
    /// How pages look.
    pub look: Arc<Look>,
    /// What is stored.
    pub store: Arc<dyn Store>,
    /// Balances.
    pub ledger: Ledger,
    /// One-time codes.
    pub signin: Signin,
    /// Apps, and what they were allowed.
    pub authorization: Arc<AuthorizationServer>,
    /// Whether buying is a box on the consent page that a person has to tick.
    pub buy_needs_checkbox: bool,
    /// By which ways codes can be sent.
    pub channels: Channels,
    /// People may make accounts themselves.
    pub sign_up: bool,
    /// The service's name and addresses.
    pub service: Service,
    /// What pages say about this installation.
    pub installation: Installation,
    /// The credentials in memory, which know when they were last used.
    pub credentials: Arc<Credentials>,
    /// The API, for the sandbox without a script; without it the sandbox says that it is not available.
    pub api: Option<Arc<dyn InProcessApi>>,
    /// Where credits are bought; without it they cannot be.
    pub top_ups: Option<TopUps>,
    /// Where a person agrees to pay for the plan each month; without it nobody can here.
    pub mandates: Option<Mandates>,
    /// Checkouts that programs began.
    pub checkouts: Checkouts,
    /// Where the refund policy is told, if it is.
    pub refund_url: Option<String>,
    /// What accounts have of the plan.
    pub plans: Plans,
    /// Time.
    pub clock: Clock,
    /// Randomness.
    pub entropy: Entropy,
}

/// The service's name and addresses.
#[derive(Clone, Debug)]
pub struct Service {
    /// Its own word: it gives the cookie its name.
    pub name: String,
    /// The address clients are given, without a slash at its end.
    pub base_url: String,
    /// The address of discovery, without a slash at its end.
    pub root_url: String,
}

/// By which ways codes can be sent. One that is not set up is off, and says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels {
    /// By e-mail.
    pub email: bool,
    /// By text message.
    pub phone: bool,
}

/// The deps, with what is worked out once from them.
pub(crate) struct PortalContext {
    pub(crate) deps: PortalDeps,
    /// The name of the session cookie.
    pub(crate) cookie: String,
    /// Origins that forms may come from besides the one that the request itself names.
    pub(crate) origins: Vec<String>,
    /// What examples name.
    pub(crate) address: Address,
    /// How keys look.
    pub(crate) key_form: Form,
    /// How access tokens look.
    pub(crate) token_form: Form,
    /// The tokens that sandboxes were given.
    pub(crate) sandbox: SandboxTokens,
}

impl PortalContext {
    pub(crate) fn new(deps: PortalDeps) -> PortalContext {
        let origins = [&deps.service.base_url, &deps.service.root_url];
        PortalContext {
            cookie: format!("__Host-{}-session", deps.service.name),
            origins: origins.map(|url| crate::origin::of(url)).to_vec(),
            address: Address::new(&deps.service.name, &deps.service.base_url),
            key_form: Form::api_key(&deps.service.name),
            token_form: Form::access_token(&deps.service.name),
            sandbox: SandboxTokens::default(),
            deps,
        }
    }

    /// A source of random bytes for the functions that ask for one.
    pub(crate) fn draw(&self) -> impl FnMut(&mut [u8]) + Send + use<> {
        let entropy = self.deps.entropy.clone();
        move |out| entropy.fill(out)
    }

    /// Unix microseconds.
    pub(crate) fn now(&self) -> i64 {
        self.deps.clock.unix_micros()
    }
}

impl std::ops::Deref for PortalContext {
    type Target = PortalDeps;

    fn deref(&self) -> &PortalDeps {
        &self.deps
    }
}
