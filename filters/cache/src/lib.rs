#![doc = include_str!("../README.md")]

mod config;
mod counters;
mod entry;
mod error;
mod filter;
mod key;
mod module;
mod single_flight;
mod store;

pub use config::{CacheSettings, Partition, RawCache};
pub use counters::{CacheCounters, Following, Lookup, Removal, Storing};
pub use filter::{Cache, CacheDeps, Totals};
pub use module::CacheModule;
pub use store::Purge;
