#![doc = include_str!("../README.md")]

mod build;
mod error;
mod module;
mod route;
mod section;
mod services;

pub use build::{BackgroundTask, Build, BuildFilter, Built, Sweep};
pub use error::BuildError;
pub use module::Module;
pub use route::RouteContext;
pub use section::{CheckedSection, Declarations, Section, SectionType};
pub use services::{GATEWAY, Provided, Service, Services};
