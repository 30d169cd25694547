#![doc = include_str!("../README.md")]

mod bill;
mod config;
mod counters;
mod error;
mod estimate;
mod filter;
mod hit;
mod quote;

pub use config::{MeterSettings, RawEstimate, RawMeter};
pub use counters::{Counted, Counters};
pub use filter::Meter;
