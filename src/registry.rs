//! The filter registry: the name of each filter in a chain of the settings, and its constructor.

use std::sync::Arc;

use secrecy::ExposeSecret;
use tollgate_auth::{AddressError, Auths};
use tollgate_cache::Cache;
use tollgate_clock::{Clock, Entropy};
use tollgate_commerce::{Commerce, CommerceServices};
use tollgate_completions::Completions;
use tollgate_filter::{Filter, Resource};
use tollgate_idempotency::Idempotency;
use tollgate_ledger::Ledger;
use tollgate_mcp::{Mcp, McpServer, SigningSecret};
use tollgate_meter::Meter;
use tollgate_models::Models;
use tollgate_oauth::{Endpoints, OAuth};
use tollgate_onboarding::{Documents, Onboarding};
use tollgate_pay::{Pay, PaymentProtocols};
use tollgate_portal::Portal;
use tollgate_rate_limit::RateLimits;

use crate::config::{Route, Settings};

/// The inputs of a filter's constructor. A filter is built once for each route that names it.
pub struct Context<'a> {
    /// All settings, checked.
    pub settings: &'a Settings,
    /// The route whose chain contains it.
    pub route: &'a Route,
    /// Time.
    pub clock: &'a Clock,
    /// Randomness.
    pub entropy: &'a Entropy,
    /// The state that the built-in filters share.
    pub(crate) services: &'a Services,
}

/// Why a filter could not be built for a route.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct BuildError {
    message: String,
}

impl BuildError {
    /// An error with a message for the operator: the mistake and its remedy.
    pub fn new(message: impl Into<String>) -> BuildError {
        BuildError {
            message: message.into(),
        }
    }
}

/// Builds a filter for a route.
pub type Build = Box<dyn Fn(&Context<'_>) -> Result<Arc<dyn Filter>, BuildError> + Send + Sync>;

/// The state that the built-in filters share.
pub(crate) struct Services {
    pub(crate) ledger: Ledger,
    pub(crate) auths: Auths,
    pub(crate) rate_limits: RateLimits,
    pub(crate) idempotency: Arc<Idempotency>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) portal: Arc<Portal>,
    pub(crate) documents: Arc<Documents>,
    pub(crate) oauth: Arc<Endpoints>,
    pub(crate) payment_protocols: Arc<PaymentProtocols>,
    pub(crate) commerce: Arc<CommerceServices>,
}

/// Filters by their names in chains.
pub(crate) struct Registry {
    list: Vec<(&'static str, Build)>,
}

impl Registry {
    /// The built-in filters.
    pub(crate) fn standard() -> Registry {
        let mut registry = Registry { list: Vec::new() };
        registry.add("address-limit", |context| {
            Ok(Arc::new(context.services.rate_limits.address_limit()))
        });
        registry.add("auth", auth);
        registry.add("rate-limit", |context| {
            let filter = context
                .services
                .rate_limits
                .rate_limit(context.route.class.as_deref());
            Ok(Arc::new(
                filter.map_err(|error| BuildError::new(error.to_string()))?,
            ))
        });
        registry.add("completions", |context| {
            let settings = context.settings;
            let bytes_max = context.route.body_bytes_max;
            let filter = Completions::new(&settings.service.name, &settings.catalog, bytes_max);
            Ok(Arc::new(filter))
        });
        registry.add("idempotency", |context| {
            Ok(context.services.idempotency.clone())
        });
        registry.add("meter", |context| Ok(context.services.meter.clone()));
        registry.add("cache", |context| Ok(context.services.cache.clone()));
        registry.add("mcp", mcp);
        registry.add("models", |context| {
            let settings = context.settings;
            let rate = settings.credits.usd_per_credit;
            let ledger = context.services.ledger.clone();
            Ok(Arc::new(Models::new(
                &settings.service.name,
                &settings.catalog,
                rate,
                ledger,
            )))
        });
        registry.add("pay", |context| {
            let filter = Pay::new(
                &context.services.payment_protocols,
                context.route.path.as_str(),
            );
            Ok(Arc::new(
                filter.map_err(|error| BuildError::new(error.to_string()))?,
            ))
        });
        registry.add("commerce", |context| {
            let filter = Commerce::new(&context.services.commerce, context.route.path.as_str());
            Ok(Arc::new(
                filter.map_err(|error| BuildError::new(error.to_string()))?,
            ))
        });
        registry.add("portal", |context| Ok(context.services.portal.clone()));
        registry.add("oauth", |context| {
            let filter = OAuth::new(&context.services.oauth, context.route.path.as_str());
            Ok(Arc::new(
                filter.map_err(|error| BuildError::new(error.to_string()))?,
            ))
        });
        registry.add("onboarding", |context| {
            let filter = Onboarding::new(&context.services.documents, context.route.path.as_str());
            Ok(Arc::new(
                filter.map_err(|error| BuildError::new(error.to_string()))?,
            ))
        });
        registry
    }

    /// Adds a filter, in place of an earlier one of the same name.
    pub(crate) fn add(
        &mut self,
        name: &'static str,
        build: impl Fn(&Context<'_>) -> Result<Arc<dyn Filter>, BuildError> + Send + Sync + 'static,
    ) {
        self.list.retain(|(known, _)| *known != name);
        self.list.push((name, Box::new(build)));
    }

    /// The names that chains may use.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.list.iter().map(|(name, _)| *name).collect()
    }

    /// Builds a filter.
    pub(crate) fn build(
        &self,
        name: &str,
        context: &Context<'_>,
    ) -> Result<Arc<dyn Filter>, BuildError> {
        match self.list.iter().find(|(known, _)| *known == name) {
            Some((_, build)) => build(context),
            None => {
                let names = self.names().join("`, `");
                Err(BuildError::new(format!(
                    "there is no filter `{name}`; use one of `{names}`"
                )))
            }
        }
    }
}

fn auth(context: &Context<'_>) -> Result<Arc<dyn Filter>, BuildError> {
    let Some(access) = context.route.access else {
        return Err(BuildError::new(
            "`auth` requires a scope; give the route a `scope` or `scopes_any`",
        ));
    };
    let auths = &context.services.auths;
    let address_error = |error: AddressError| BuildError::new(error.to_string());
    let route = context.route;
    let sells = route.chain.iter().any(|name| **name == *"pay");
    Ok(
        match sells && Pay::shares_authorization(route.path.as_str()) {
            true => Arc::new(auths.beside_payment(access).map_err(address_error)?),
            false => Arc::new(auths.auth(access).map_err(address_error)?),
        },
    )
}

fn mcp(context: &Context<'_>) -> Result<Arc<dyn Filter>, BuildError> {
    let mcp = &context.settings.mcp;
    let resource = match context.route.access.map(|access| access.resource) {
        Some(Resource::Mcp) => &mcp.general,
        Some(Resource::McpAndroid) => &mcp.android,
        Some(Resource::Api) | None => {
            return Err(BuildError::new(
                "`mcp` needs a resource; give the route `auth` and a scope of an MCP resource, such as `mcp:android`",
            ));
        }
    };
    let secret = resource.signing_secret.as_ref();
    Ok(Arc::new(Mcp::new(tollgate_mcp::McpDeps {
        service: &context.settings.service.name,
        server: resource.upstream.as_ref().map(|upstream| McpServer {
            name: upstream.name.clone(),
            path: upstream.path.clone(),
            secret: secret.map(|secret| SigningSecret::new(secret.expose_secret())),
        }),
        origins: resource.origins.clone(),
        clock: context.clock.clone(),
    })))
}
