#![doc = include_str!("../README.md")]

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
