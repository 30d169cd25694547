#![doc = include_str!("../README.md")]

mod config;
mod counters;
mod entry;
mod error;
mod filter;
mod flat;
mod flight;
mod index;
mod key;
mod probation;
mod sample;
mod shelf;

pub use config::{CacheSettings, Partition, RawCache};
pub use counters::{Counters, Flight, Lookup, Removal, Storing};
pub use filter::{Cache, Parts, Totals};
pub use shelf::Purge;
