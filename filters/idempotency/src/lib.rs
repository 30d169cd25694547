#![doc = include_str!("../README.md")]

mod claim;
mod config;
mod counters;
mod error;
mod filter;
mod key;
mod module;
mod recording;

pub use config::IdempotencySettings;
pub use counters::KeyEvent;
pub use filter::Idempotency;
pub use module::IdempotencyModule;
