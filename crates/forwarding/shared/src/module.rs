//! The module `shared`: the shared server, where the settings name one.

use tollgate_counters::{Metric, metrics};
use tollgate_module::{Build, BuildError, Module, Reload, SectionType, Services, provided};

use crate::client::Shared;
use crate::config::{RawShared, SharedSettings};

/// The name of the module.
const NAME: &str = "shared";

provided! { NAME => [SharedSettings, Shared]; }

metrics! {
    REACHABLE = "tollgate_shared_reachable", Gauge, [],
        "1 while the shared server (`[shared]`) answers, 0 while each node uses its share of the limits, and without one.";
    NODES = "tollgate_shared_nodes", Gauge, [],
        "Live nodes at the shared server, as last counted, at least 1; 0 without one.";
    CALLS = "tollgate_shared_calls_total", Counter, ["result"],
        "Calls to the shared server by result: `ok`, `timeout` (no answer within 20 ms), `failed`.";
}

/// State that several gateways share.
pub struct SharedModule;

impl Module for SharedModule {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sections(&self) -> Vec<SectionType> {
        vec![SectionType::of::<RawShared>()]
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let settings: Option<SharedSettings> = build.get()?;
        let Some(settings) = settings else {
            build.metrics(Box::new(|samples| {
                samples.number(REACHABLE, 0);
                samples.number(NODES, 0);
            }));
            return Ok(());
        };
        let shared = Shared::new(settings, build.get()?).map_err(BuildError::of)?;
        let measured = shared.clone();
        build.metrics(Box::new(move |samples| {
            samples.number(REACHABLE, i32::from(measured.is_reachable()));
            samples.number(NODES, measured.nodes());
            samples.numbers(CALLS, measured.state.results.values());
        }));
        build.background(shared.clone().run());
        build.provide(shared);
        Ok(())
    }

    /// The user and the password: the next connection uses both, and the open connection stays. The server is fixed.
    fn reload(&self, running: &Services, settings: &Services) -> Result<Reload, BuildError> {
        let (old, new): (Option<SharedSettings>, Option<SharedSettings>) =
            (running.get(NAME)?, settings.get(NAME)?);
        let shared: Option<Shared> = running.find();
        let is_switched = old.is_some() != new.is_some();
        let (Some(old), Some(new), Some(shared)) = (old, new, shared) else {
            return Ok(match is_switched {
                true => Reload::NeedsRestart(vec!["url"]),
                false => Reload::ready(|| {}),
            });
        };
        let address = |one: &SharedSettings| (one.tls, one.host.clone(), one.port, one.database);
        let refused = Reload::refused([
            ("url", address(&old) != address(&new)),
            ("ca_file", old.roots != new.roots),
        ]);
        Ok(refused
            .unwrap_or_else(|| Reload::ready(move || shared.state.connector.replace_login(&new))))
    }
}
