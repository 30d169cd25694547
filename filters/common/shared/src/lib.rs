#![doc = include_str!("../README.md")]

mod backoff;
mod client;
pub mod config;
mod connection;
mod module;
mod script;
mod supervisor;

pub use client::{Shared, Unavailable};
pub use config::{RawShared, SharedSettings};
pub use module::SharedModule;
pub use script::Script;
