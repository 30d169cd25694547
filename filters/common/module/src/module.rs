//! The trait of a part of the gateway that builds itself.

use tollgate_counters::Metric;

use crate::build::Build;
use crate::error::BuildError;
use crate::section::SectionType;

/// A part of the gateway that builds itself.
pub trait Module: Send + Sync {
    /// Its name in diagnostics.
    fn name(&self) -> &'static str;

    /// The names of the filters that it adds, for the check of the settings.
    fn filters(&self) -> &[&'static str] {
        &[]
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
}
