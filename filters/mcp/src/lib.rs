#![doc = include_str!("../README.md")]

mod fields;
mod filter;
mod signature;

pub use filter::{Behind, Mcp, Parts};
pub use signature::SigningSecret;
