//! Maintenance of the providers: name resolution, health probes, and the catalog of available models.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::probe;
use super::providers::Providers;

/// How often the catalog is updated with the available models.
const CATALOG_INTERVAL: Duration = Duration::from_secs(1);

impl Providers {
    /// Resolves names again, probes providers, and updates the catalog with the available models, until dropped.
    pub(crate) async fn run_maintenance(self: Arc<Self>) {
        let mut tasks = JoinSet::new();
        for provider in &self.list {
            let resolved = provider.clone();
            tasks.spawn(async move { resolved.endpoint.refresh_addresses().await });
            if let Some(probe) = &provider.settings.health.probe {
                let (all, provider) = (self.clone(), provider.clone());
                tasks.spawn(probe::run(all, provider, probe.clone()));
            }
        }
        loop {
            self.update_catalog();
            tokio::time::sleep(CATALOG_INTERVAL).await;
        }
    }
}
