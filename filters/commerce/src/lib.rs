#![doc = include_str!("../README.md")]
// The layout of a checkout's future is computed through every awaited future.
#![recursion_limit = "256"]

mod config;
mod counters;
mod discovery;
mod filter;
#[doc(hidden)]
pub mod fuzz;
mod module;
mod product;
mod ucp;
mod webhooks;

pub use config::{ProfileFetch, RawUcp, UcpSettings};
pub use counters::WebhookResult;
pub use filter::{Commerce, CommerceDeps, CommerceServices, UnknownEndpoint};
pub use module::CommerceModule;
pub use webhooks::PayPal;
