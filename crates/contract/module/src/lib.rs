#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

mod build;
mod context;
mod error;
mod filter_type;
mod module;
mod route;
mod route_change;
mod secret;
mod section;
mod services;
mod snapshot;

pub use build::{BackgroundTask, Build, BuildFilter, Built, LastWork, LeaderJob, Sweep};
pub use context::{Inputs, NoInputs, SectionContext};
pub use error::BuildError;
pub use filter_type::{FilterType, Misplaced, misplaced};
pub use module::Module;
pub use route::RouteContext;
pub use route_change::RouteChange;
pub use secret::{Named, is_variable, world_readable};
pub use section::{CheckedSection, Declarations, Section, SectionType, check_text};
pub use services::Services;
pub use snapshot::{Reload, Reloadable, Snapshot, check_reload, reload_snapshot};
pub use tollgate_service::{GATEWAY, Provided, Service, provided};
