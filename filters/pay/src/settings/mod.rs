//! The sections `[credits]`, `[plan]` and `[payments]`: as written, and validated.

mod credits;
mod mpp;
mod paypal;
mod plan;
mod x402;

use tollgate_filter::settings::{At, Problems};
use tollgate_money::Micros;

pub use credits::RawCredits;
pub use mpp::RawMpp;
pub use paypal::{PayPalSettings, RawPayPal};
pub use plan::RawPlan;
pub use x402::{RawX402, X402Settings};

/// An amount of credits, zero where none is written.
fn credits_or_zero(key: &str, at: Option<&At<String>>, problems: &mut Problems) -> Micros {
    let Some(at) = at else {
        return Micros::ZERO;
    };
    let amount: Micros = problems.parse(key, at).unwrap_or_default();
    if amount < Micros::ZERO {
        problems.note(key, at, format_args!("is `{}`; use 0 or more", at.value));
    }
    amount.max(Micros::ZERO)
}
