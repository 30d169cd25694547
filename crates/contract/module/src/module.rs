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
    /// The module's name in diagnostics.
    fn name(&self) -> &'static str;

    /// The filters added by the module, with their order constraints, for the check of the settings.
    fn filters(&self) -> Vec<FilterType> {
        Vec::new()
    }

    /// The sections of the settings file that the module reads.
    fn sections(&self) -> Vec<SectionType> {
        Vec::new()
    }

    /// The metrics added by the module, for the reference.
    fn metrics(&self) -> &'static [Metric] {
        &[]
    }

    /// Adds the module's services, filters, metrics and tasks to the gateway that is being built. Called once.
    ///
    /// # Errors
    ///
    /// A missing service, or settings that cannot be applied.
    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError>;

    /// Prepares new settings while the gateway runs, and changes nothing. `running` are the services of the running gateway; `settings` are
    /// the running services with the sections of the new file. A module keeps changeable settings behind a [`Snapshot`](crate::Snapshot),
    /// or reads the settings at the build of a filter, as the filters of all routes are built again. The default: every setting is fixed at
    /// the start.
    ///
    /// # Errors
    ///
    /// The module was not built, its section was not read, or the new settings cannot be applied.
    fn reload(&self, running: &Services, settings: &Services) -> Result<Reload, BuildError> {
        let _ = (running, settings);
        Ok(Reload::Fixed)
    }
}
