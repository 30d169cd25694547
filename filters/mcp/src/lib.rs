#![doc = include_str!("../README.md")]

mod config;
mod fields;
mod filter;
pub mod fuzz;
mod module;
mod probe;
mod session;
mod signature;

pub use config::{McpResource, McpResources, RawMcp, RawMcpResource};
pub use filter::{Mcp, McpDeps, McpServer};
pub use module::McpModule;
pub use probe::probe_fields;
pub use session::SessionKey;
pub use signature::SigningSecret;
