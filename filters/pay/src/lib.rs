#![doc = include_str!("../README.md")]

mod filter;
#[doc(hidden)]
pub mod fuzz;
mod json;
mod module;
pub mod mpp;
mod problem;
mod request;
mod settings;
pub mod x402;

pub use filter::{Pay, PaymentProtocols, UnknownProtocol};
pub use module::{PayModule, PayPalModule, PurchaseModule, configured_protocols, plans};
pub use settings::{PayPalSettings, RawCredits, RawMpp, RawPayPal, RawPlan, RawX402, X402Settings};
