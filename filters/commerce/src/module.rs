//! The module `commerce`: product, UCP profile, checkout sessions and PayPal webhooks.

use std::sync::Arc;

use tollgate_clock::Entropy;
use tollgate_counters::{Metric, metrics};
use tollgate_filter::ServiceIdentity;
use tollgate_module::{
    Build, BuildError, FilterType, Module, Reload, Reloadable, SectionType, Services, Snapshot,
    provided, reload_snapshot,
};
use tollgate_pages::Brand;
use tollgate_purchase::checkouts::{CheckoutDeps, Checkouts};
use tollgate_purchase::mandates::Mandates;
use tollgate_purchase::plan::Plan;

use crate::config::RawUcp;
use crate::{Commerce, CommerceDeps, CommerceServices, PayPal, UcpSettings};

provided! { "commerce" => [UcpSettings]; }

metrics! {
    PAYMENT_NOTICES = "tollgate_payment_notices_total", Counter, ["result"],
        "Notices of a payment provider: stored, known already, refused for their signature, or undecided and sent again.";
}

/// Commerce platforms and payment notifications.
pub struct CommerceModule;

impl Reloadable for UcpSettings {
    /// Other parts have copied the lifetime of a session and a link, and the client for profiles is set up once.
    fn fixed(&self, new: &UcpSettings) -> Vec<(&'static str, bool)> {
        vec![
            ("session_secs", self.session != new.session),
            ("profile_fetch", self.profile_fetch != new.profile_fetch),
            ("refund_url", self.refund_url != new.refund_url),
        ]
    }
}

impl Module for CommerceModule {
    fn name(&self) -> &'static str {
        "commerce"
    }

    fn filters(&self) -> Vec<FilterType> {
        vec![FilterType::named("commerce").after(&["auth"])]
    }

    fn sections(&self) -> Vec<SectionType> {
        vec![SectionType::of::<RawUcp>()]
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let (service, brand): (ServiceIdentity, Brand) = (build.get()?, build.get()?);
        let plan: Plan = build.get()?;
        let (ucp, entropy): (UcpSettings, Entropy) = (build.get()?, build.get()?);
        let mandates: Option<Mandates> = build.find();
        let checkouts = Checkouts::new(CheckoutDeps {
            store: build.get()?,
            plans: build.get()?,
            mandates: mandates.clone(),
            lifetime: ucp.session,
            clock: build.get()?,
            draw: Box::new(move |out| entropy.fill(out)),
        });
        let swept = checkouts.clone();
        build.sweep(move || swept.forget());
        build.provide(checkouts.clone());
        let paypal = match (build.find(), build.find(), mandates) {
            (Some(client), Some(top_ups), Some(mandates)) => Some(PayPal {
                client,
                top_ups,
                mandates,
            }),
            _ => None,
        };
        let in_force = Snapshot::from(ucp);
        build.provide(in_force.clone());
        let services = CommerceServices::new(CommerceDeps {
            base_url: &service.base_url,
            plan: &plan,
            product: build.get()?,
            protocols: build.get()?,
            ucp: in_force.clone(),
            checkouts,
            idempotency: build.get()?,
            clock: build.get()?,
            terms_url: brand.terms_url,
            privacy_url: brand.privacy_url,
            paypal,
        })
        .map_err(|error| {
            BuildError::caused_by("cannot set up `ucp.profile_fetch`; set it to `never`, or check the system's certificates", error)
        })?;
        let counters = services.counters();
        build.metrics(Box::new(move |samples| {
            samples.numbers(PAYMENT_NOTICES, counters.values());
        }));
        build.filter("commerce", move |route| {
            let filter = Commerce::new(&services, route.path);
            Ok(Arc::new(filter.map_err(BuildError::of)?))
        });
        Ok(())
    }

    fn reload(&self, running: &Services, settings: &Services) -> Result<Reload, BuildError> {
        reload_snapshot::<UcpSettings>(self.name(), (running, settings))
    }
}

#[cfg(test)]
mod tests {
    use tollgate_module::check_reload;

    use super::*;

    #[test]
    fn a_reload_changes_what_is_not_fixed_at_the_start() {
        let fixed = [
            "session_secs = 900",
            "profile_fetch = 'always'",
            "refund_url = 'https://svc.example/refunds'",
        ];
        check_reload::<RawUcp>(
            &CommerceModule,
            &fixed,
            "agent_required = false\ntls13_required = false\nprofile_hosts = ['platform.example']\nprofile_loopback = true",
        );
    }
}
