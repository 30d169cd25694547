//! Construction of the authorization server (OAuth) from the settings.

use std::sync::Arc;

use tollgate_clock::{Clock, Entropy};
use tollgate_fetch::SetupError;
use tollgate_identity::oauth::{AuthorizationServer, AuthorizationServerDeps};
use tollgate_oauth::Endpoints;
use tollgate_pages::PageRenderer;
use tollgate_store::Store;

use crate::config::Settings;

/// The authorization server: which client may act for which account.
pub(crate) fn authorization(
    settings: &Settings,
    store: &Arc<dyn Store>,
    clock: &Clock,
    entropy: &Entropy,
) -> Arc<AuthorizationServer> {
    let entropy = entropy.clone();
    Arc::new(AuthorizationServer::new(AuthorizationServerDeps {
        store: store.clone(),
        service: &settings.service.name,
        issuer: settings.service.base_url.as_str().into(),
        settings: settings.oauth.server,
        clock: clock.clone(),
        draw: Box::new(move |out| entropy.fill(out)),
    }))
}

/// The endpoints of the authorization server.
pub(crate) fn endpoints(
    settings: &Settings,
    authorization: &Arc<AuthorizationServer>,
    renderer: &Arc<PageRenderer>,
    clock: &Clock,
) -> Result<Arc<Endpoints>, SetupError> {
    Endpoints::new(
        &settings.service.identity(),
        settings.oauth,
        authorization.clone(),
        renderer.clone(),
        clock.clone(),
    )
}
