//! The module `models`: the list of models for sale, and each of them.

use std::sync::Arc;

use tollgate_filter::{Catalog, ServiceIdentity};
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
        let catalog: Arc<Catalog> = build.get()?;
        let credits: Credits = build.get()?;
        let models = Models::new(
            &service.name,
            &catalog,
            credits.usd_per_credit,
            build.get()?,
        );
        build.filter("models", move |route| {
            Ok(Arc::new(models.on_route(route.path)))
        });
        Ok(())
    }
}
