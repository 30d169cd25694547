//! The trait of a part of the gateway that builds itself.

use tollgate_counters::Metric;

use crate::build::Build;
use crate::error::BuildError;
use crate::filter_type::FilterType;
use crate::section::SectionType;
use crate::services::Services;
use crate::snapshot::Reload;

/// A part of the gateway that builds itself.
pub trait Module: Send + Sync {
    /// Its name in diagnostics.
    fn name(&self) -> &'static str;

    /// The filters that it adds, with their order constraints, for the check of the settings.
    fn filters(&self) -> Vec<FilterType> {
        Vec::new()
    }

    /// The sections of the settings file that it reads.
    fn sections(&self) -> Vec<SectionType> {
        Vec::new()
    }

    /// The metrics that it adds, for the reference.
    fn metrics(&self) -> &'static [Metric] {
        &[]
    }

    /// Adds its services, filters, metrics and tasks to the gateway that is being built. Called once.
    ///
    /// # Errors
    ///
    /// A missing service, or settings that cannot be served.
    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError>;

    /// Prepares new settings while the gateway runs, and changes nothing. `running` are the services of the running gateway, `settings` the
    /// same with the sections of the new file. A module keeps what may change behind a [`Snapshot`](crate::Snapshot), or reads it where a
    /// filter is built, as the filters of all routes are built again. The default: every setting is fixed at the start.
    ///
    /// # Errors
    ///
    /// The module was not built, its section was not read, or the new settings cannot be served.
    fn reload(&self, running: &Services, settings: &Services) -> Result<Reload, BuildError> {
        let _ = (running, settings);
        Ok(Reload::Fixed)
    }
}
