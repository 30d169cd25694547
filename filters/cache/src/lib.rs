#![doc = include_str!("../README.md")]

mod config;
mod counters;
mod entry;
mod error;
mod filter;
pub mod fuzz;
mod key;
mod module;
mod purge;
mod record;
mod shared_entries;
mod store;

pub use config::{CacheSettings, Partition, RawCache};
pub use counters::{CacheCounters, Following, Lookup, Removal, SharedResult, Storing};
pub use filter::{Cache, CacheDeps, Totals};
pub use module::CacheModule;
pub use purge::Purge;
