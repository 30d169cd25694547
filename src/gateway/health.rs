//! Health of the gateway at the admin address: `/live`, `/ready` and `/providers`.

use std::sync::Arc;
use std::time::Duration;

use tollgate_store::Store;

use super::conditions::Conditions;
use crate::admin::{self, JsonSource, Readiness, Ready, Workers};
use crate::config::{Durability, Settings};
use crate::proxy::{HealthChecks, Liveness, Proxy};

/// Time limit for a worker's answer. A running worker answers within microseconds. A thread blocked for a second answers no client.
const PROBE: Duration = Duration::from_secs(1);

/// The content of `/providers`.
pub(super) fn providers(proxy: &Arc<Proxy>) -> JsonSource {
    let proxy = proxy.clone();
    Arc::new(move || serde_json::json!(proxy.generation().providers.view()))
}

/// The check behind `/live`.
pub(super) fn liveness(proxy: &Arc<Proxy>, liveness: Liveness) -> admin::Liveness {
    let proxy = proxy.clone();
    Box::new(move || {
        let (proxy, liveness) = (proxy.clone(), liveness.clone());
        Box::pin(async move {
            let mut workers = Workers {
                all: liveness.workers(),
                unresponsive: liveness.unresponsive(PROBE).await,
            };
            // After a stop every worker has ended, and no worker is stuck.
            if proxy.is_stopped() {
                workers.unresponsive.clear();
            }
            workers
        })
    })
}

/// The checks of the listeners with `health`.
pub(super) fn for_listeners(liveness: Liveness, readiness: Readiness) -> HealthChecks {
    HealthChecks {
        is_live: Box::new(move || {
            let liveness = liveness.clone();
            Box::pin(async move { liveness.unresponsive(PROBE).await.is_empty() })
        }),
        is_ready: Box::new(move || readiness().reasons.is_empty()),
    }
}

/// The content of `/ready`.
pub(super) fn readiness(
    settings: &Settings,
    proxy: &Arc<Proxy>,
    store: &Arc<dyn Store>,
    conditions: Arc<Conditions>,
) -> Readiness {
    // The proxy owns this closure, for the listeners.
    let (proxy, store) = (Arc::downgrade(proxy), store.clone());
    let only_process = settings.store.durability == Durability::Process;
    Box::new(move || {
        let mut ready = Ready::default();
        let Some(proxy) = proxy.upgrade() else {
            ready.reasons.push("stopped".into());
            return ready;
        };
        if proxy.is_leaving() {
            ready
                .reasons
                .push("draining: open requests finish, send new ones elsewhere".into());
        }
        if let Some(failure) = store.failure() {
            ready
                .reasons
                .push(format!("the store has stopped: {}", failure.message));
        }
        let found = conditions.check();
        ready.reasons.extend(found.reasons);
        ready.warnings.extend(found.warnings);
        ready
            .warnings
            .extend(proxy.generation().providers.failing());
        if only_process {
            let warning = "`store.durability` is `process`: a power failure may lose charges";
            ready.warnings.push(warning.into());
        }
        ready
    })
}
