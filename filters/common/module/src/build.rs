//! What a module reads from and adds to while the gateway is built.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tollgate_counters::Source;
use tollgate_filter::Filter;

use crate::{BuildError, RouteContext, Service, Services};

/// Builds a filter for a route.
pub type BuildFilter =
    Box<dyn Fn(&RouteContext<'_>) -> Result<Arc<dyn Filter>, BuildError> + Send + Sync>;

/// A short periodic call, such as the removal of expired entries. It must not block.
pub type Sweep = Box<dyn Fn() + Send>;

/// A future that runs from the start of the gateway until it stops.
pub type BackgroundTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The services and parts of all modules built so far.
#[derive(Default)]
pub struct Built {
    /// The services.
    pub services: Services,
    /// The filters, by their names in chains.
    pub filters: Vec<(&'static str, BuildFilter)>,
    /// The sources of metrics.
    pub metrics: Vec<Source>,
    /// Short calls to make every ten seconds.
    pub sweeps: Vec<Sweep>,
    /// Futures to run once the gateway serves.
    pub tasks: Vec<BackgroundTask>,
}

impl Built {
    /// The context in which a module is built.
    pub fn context<'a>(&'a mut self, module: &'static str) -> Build<'a> {
        Build {
            module,
            built: self,
        }
    }
}

/// The context in which a module is built.
pub struct Build<'a> {
    module: &'static str,
    built: &'a mut Built,
}

impl Build<'_> {
    /// The service of a type.
    ///
    /// # Errors
    ///
    /// No module before this one has provided it.
    pub fn get<T: Service>(&self) -> Result<T, BuildError> {
        self.built.services.get(self.module)
    }

    /// The service of a type; `None` where it is not part of this gateway.
    pub fn find<T: Service>(&self) -> Option<T> {
        self.built.services.find()
    }

    /// Adds a service for the modules after this one.
    pub fn provide<T: Service>(&mut self, service: T) {
        self.built.services.provide(service);
    }

    /// Adds a filter that chains can name, in place of an earlier one of the same name.
    pub fn filter(
        &mut self,
        name: &'static str,
        build: impl Fn(&RouteContext<'_>) -> Result<Arc<dyn Filter>, BuildError> + Send + Sync + 'static,
    ) {
        self.built.filters.retain(|(known, _)| *known != name);
        self.built.filters.push((name, Box::new(build)));
    }

    /// Adds a filter that is the same for all routes.
    pub fn shared_filter(&mut self, name: &'static str, filter: Arc<dyn Filter>) {
        self.filter(name, move |_| Ok(filter.clone()));
    }

    /// Adds a source of metrics.
    pub fn metrics(&mut self, source: Source) {
        self.built.metrics.push(source);
    }

    /// Adds a short call to make every ten seconds. It must not block.
    pub fn sweep(&mut self, sweep: impl Fn() + Send + 'static) {
        self.built.sweeps.push(Box::new(sweep));
    }

    /// Adds a future to run once the gateway serves, until it stops.
    pub fn background(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.built.tasks.push(Box::pin(task));
    }
}
