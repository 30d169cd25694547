//! The module `models`: the list of models for sale, and the description of a model.

use std::sync::Arc;

use tollgate_filter::{Catalog, ServiceIdentity};
use tollgate_ledger::Ledger;
use tollgate_module::{Build, BuildError, FilterType, Module};
use tollgate_purchase::Credits;

use crate::Models;

/// The list of models for sale.
pub struct ModelsModule;

impl Module for ModelsModule {
    fn name(&self) -> &'static str {
        "models"
    }

    fn filters(&self) -> Vec<FilterType> {
        vec![FilterType::named("models").needs(&["auth"])]
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let service: ServiceIdentity = build.get()?;
        let ledger: Ledger = build.get()?;
        build.filter("models", move |route| {
            // The catalog and credits of the settings for which the route is built.
            let catalog: Arc<Catalog> = route.services.get("models")?;
            let credits: Credits = route.services.get("models")?;
            let rate = credits.usd_per_credit;
            let models = Models::new(&service.name, &catalog, rate, ledger.clone());
            Ok(Arc::new(models.on_route(route.path)))
        });
        Ok(())
    }
}
