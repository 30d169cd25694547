//! The module `mcp`: the relay to the server behind each MCP resource.

use std::sync::Arc;

use tollgate_clock::Clock;
use tollgate_filter::{Resource, ServiceIdentity};
use tollgate_module::{
    Build, BuildError, FilterType, Module, Reload, SectionType, Services, provided,
};
use tollgate_store::Store;

use crate::config::{McpResources, RawMcp};
use crate::{Mcp, McpDeps, McpServer, SessionKey};

/// The name of the module.
const NAME: &str = "mcp";

provided! { NAME => [McpResources]; }

/// The settings of a resource's server, in the order of `McpResource::fixed`.
macro_rules! server_keys {
    ($resource:literal) => {
        [
            concat!($resource, ".upstream"),
            concat!($resource, ".ca_file"),
            concat!($resource, ".connect_secs"),
            concat!($resource, ".first_byte_secs"),
            concat!($resource, ".idle_secs"),
            concat!($resource, ".total_secs"),
            concat!($resource, ".connections_idle_max"),
        ]
    };
}

const GENERAL: [&str; 7] = server_keys!("general");
const ANDROID: [&str; 7] = server_keys!("android");

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

    /// The secrets and the origins: the filters of all routes are built again with them. The servers are fixed.
    fn reload(&self, running: &Services, settings: &Services) -> Result<Reload, BuildError> {
        let (old, new): (McpResources, McpResources) = (running.get(NAME)?, settings.get(NAME)?);
        let general = old.general.fixed(&new.general);
        let android = old.android.fixed(&new.android);
        let fixed = GENERAL.into_iter().zip(general);
        let refused = Reload::refused(fixed.chain(ANDROID.into_iter().zip(android)));
        Ok(refused.unwrap_or_else(|| Reload::ready(|| {})))
    }
}
