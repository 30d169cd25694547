#![doc = include_str!("../README.md")]

mod fields;
mod filter;
mod module;
mod signature;

pub use filter::{Mcp, McpDeps, McpServer};
pub use module::{McpModule, McpResource, McpResources};
pub use signature::SigningSecret;
