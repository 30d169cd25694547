#![doc = include_str!("../README.md")]

mod counters;
mod filter;

pub use counters::{Counters, Counts};
pub use filter::{Commerce, PayPal};
