#![doc = include_str!("../README.md")]

mod claim;
mod config;
mod counters;
mod error;
mod filter;
mod key;
mod recording;

pub use config::{IdempotencySettings, RawIdempotency};
pub use counters::KeyEvent;
pub use filter::Idempotency;
