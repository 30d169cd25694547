#![doc = include_str!("../README.md")]

mod client;
pub mod config;
mod connection;
mod module;
mod probe;
mod script;
mod supervisor;

pub use client::{Shared, Unavailable};
pub use config::{RawShared, SharedSettings};
pub use module::SharedModule;
pub use probe::{ProbeError, probe};
pub use script::Script;
