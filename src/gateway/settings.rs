//! The settings as services: each module finds its own section by type.

use std::sync::Arc;

use secrecy::ExposeSecret;
use tollgate_filter::MemoryLimit;
use tollgate_mcp::{McpResources, McpServer, SigningSecret};
use tollgate_module::{GATEWAY, Services, provided};

use super::{installation, portal};
use crate::config::{McpResource, Settings};

provided! { GATEWAY => [Settings]; }

/// Provides all settings, and those of each module.
pub(super) fn provide(settings: &Arc<Settings>, services: &mut Services) {
    services.provide(settings.clone());
    services.provide(settings.service.identity());
    services.provide(settings.catalog.clone());
    services.provide(MemoryLimit(settings.server.memory.bytes_max));
    services.provide(settings.brand.clone());
    if let Some(installation) = installation(settings) {
        services.provide(installation);
    }
    services.provide(portal::settings(settings));
    settings.sections.provide(services);
    services.provide(McpResources {
        general: resource(&settings.mcp.general),
        android: resource(&settings.mcp.android),
    });
}

fn resource(resource: &McpResource) -> tollgate_mcp::McpResource {
    let secret = resource.signing_secret.as_ref();
    tollgate_mcp::McpResource {
        server: resource.upstream.as_ref().map(|upstream| McpServer {
            name: upstream.name.clone(),
            path: upstream.path.clone(),
            secret: secret.map(|secret| SigningSecret::new(secret.expose_secret())),
        }),
        origins: resource.origins.clone(),
    }
}
