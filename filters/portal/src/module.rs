//! The module `portal`: the pages for people.

use std::sync::Arc;

use tollgate_module::{Build, BuildError, FilterType, GATEWAY, Module, provided};

use crate::{InProcessApi, Portal, PortalDeps, PortalSettings, signup_grant};

provided! { GATEWAY => [PortalSettings, dyn InProcessApi]; }

/// The pages for people.
pub struct PortalModule;

impl Module for PortalModule {
    fn name(&self) -> &'static str {
        "portal"
    }

    fn filters(&self) -> Vec<FilterType> {
        vec![FilterType::named("portal")]
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let portal = Portal::new(PortalDeps {
            settings: build.get()?,
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
        build.background(signup_grant::run(
            build.get()?,
            build.get()?,
            build.get()?,
            build.get()?,
        ));
        build.shared_filter("portal", Arc::new(portal));
        Ok(())
    }
}
