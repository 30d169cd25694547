//! Services: values that one module provides and others use, found by their type.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use tollgate_clock::{Clock, Entropy};
use tollgate_filter::settings::CallTimeouts;
use tollgate_filter::{
    Catalog, HitPrice, HoldLifetime, PaymentPaths, RateClassNames, ServiceIdentity, UncachedModels,
};
use tollgate_identity::oauth::AuthorizationServer;
use tollgate_identity::{Credentials, Signin};
use tollgate_ledger::Ledger;
use tollgate_pages::{Brand, PageRenderer};
use tollgate_paypal as paypal;
use tollgate_purchase::checkouts::Checkouts;
use tollgate_purchase::idempotency::IdempotencyKeys;
use tollgate_purchase::mandates::Mandates;
use tollgate_purchase::plan::{Plan, Plans};
use tollgate_purchase::{Credits, PurchaseTasks, TopUps};
use tollgate_store::Store;

use crate::error::BuildError;

/// A type that one module provides: itself where it can be cloned, or in an `Arc`.
pub trait Provided: Send + Sync + 'static {
    /// The name of the module that provides it.
    const PROVIDER: &'static str;
}

/// A value that one module provides and others use: a [`Provided`] type, or an `Arc` or an `Option` of one. Cheap to clone.
pub trait Service: Clone + Send + Sync + 'static {
    /// The name of the module that provides it.
    const PROVIDER: &'static str;
}

impl<T: Provided + Clone> Service for T {
    const PROVIDER: &'static str = T::PROVIDER;
}

impl<T: Provided + ?Sized> Service for Arc<T> {
    const PROVIDER: &'static str = T::PROVIDER;
}

/// A value that may be absent although its provider is there, such as the settings of a section that is not written.
impl<T: Provided + Clone> Service for Option<T> {
    const PROVIDER: &'static str = T::PROVIDER;
}

/// The name of the gateway, which provides settings and shared state before any module is built.
pub const GATEWAY: &str = "gateway";

/// Declares the provider of types, as `"module" => [Type, ...];`.
#[macro_export]
macro_rules! provided {
    ($($provider:expr => [$($service:ty),+ $(,)?];)+) => {
        $($(impl $crate::Provided for $service {
            const PROVIDER: &'static str = $provider;
        })+)+
    };
}

provided! {
    GATEWAY => [
        Clock, Entropy, dyn Store, Ledger, Credentials, PurchaseTasks, ServiceIdentity, Catalog, PageRenderer, CallTimeouts, UncachedModels,
    ];
    "purchase" => [Credits, Plan, Plans, IdempotencyKeys, TopUps, Mandates, Checkouts, paypal::Client];
    "signin" => [Signin];
    "rate-limit" => [RateClassNames];
    "cache" => [HitPrice];
    "meter" => [HoldLifetime];
    "oauth" => [AuthorizationServer];
    "portal" => [Brand];
    "pay" => [PaymentPaths];
}

/// The services built so far.
#[derive(Clone, Default)]
pub struct Services {
    by_type: HashMap<TypeId, (&'static str, Arc<dyn Any + Send + Sync>)>,
}

impl Services {
    /// Adds a service, in place of an earlier one of its type.
    pub fn provide<T: Service>(&mut self, service: T) {
        self.by_type
            .insert(TypeId::of::<T>(), (type_name::<T>(), Arc::new(service)));
    }

    /// The service of a type, if it was provided.
    pub fn find<T: Service>(&self) -> Option<T> {
        let (_, service) = self.by_type.get(&TypeId::of::<T>())?;
        service.downcast_ref::<T>().cloned()
    }

    /// The service of a type.
    ///
    /// # Errors
    ///
    /// It was not provided. `needed_by` is the name of the module that needs it.
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
