#![doc = include_str!("../README.md")]

mod fields;
mod filter;
mod module;
mod session;
mod signature;

pub use filter::{Mcp, McpDeps, McpServer};
pub use module::{McpModule, McpResource, McpResources};
pub use session::SessionKey;
pub use signature::SigningSecret;
