#![doc = include_str!("../README.md")]

mod abandoned;
mod bill;
mod config;
mod counters;
mod error;
mod estimate;
mod filter;
mod hit;
mod module;
mod placing;
mod quote;

pub use config::{MeterSettings, RawEstimate, RawMeter};
pub use counters::{MeterCounters, MeterEvent};
pub use filter::Meter;
pub use module::MeterModule;
