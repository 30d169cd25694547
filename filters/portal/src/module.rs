//! The module `portal`: the pages for people.

use std::sync::Arc;

use tollgate_clock::{Clock, Entropy};
use tollgate_filter::{ConsentCheckbox, RefundUrl};
use tollgate_identity::Signin;
use tollgate_ledger::Ledger;
use tollgate_module::{Build, BuildError, FilterType, GATEWAY, Module, Services, provided};

use crate::installation::{Installation, NAME};
use crate::{InProcessApi, Portal, PortalDeps, PortalSettings, signup_grant};

provided! { GATEWAY => [dyn InProcessApi]; }

/// The pages for people.
pub struct PortalModule;

impl Module for PortalModule {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filters(&self) -> Vec<FilterType> {
        vec![FilterType::named("portal")]
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let portal = Portal::new(PortalDeps {
            settings: settings(build.services())?,
            service: build.get()?,
            renderer: build.get()?,
            store: build.get()?,
            ledger: build.get()?,
            signin: build.get()?,
            authorization: build.get()?,
            credentials: build.get()?,
            api: build.find(),
            top_ups: build.find(),
            mandates: build.find(),
            checkouts: build.get()?,
            plans: build.get()?,
            clock: build.get()?,
            entropy: build.get()?,
        });
        let (signin, ledger): (Signin, Ledger) = (build.get()?, build.get()?);
        let (clock, entropy): (Clock, Entropy) = (build.get()?, build.get()?);
        build.leader_job(move || {
            signup_grant::run(
                signin.clone(),
                ledger.clone(),
                clock.clone(),
                entropy.clone(),
            )
        });
        build.filter("portal", move |route| {
            Ok(Arc::new(portal.with_settings(settings(route.services)?)))
        });
        Ok(())
    }
}

/// Settings of other modules for the pages.
fn settings(services: &Services) -> Result<PortalSettings, BuildError> {
    let ConsentCheckbox(buy_needs_checkbox) = services.get(NAME)?;
    let RefundUrl(refund_url) = services.get(NAME)?;
    Ok(PortalSettings {
        buy_needs_checkbox,
        credits_step: services.get(NAME)?,
        channels: services.get(NAME)?,
        refund_url,
        installation: Installation::of(services)?,
    })
}
