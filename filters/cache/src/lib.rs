#![doc = include_str!("../README.md")]

mod config;
mod counters;
mod entry;
mod error;
mod filter;
mod flight;
mod key;
mod store;

pub use config::{CacheSettings, Partition, RawCache};
pub use counters::{Counters, Flight, Lookup, Removal, Storing};
pub use filter::{Cache, Parts, Totals};
pub use store::Purge;
