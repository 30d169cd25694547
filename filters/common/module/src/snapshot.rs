//! Settings in force, as one value that a reload replaces as a whole: reading it costs one atomic load.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use tollgate_service::{Provided, Service};

use crate::error::BuildError;
use crate::services::Services;

/// The settings of a running module. Cheap to clone; all clones see a replacement. A decision that has loaded the settings keeps them; the next one of the same request may see others.
#[derive(Debug)]
pub struct Snapshot<T>(Arc<ArcSwap<T>>);

impl<T> Snapshot<T> {
    /// The settings in force.
    pub fn load(&self) -> Guard<Arc<T>> {
        self.0.load()
    }

    /// Puts other settings in force.
    pub fn replace(&self, settings: T) {
        self.0.store(Arc::new(settings));
    }
}

impl<T> Clone for Snapshot<T> {
    fn clone(&self) -> Snapshot<T> {
        Snapshot(self.0.clone())
    }
}

impl<T> From<T> for Snapshot<T> {
    fn from(settings: T) -> Snapshot<T> {
        Snapshot(Arc::new(ArcSwap::from_pointee(settings)))
    }
}

impl<T: Provided> Service for Snapshot<T> {
    const PROVIDER: &'static str = T::PROVIDER;
}

/// What became of the new settings of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// They are in force for the next request.
    InForce,
    /// One of those that changed is fixed at the start: all earlier settings of the module stay in force until a restart.
    NeedsRestart,
}

/// The reload of a module whose settings are a [`Snapshot`] among the running services. `fits` compares the settings in force with the new
/// ones: `false` where one that changed is fixed at the start.
///
/// # Errors
///
/// The module was not built, or its section was not read.
pub fn reload_snapshot<T: Provided + Clone>(
    module: &str,
    (running, settings): (&Services, &Services),
    fits: impl FnOnce(&T, &T) -> bool,
) -> Result<Reload, BuildError> {
    let snapshot: Snapshot<T> = running.get(module)?;
    let new: T = settings.get(module)?;
    if !fits(&snapshot.load(), &new) {
        return Ok(Reload::NeedsRestart);
    }
    snapshot.replace(new);
    Ok(Reload::InForce)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provided;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Hours {
        opens: u32,
        /// Fixed at the start.
        rooms: u32,
    }

    provided! { "hours" => [Hours]; }

    #[test]
    fn new_settings_are_in_force_unless_one_is_fixed() {
        let snapshot = Snapshot::from(Hours { opens: 8, rooms: 1 });
        let mut running = Services::default();
        running.provide(snapshot.clone());
        let reload = |new: Hours| {
            let mut settings = Services::default();
            settings.provide(new);
            let fits = |old: &Hours, new: &Hours| old.rooms == new.rooms;
            reload_snapshot("hours", (&running, &settings), fits).expect("both are there")
        };
        assert_eq!(reload(Hours { opens: 9, rooms: 1 }), Reload::InForce);
        assert_eq!(snapshot.load().opens, 9);
        assert_eq!(reload(Hours { opens: 7, rooms: 2 }), Reload::NeedsRestart);
        assert_eq!(**snapshot.load(), Hours { opens: 9, rooms: 1 });
    }

    #[test]
    fn a_module_that_was_not_built_cannot_be_reloaded() {
        let mut settings = Services::default();
        settings.provide(Hours { opens: 8, rooms: 1 });
        let none = Services::default();
        let error = reload_snapshot("hours", (&none, &settings), |_: &Hours, _| true);
        assert!(
            error
                .expect_err("no snapshot")
                .to_string()
                .contains("hours")
        );
    }
}
