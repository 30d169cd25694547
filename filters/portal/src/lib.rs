#![doc = include_str!("../README.md")]

mod amounts;
mod context;
mod cookie;
mod credential_names;
mod drafts;
mod filter;
mod form;
#[doc(hidden)]
pub mod fuzz;
mod in_process_api;
mod installation;
mod module;
mod origin;
mod page_error;
mod page_request;
mod pages;
mod path_pattern;
mod public_pages;
mod return_path;
mod routes;
mod samples;
mod signup_grant;
mod statement;
mod usage;

pub use context::{PortalDeps, PortalSettings};
pub use filter::Portal;
pub use in_process_api::{InProcessApi, InProcessFuture, InProcessRequest, InProcessResponse};
pub use installation::{DeprecationInfo, Installation};
pub use module::PortalModule;
