//! The module `mcp`: the relay to the server behind each MCP resource.

use std::sync::Arc;

use tollgate_clock::Clock;
use tollgate_filter::{Resource, ServiceIdentity};
use tollgate_module::{
    Build, BuildError, FilterType, Module, Reload, SectionType, Services, provided,
};
use tollgate_store::Store;

use crate::config::{McpResource, McpResources, RawMcp};
use crate::{Mcp, McpDeps, McpServer, SessionKey};

/// The name of the module.
const NAME: &str = "mcp";

provided! { NAME => [McpResources]; }

/// The MCP relay.
pub struct McpModule;

impl Module for McpModule {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filters(&self) -> Vec<FilterType> {
        vec![FilterType::named("mcp").needs(&["auth"])]
    }

    fn sections(&self) -> Vec<SectionType> {
        vec![SectionType::of::<RawMcp>()]
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let (service, clock): (ServiceIdentity, Clock) = (build.get()?, build.get()?);
        let store: Arc<dyn Store> = build.get()?;
        let sessions = SessionKey::derive(&store.root_secret().0);
        build.filter("mcp", move |route| {
            let resources: McpResources = route.services.get(NAME)?;
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
                server: resource.upstream.as_ref().map(|upstream| McpServer {
                    name: upstream.name.clone(),
                    path: upstream.path.clone(),
                    secret: resource.secret.clone(),
                }),
                origins: resource.origins.clone(),
                sessions: sessions.clone(),
                clock: clock.clone(),
            })))
        });
        Ok(())
    }

    /// The filters of every route are built again with the new secrets and origins, and the proxy has the new servers. Whether a resource
    /// has a server is fixed, because documents list the offered resources.
    fn reload(&self, running: &Services, settings: &Services) -> Result<Reload, BuildError> {
        let (old, new): (McpResources, McpResources) = (running.get(NAME)?, settings.get(NAME)?);
        let is_switched =
            |old: &McpResource, new: &McpResource| old.upstream.is_some() != new.upstream.is_some();
        let refused = Reload::refused([
            ("general.upstream", is_switched(&old.general, &new.general)),
            ("android.upstream", is_switched(&old.android, &new.android)),
        ]);
        Ok(refused.unwrap_or_else(|| Reload::ready(|| {})))
    }
}
