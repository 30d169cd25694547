#![doc = include_str!("../README.md")]

mod authorize;
mod client_document;
mod config;
mod discovery;
mod error_pages;
mod events;
mod filter;
mod form;
#[doc(hidden)]
pub mod fuzz;
mod json;
mod module;
mod register;
mod resources;
mod revoke;
mod scopes;
mod store_errors;
mod token;

use std::sync::Arc;

use tollgate_clock::Clock;
use tollgate_counters::Counters;
use tollgate_fetch::SetupError;
use tollgate_filter::ServiceIdentity;
use tollgate_identity::oauth::AuthorizationServer;
use tollgate_pages::PageRenderer;

pub use config::{OAuthConfig, RawOAuth};
pub use discovery::Offered;
pub use filter::{OAuth, UnknownEndpoint};
pub use module::OAuthModule;

use client_document::ClientDocuments;
use discovery::Discovery;
use events::OAuthEvent;
use resources::ResourceNames;

/// Services shared by the routes of the authorization server.
pub struct Endpoints {
    server: Arc<AuthorizationServer>,
    config: OAuthConfig,
    renderer: Arc<PageRenderer>,
    /// Client metadata documents, if enabled.
    documents: Option<ClientDocuments>,
    names: ResourceNames,
    discovery: Discovery,
    events: Counters<OAuthEvent>,
    /// Path prefix of pages.
    base_path: String,
    /// `Basic realm="svc"`, for clients that try to authenticate.
    basic: http::HeaderValue,
}

impl Endpoints {
    /// Creates the endpoints.
    ///
    /// # Errors
    ///
    /// If the client for metadata documents cannot be set up.
    ///
    /// # Panics
    ///
    /// If the settings would reject the service name.
    pub fn new(
        service: &ServiceIdentity,
        config: OAuthConfig,
        server: Arc<AuthorizationServer>,
        renderer: Arc<PageRenderer>,
        offered: Offered,
        clock: Clock,
    ) -> Result<Arc<Endpoints>, SetupError> {
        let basic = format!("Basic realm=\"{}\"", service.name);
        let documents = match config.client_documents {
            true => Some(ClientDocuments::new(
                clock,
                config.server.refresh.is_some(),
            )?),
            false => None,
        };
        Ok(Arc::new(Endpoints {
            server,
            config,
            renderer,
            documents,
            names: ResourceNames::new(service),
            discovery: Discovery::new(service, &config, &offered),
            events: Counters::default(),
            base_path: discovery::path_of(&service.base_url).to_owned(),
            basic: http::HeaderValue::try_from(basic)
                .expect("the service name consists of letters and digits"),
        }))
    }
}
