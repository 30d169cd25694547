#![doc = include_str!("../README.md")]

mod filter;
mod json;
mod module;
pub mod mpp;
mod problem;
mod request;
pub mod x402;

pub use filter::{Pay, PaymentProtocols, UnknownProtocol};
pub use module::PayModule;
