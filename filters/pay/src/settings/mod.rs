//! The sections `[credits]`, `[plan]` and `[payments]`: as written, and validated.

mod credits;
mod mpp;
mod paypal;
mod plan;
mod x402;

pub use credits::RawCredits;
pub use mpp::RawMpp;
pub use paypal::{PayPalSettings, RawPayPal};
pub use plan::RawPlan;
pub use x402::{RawX402, X402Settings};
