//! The services built so far, found by their types.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use tollgate_service::Service;

use crate::error::BuildError;

/// The services built so far.
#[derive(Clone, Default)]
pub struct Services {
    by_type: HashMap<TypeId, (&'static str, Arc<dyn Any + Send + Sync>)>,
}

impl Services {
    /// Adds a service, in place of an earlier service of its type.
    pub fn provide<T: Service>(&mut self, service: T) {
        self.by_type
            .insert(TypeId::of::<T>(), (type_name::<T>(), Arc::new(service)));
    }

    /// Adds the services of `others`, in place of services of their types.
    pub fn extend(&mut self, others: &Services) {
        let others = others.by_type.iter();
        self.by_type
            .extend(others.map(|(id, service)| (*id, service.clone())));
    }

    /// The service of a type, if provided.
    pub fn find<T: Service>(&self) -> Option<T> {
        let (_, service) = self.by_type.get(&TypeId::of::<T>())?;
        service.downcast_ref::<T>().cloned()
    }

    /// The service of a type.
    ///
    /// # Errors
    ///
    /// The service was not provided. `needed_by` is the name of the module that needs the service.
    pub fn get<T: Service>(&self, needed_by: &str) -> Result<T, BuildError> {
        self.find().ok_or_else(|| {
            if T::PROVIDER == needed_by {
                return BuildError::new(format!(
                    "module `{needed_by}` has no `{}`: its section was not read; load the settings with the declarations of the same builder",
                    type_name::<T>()
                ));
            }
            BuildError::new(format!(
                "module `{needed_by}` needs `{}`, which module `{}` provides; register that module before it",
                type_name::<T>(),
                T::PROVIDER
            ))
        })
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<&str> = self.by_type.values().map(|(name, _)| *name).collect();
        names.sort_unstable();
        f.debug_set().entries(names).finish()
    }
}

#[cfg(test)]
mod tests {
    use tollgate_service::Provided;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Quotas(u32);

    impl Provided for Quotas {
        const PROVIDER: &'static str = "quotas";
    }

    #[test]
    fn a_service_is_found_by_its_type() {
        let mut services = Services::default();
        assert_eq!(services.find::<Quotas>(), None);
        services.provide(Quotas(1));
        services.provide(Quotas(2));
        assert_eq!(services.find(), Some(Quotas(2)), "the last one counts");
    }

    #[test]
    fn a_missing_service_names_both_modules() {
        let error = Services::default().get::<Quotas>("limits");
        let message = error.expect_err("nothing was provided").to_string();
        let module = module_path!();
        assert_eq!(
            message,
            format!(
                "module `limits` needs `{module}::Quotas`, which module `quotas` provides; register that module before it"
            )
        );
    }
}
