//! The module `mcp`: the relay to the server behind each MCP resource.

use std::sync::Arc;

use tollgate_clock::Clock;
use tollgate_filter::{Resource, ServiceIdentity};
use tollgate_module::{Build, BuildError, FilterType, GATEWAY, Module, provided};
use tollgate_store::Store;

use crate::{Mcp, McpDeps, McpServer, SessionKey};

provided! { GATEWAY => [McpResources]; }

/// The servers and settings of the MCP resources.
#[derive(Clone, Debug, Default)]
pub struct McpResources {
    /// The general resource.
    pub general: McpResource,
    /// The Android resource.
    pub android: McpResource,
}

/// The server and settings of one MCP resource.
#[derive(Clone, Debug, Default)]
pub struct McpResource {
    /// Its server; `None` while the resource is not offered.
    pub server: Option<McpServer>,
    /// The origins whose pages may call, as browsers write them; `None` for every one.
    pub origins: Option<Vec<String>>,
}

/// The MCP relay.
pub struct McpModule;

impl Module for McpModule {
    fn name(&self) -> &'static str {
        "mcp"
    }

    fn filters(&self) -> Vec<FilterType> {
        vec![FilterType::named("mcp").needs(&["auth"])]
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let (service, clock): (ServiceIdentity, Clock) = (build.get()?, build.get()?);
        let resources: McpResources = build.get()?;
        let store: Arc<dyn Store> = build.get()?;
        let sessions = SessionKey::derive(&store.root_secret().0);
        build.filter("mcp", move |route| {
            let resource = match route.access.map(|access| access.resource) {
                Some(Resource::Mcp) => &resources.general,
                Some(Resource::McpAndroid) => &resources.android,
                Some(Resource::Api) | None => {
                    return Err(BuildError::new(
                        "`mcp` needs a resource; give the route `auth` and a scope of an MCP resource, such as `mcp:android`",
                    ));
                }
            };
            Ok(Arc::new(Mcp::new(McpDeps {
                service: &service.name,
                server: resource.server.clone(),
                origins: resource.origins.clone(),
                sessions: sessions.clone(),
                clock: clock.clone(),
            })))
        });
        Ok(())
    }
}
