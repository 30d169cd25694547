#![doc = include_str!("../README.md")]

mod filter;
mod listing;
mod usd;

pub use filter::Models;
pub use usd::UsdPerCredit;
