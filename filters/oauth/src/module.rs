//! The module `oauth`: the authorization server and its endpoints.

use std::sync::Arc;

use tollgate_clock::{Clock, Entropy};
use tollgate_counters::{Metric, metrics};
use tollgate_filter::{OfferedResources, Scope, Scopes, ServiceIdentity};
use tollgate_identity::oauth::{AuthorizationServer, AuthorizationServerDeps};
use tollgate_module::{Build, BuildError, FilterType, Module, SectionType, provided};
use tollgate_purchase::plan::PlanProtocols;

use crate::config::RawOAuth;
use crate::{Endpoints, OAuth, OAuthConfig, Offered};

provided! { "oauth" => [OAuthConfig]; }

metrics! {
    OAUTH_EVENTS = "tollgate_oauth_total", Counter, ["event"],
        "The authorization server: clients registered, codes exchanged, tokens refreshed, grants refused, and revocations.";
}

/// The authorization server.
pub struct OAuthModule;

impl Module for OAuthModule {
    fn name(&self) -> &'static str {
        "oauth"
    }

    fn filters(&self) -> Vec<FilterType> {
        vec![FilterType::named("oauth")]
    }

    fn sections(&self) -> Vec<SectionType> {
        vec![SectionType::of::<RawOAuth>()]
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let (clock, entropy): (Clock, Entropy) = (build.get()?, build.get()?);
        let (service, config): (ServiceIdentity, OAuthConfig) = (build.get()?, build.get()?);
        let server = Arc::new(AuthorizationServer::new(AuthorizationServerDeps {
            store: build.get()?,
            service: &service.name,
            issuer: service.base_url.as_str().into(),
            settings: config.server,
            clock: clock.clone(),
            draw: Box::new(move |out| entropy.fill(out)),
        }));
        let swept = server.clone();
        build.sweep(move || swept.forget());
        build.provide(server.clone());
        let OfferedResources(resources) = build.get()?;
        let unsold = unsold(build.find());
        let offered = Offered { resources, unsold };
        let endpoints = Endpoints::new(&service, config, server, build.get()?, offered, clock).map_err(|error| {
            BuildError::caused_by("cannot set up `oauth.client_documents`; set it to `false`, or check the system's certificates", error)
        })?;
        let counted = endpoints.clone();
        build.metrics(Box::new(move |samples| {
            samples.numbers(OAUTH_EVENTS, counted.events.values());
        }));
        build.filter("oauth", move |route| {
            let filter = OAuth::new(&endpoints, route.path);
            Ok(Arc::new(filter.map_err(BuildError::of)?))
        });
        Ok(())
    }
}

/// The scopes with which an app could buy products not on sale here. A gateway without purchases has no product on sale.
fn unsold(protocols: Option<PlanProtocols>) -> Scopes {
    match protocols {
        Some(protocols) if protocols.paypal => Scopes::NONE,
        // Checkouts are paid by PayPal.
        Some(protocols) if protocols.is_any() => Scopes::NONE.with(Scope::CheckoutManage),
        _ => Scopes::BUYING,
    }
}
