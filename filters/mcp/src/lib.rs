#![doc = include_str!("../README.md")]

mod fields;
mod filter;
mod signature;

pub use filter::{Mcp, McpDeps, McpServer};
pub use signature::SigningSecret;
