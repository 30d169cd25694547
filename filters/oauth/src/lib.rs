#![doc = include_str!("../README.md")]

mod authorize;
mod client_document;
mod config;
mod discovery;
mod error_pages;
mod filter;
mod form;
mod json;
mod register;
mod resources;
mod revoke;
mod scopes;
mod store_errors;
mod token;

use std::sync::Arc;

use tollgate_fetch::SetupError;
use tollgate_filter::{Clock, Resource};
use tollgate_identity::oauth::AuthorizationServer;
use tollgate_pages::PageRenderer;

pub use config::{OAuthConfig, RawOAuth};
pub use filter::{OAuth, UnknownEndpoint};

use client_document::ClientDocuments;
use discovery::Discovery;
use resources::ResourceNames;

/// What the service is called, and where it is.
#[derive(Clone, Debug)]
pub struct Service {
    /// The short word.
    pub name: String,
    /// The address that clients are given, and the issuer; without a slash at its end.
    pub base_url: String,
    /// The address of discovery, likewise.
    pub root_url: String,
}

impl Service {
    /// The canonical name of a resource (RFC 8707).
    pub fn name_of(&self, resource: Resource) -> String {
        format!("{}{}", self.base_url, resource.path())
    }
}

/// What all routes of the authorization server share.
pub struct Endpoints {
    server: Arc<AuthorizationServer>,
    config: OAuthConfig,
    renderer: Arc<PageRenderer>,
    /// Documents about clients, where they may name themselves by one.
    documents: Option<ClientDocuments>,
    names: ResourceNames,
    discovery: Discovery,
    /// The path before the addresses of pages.
    base_path: String,
    /// `Basic realm="svc"`, for clients that try to authenticate.
    basic: http::HeaderValue,
}

impl Endpoints {
    /// The endpoints of a server.
    ///
    /// # Errors
    ///
    /// When documents about clients cannot be made ready to be fetched.
    ///
    /// # Panics
    ///
    /// When the service's word is none that the settings let pass.
    pub fn new(
        service: &Service,
        config: OAuthConfig,
        server: Arc<AuthorizationServer>,
        renderer: Arc<PageRenderer>,
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
            discovery: Discovery::new(service, &config),
            base_path: discovery::path_of(&service.base_url).to_owned(),
            basic: http::HeaderValue::try_from(basic).expect("a word of letters and digits"),
        }))
    }
}
