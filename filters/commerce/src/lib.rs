#![doc = include_str!("../README.md")]

mod config;
mod counters;
mod discovery;
mod filter;
mod notices;
mod product;
mod ucp;

pub use config::{ProfileFetch, RawUcp, UcpSettings};
pub use counters::{Counters, Counts};
pub use filter::{Commerce, Parts, Shop, UnknownPlace};
pub use notices::PayPal;
