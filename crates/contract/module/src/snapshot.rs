//! Settings in force, as a single value that a reload replaces as a whole: a read costs one atomic load.

use std::fmt;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use tollgate_service::{Provided, Service};

use crate::error::BuildError;
use crate::module::Module;
use crate::section::{Section, check_text};
use crate::services::Services;

/// The settings of a running module. Cheap to clone; all clones see a replacement. A decision keeps the settings that it has loaded; the
/// request's next decision may see other settings.
#[derive(Debug)]
pub struct Snapshot<T>(Arc<ArcSwap<T>>);

impl<T> Snapshot<T> {
    /// The settings in force.
    pub fn load(&self) -> Guard<Arc<T>> {
        self.0.load()
    }

    /// The settings in force, for longer than one step: across a wait.
    pub fn load_full(&self) -> Arc<T> {
        self.0.load_full()
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

/// Prepared new settings of a module. Nothing has changed yet: the settings of all modules take effect together or not at all.
#[must_use]
pub enum Reload {
    /// Puts the settings in force for the next request. Cannot fail.
    Ready(Box<dyn FnOnce() + Send>),
    /// The differing keys that are fixed at the start: keys of the module's first section, or keys prefixed with the name of a section of
    /// the module.
    NeedsRestart(Vec<&'static str>),
    /// All settings of the module are fixed at the start.
    Fixed,
}

impl Reload {
    /// New settings that `apply` puts in force.
    pub fn ready(apply: impl FnOnce() + Send + 'static) -> Reload {
        Reload::Ready(Box::new(apply))
    }

    /// The refusal of the differing keys; `None` where no key differs.
    pub fn refused(fixed: impl IntoIterator<Item = (&'static str, bool)>) -> Option<Reload> {
        let differing = fixed.into_iter().filter(|(_, differs)| *differs);
        let keys: Vec<_> = differing.map(|(key, _)| key).collect();
        (!keys.is_empty()).then_some(Reload::NeedsRestart(keys))
    }

    /// Puts the settings in force by themselves.
    ///
    /// # Errors
    ///
    /// The keys that need a restart; empty where every key needs a restart.
    pub fn apply(self) -> Result<(), Vec<&'static str>> {
        match self {
            Reload::Ready(apply) => {
                apply();
                Ok(())
            }
            Reload::NeedsRestart(keys) => Err(keys),
            Reload::Fixed => Err(Vec::new()),
        }
    }
}

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reload::Ready(_) => f.write_str("Ready"),
            Reload::NeedsRestart(keys) => f.debug_tuple("NeedsRestart").field(keys).finish(),
            Reload::Fixed => f.write_str("Fixed"),
        }
    }
}

/// The settings of a module in a [`Snapshot`]. Some settings may be fixed at the start.
pub trait Reloadable: Provided + Clone {
    /// The keys of the section that are fixed at the start, with whether their value differs in `new`.
    fn fixed(&self, new: &Self) -> Vec<(&'static str, bool)>;
}

/// The reload of a module whose settings are a [`Snapshot`] among the running services.
///
/// # Errors
///
/// The module was not built, or its section was not read.
pub fn reload_snapshot<T: Reloadable>(
    module: &str,
    (running, settings): (&Services, &Services),
) -> Result<Reload, BuildError> {
    let snapshot: Snapshot<T> = running.get(module)?;
    let new: T = settings.get(module)?;
    let refused = Reload::refused(snapshot.load().fixed(&new));
    Ok(refused.unwrap_or_else(|| Reload::ready(move || snapshot.replace(new))))
}

/// Reloads a module, for its tests. Every text of `fixed`, a line with one key, is refused with the key and changes nothing; `free` is in
/// force afterwards.
///
/// # Panics
///
/// The module decides otherwise, or a text has problems.
pub fn check_reload<S>(module: &dyn Module, fixed: &[&str], free: &str)
where
    S: Section,
    S::Settings: Reloadable + PartialEq,
{
    let settings = |text: &str| check_text::<S>(text, &Services::default()).expect("good settings");
    let snapshot = Snapshot::from(settings(""));
    let mut running = Services::default();
    running.provide(snapshot.clone());
    let reload = |text: &str| {
        let mut new = Services::default();
        new.provide(settings(text));
        let reload = module.reload(&running, &new);
        reload.expect("the section was read").apply()
    };
    for line in fixed {
        let key = line.split(" =").next().unwrap_or(line);
        let refused = reload(line).expect_err("it is fixed at the start");
        assert_eq!(refused, [key], "{line}");
    }
    assert!(**snapshot.load() == settings(""), "nothing has changed");
    assert_eq!(reload(free), Ok(()), "{free}");
    assert!(**snapshot.load() == settings(free), "{free}");
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

    impl Reloadable for Hours {
        fn fixed(&self, new: &Hours) -> Vec<(&'static str, bool)> {
            vec![("rooms", self.rooms != new.rooms)]
        }
    }

    #[test]
    fn new_settings_are_in_force_unless_one_is_fixed() {
        let snapshot = Snapshot::from(Hours { opens: 8, rooms: 1 });
        let mut running = Services::default();
        running.provide(snapshot.clone());
        let reload = |new: Hours| {
            let mut settings = Services::default();
            settings.provide(new);
            reload_snapshot::<Hours>("hours", (&running, &settings)).expect("both are there")
        };
        let prepared = reload(Hours { opens: 9, rooms: 1 });
        assert_eq!(snapshot.load().opens, 8, "nothing changes before the call");
        assert_eq!(prepared.apply(), Ok(()));
        assert_eq!(snapshot.load().opens, 9);
        assert_eq!(
            reload(Hours { opens: 7, rooms: 2 }).apply(),
            Err(vec!["rooms"])
        );
        assert_eq!(**snapshot.load(), Hours { opens: 9, rooms: 1 });
    }

    #[test]
    fn a_module_that_was_not_built_cannot_be_reloaded() {
        let mut settings = Services::default();
        settings.provide(Hours { opens: 8, rooms: 1 });
        let none = Services::default();
        let error = reload_snapshot::<Hours>("hours", (&none, &settings));
        let error = error.expect_err("no snapshot").to_string();
        assert!(error.contains("hours"), "{error}");
    }
}
