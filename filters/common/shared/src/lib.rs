#![doc = include_str!("../README.md")]

mod backoff;
mod client;
pub mod config;
mod connection;
mod module;
mod ping;
mod script;
mod supervisor;

pub use client::{Shared, Unavailable};
pub use config::{RawShared, SharedSettings};
pub use module::SharedModule;
pub use ping::{PingError, ping};
pub use script::Script;
