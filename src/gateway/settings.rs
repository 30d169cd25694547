//! The settings as services: each module finds its section by type.

use std::sync::Arc;

use tollgate_filter::MemoryLimit;
use tollgate_module::{GATEWAY, Services, provided};

use super::routes::route_list;
use crate::config::Settings;

provided! { GATEWAY => [Settings]; }

/// The services that exist before any module is built: the whole settings, and the settings of each module.
pub(crate) fn services(settings: &Arc<Settings>) -> Services {
    let mut services = Services::default();
    services.provide(settings.clone());
    services.provide(settings.service.identity());
    services.provide(settings.catalog.clone());
    services.provide(MemoryLimit(settings.server.memory.bytes_max));
    services.provide(route_list(&settings.routes));
    settings.sections.provide(&mut services);
    services
}
