//! The module `completions`: the filter for each completion route.

use std::sync::Arc;

use tollgate_filter::{Catalog, ServiceIdentity};
use tollgate_module::{Build, BuildError, FilterType, Module};

use crate::Completions;

/// Completions, chat and text.
pub struct CompletionsModule;

impl Module for CompletionsModule {
    fn name(&self) -> &'static str {
        "completions"
    }

    fn filters(&self) -> Vec<FilterType> {
        vec![FilterType::named("completions").needs(&["auth"])]
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let service: ServiceIdentity = build.get()?;
        build.filter("completions", move |route| {
            // The catalog of the settings for which the route is built.
            let catalog: Arc<Catalog> = route.services.get("completions")?;
            Ok(Arc::new(Completions::new(
                &service.name,
                &catalog,
                route.body_bytes_max,
            )))
        });
        Ok(())
    }
}
