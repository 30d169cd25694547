//! The plan: one subscription for each account, whichever way it is paid.
//!
//! What holds beside the rules of the crate:
//!
//! 1. An account has one subscription. What is paid while it runs adds to it or is given back; it never stands beside it.
//! 2. A payment is stored under its route and the route's own reference, which are taken once; the time and the credits it gives are in
//!    the same commit.
//! 3. The class that the plan gives ends by the clock alone. Nobody has to be there to end it.

mod counters;
mod error;
mod extend;
mod payment_state;
mod plans;
mod state;

pub use counters::Counts;
pub use error::PlanError;
pub use extend::{Paid, Period, Renewal};
pub use payment_state::{PaymentState, RetryAction};
pub use plans::{PayOutcome, PlanDeps, Plans, Reversal};
pub use state::PlanState;

use std::sync::Arc;

use tollgate_money::{Micros, Usd};

/// What the plan costs for a month, on every route.
pub const PRICE: Usd = Usd::from_cents(19_900);

/// Days that one transfer pays for.
pub const DAYS: i64 = 30;

pub(crate) const DAY: i64 = 86_400 * 1_000_000;

/// What is sold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its id: `svc-pro-monthly`, with the service's own word.
    pub product: Arc<str>,
    /// What addresses call it: `svc-pro`.
    pub slug: Arc<str>,
    /// What people call it.
    pub name: Arc<str>,
    /// The rate class it gives.
    pub class: Arc<str>,
    /// Credits that each payment gives; zero for none.
    pub monthly_credits: Micros,
    /// Days before its end from which a plan that nobody renews may be bought again.
    pub renewal_days: u32,
    /// Devices that are included; `None` where that means nothing.
    pub device_slots: Option<u32>,
    /// Tasks with a computer of its own, for each month; `None` where that means nothing.
    pub computer_use_tasks: Option<u32>,
    /// What it gives, in words.
    pub features: Arc<[String]>,
}
