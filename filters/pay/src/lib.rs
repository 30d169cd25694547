#![doc = include_str!("../README.md")]

mod filter;
mod json;
pub mod mpp;
pub mod x402;

pub use filter::{Desks, Pay, UnknownWay};
