//! The services that a module reads, and the parts that a module adds, while the gateway is built.

use std::any::{TypeId, type_name};
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tollgate_counters::Source;
use tollgate_filter::Filter;
use tollgate_service::Service;

use crate::error::BuildError;
use crate::module::Module;
use crate::route::RouteContext;
use crate::services::Services;

/// Builds a filter for a route.
pub type BuildFilter =
    Box<dyn Fn(&RouteContext<'_>) -> Result<Arc<dyn Filter>, BuildError> + Send + Sync>;

/// A short periodic call, such as the removal of expired entries. Must not block.
pub type Sweep = Box<dyn Fn() + Send + Sync>;

/// A future that runs from the start of the gateway until its stop.
pub type BackgroundTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Makes the future of a leader job: work that one node does for all nodes, such as the delivery of messages. The future is dropped when
/// another node takes over the job, and made again when the job comes back. For some seconds after a jump of the database's clock two nodes
/// may run the job: the job's effects must be idempotent.
pub type LeaderJob = Box<dyn Fn() -> BackgroundTask + Send>;

/// Makes the future that a graceful stop waits for.
pub type LastWork = Box<dyn Fn() -> BackgroundTask + Send + Sync>;

/// The services and parts of the modules built so far.
#[derive(Default)]
pub struct Built {
    /// The services.
    pub services: Services,
    /// The filters, by their names in chains.
    pub filters: Vec<(&'static str, BuildFilter)>,
    /// Services that a module looked for and did not find, with the module's name.
    missed: HashMap<TypeId, &'static str>,
    /// The sources of metrics.
    pub metrics: Vec<Source>,
    /// Short calls to make every ten seconds.
    pub sweeps: Vec<Sweep>,
    /// Futures to run once the gateway serves.
    pub tasks: Vec<BackgroundTask>,
    /// Futures to run while the node is the leader of the cluster.
    pub leader_jobs: Vec<LeaderJob>,
    /// Futures to wait for at a graceful stop.
    pub last_work: Vec<LastWork>,
}

impl Built {
    /// Builds a module.
    ///
    /// # Errors
    ///
    /// The module could not be built, or did not add a filter that it names.
    pub fn module(&mut self, module: &dyn Module) -> Result<(), BuildError> {
        let mut build = Build {
            module: module.name(),
            added: Vec::new(),
            misplaced: None,
            built: self,
        };
        module.build(&mut build)?;
        let (added, misplaced) = (build.added, build.misplaced);
        if let Some(error) = misplaced {
            return Err(error);
        }
        let mut filters = module.filters().into_iter();
        match filters.find(|filter| !added.contains(&filter.name())) {
            None => Ok(()),
            Some(filter) => Err(BuildError::new(format!(
                "module `{}` names the filter `{}` and does not add it; add it in `build`",
                module.name(),
                filter.name()
            ))),
        }
    }
}
/// The context in which a module is built.
pub struct Build<'a> {
    module: &'static str,
    /// The names of the filters added by the module.
    added: Vec<&'static str>,
    /// A service that an earlier module has looked for in vain.
    misplaced: Option<BuildError>,
    built: &'a mut Built,
}

impl Build<'_> {
    /// The service of a type.
    ///
    /// # Errors
    ///
    /// No earlier module has provided the service.
    pub fn get<T: Service>(&self) -> Result<T, BuildError> {
        self.built.services.get(self.module)
    }

    /// The services so far, for a part that is built from several services.
    pub fn services(&self) -> &Services {
        &self.built.services
    }

    /// The service of a type; `None` for a service outside of this gateway. After `None` a later module cannot provide the service.
    pub fn find<T: Service>(&mut self) -> Option<T> {
        let found = self.built.services.find();
        if found.is_none() {
            self.built.missed.insert(TypeId::of::<T>(), self.module);
        }
        found
    }

    /// Adds a service for later modules. An error if an earlier module has looked for the service and worked without the service.
    pub fn provide<T: Service>(&mut self, service: T) {
        if let Some(earlier) = self.built.missed.get(&TypeId::of::<T>()) {
            self.misplaced = Some(BuildError::new(format!(
                "module `{}` provides `{}`, which module `{earlier}` before it has looked for; register it before that one",
                self.module,
                type_name::<T>()
            )));
        }
        self.built.services.provide(service);
    }

    /// Adds a filter that chains can name. Replaces an earlier filter of the name.
    pub fn filter(
        &mut self,
        name: &'static str,
        build: impl Fn(&RouteContext<'_>) -> Result<Arc<dyn Filter>, BuildError> + Send + Sync + 'static,
    ) {
        self.added.push(name);
        self.built.filters.retain(|(known, _)| *known != name);
        self.built.filters.push((name, Box::new(build)));
    }

    /// Adds a filter that is shared by all routes.
    pub fn shared_filter(&mut self, name: &'static str, filter: Arc<dyn Filter>) {
        self.filter(name, move |_| Ok(filter.clone()));
    }

    /// Adds a source of metrics.
    pub fn metrics(&mut self, source: Source) {
        self.built.metrics.push(source);
    }

    /// Adds a short call to make every ten seconds. The call must not block.
    pub fn sweep(&mut self, sweep: impl Fn() + Send + Sync + 'static) {
        self.built.sweeps.push(Box::new(sweep));
    }

    /// Adds a future to run from the start of serving until the gateway's stop.
    pub fn background(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.built.tasks.push(Box::pin(task));
    }

    /// Adds a leader job: a future to run on a single node of a cluster at a time, and on a lone node until its stop.
    pub fn leader_job<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        task: impl Fn() -> F + Send + 'static,
    ) {
        self.built
            .leader_jobs
            .push(Box::new(move || Box::pin(task())));
    }

    /// Adds a future that a graceful stop waits for, within its grace period. The future ends running work and begins nothing.
    pub fn before_stop<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        work: impl Fn() -> F + Send + Sync + 'static,
    ) {
        self.built
            .last_work
            .push(Box::new(move || Box::pin(work())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FilterType, provided};

    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Discount(u32);

    provided! { "discount" => [Discount]; }

    /// Works with and without the discount.
    struct PricedModule;

    /// Provides the discount.
    struct DiscountModule;

    /// Names a filter that the module does not add.
    struct Careless;

    impl Module for PricedModule {
        fn name(&self) -> &'static str {
            "priced"
        }

        fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
            let _: Option<Discount> = build.find();
            Ok(())
        }
    }

    impl Module for DiscountModule {
        fn name(&self) -> &'static str {
            "discount"
        }

        fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
            build.provide(Discount(5));
            Ok(())
        }
    }

    impl Module for Careless {
        fn name(&self) -> &'static str {
            "careless"
        }

        fn filters(&self) -> Vec<FilterType> {
            vec![FilterType::named("auth")]
        }

        fn build(&self, _: &mut Build<'_>) -> Result<(), BuildError> {
            Ok(())
        }
    }

    #[test]
    fn a_service_that_comes_after_the_module_that_looks_for_it_is_an_error() {
        let mut built = Built::default();
        built.module(&DiscountModule).expect("the right order");
        built.module(&PricedModule).expect("the right order");
        let mut built = Built::default();
        built
            .module(&PricedModule)
            .expect("it works without a discount");
        let error = built.module(&DiscountModule).expect_err("too late");
        let message = error.to_string();
        assert!(
            message.starts_with("module `discount` provides"),
            "{message}"
        );
        assert!(message.contains("module `priced` before it"), "{message}");
    }

    #[test]
    fn a_filter_that_is_named_and_not_added_is_an_error() {
        let error = Built::default().module(&Careless).expect_err("no filter");
        assert_eq!(
            error.to_string(),
            "module `careless` names the filter `auth` and does not add it; add it in `build`"
        );
    }
}
