//! The plan: one subscription for each account, on every route of payment.
//!
//! Invariants in addition to the crate's:
//!
//! 1. An account has one subscription. A payment during an active subscription extends the subscription or is refunded; there is never a
//!    second subscription.
//! 2. A payment is stored under its route and the route's unique reference. The payment's commit also grants the time and the credits.
//! 3. Credits of a returned payment that were held or spent are owed, and taken back as they become free ([`OwedCredits`]).
//! 4. The rate class of the plan ends by the clock alone, without a background task.

mod benefits;
mod counters;
mod error;
mod extend;
mod owed;
mod payment;
mod payment_state;
mod plans;
mod rails;
mod state;

pub use benefits::benefits;
pub use counters::PlanEvent;
pub use error::PlanError;
pub use extend::{Paid, Period, Renewal};
pub use owed::OwedCredits;
pub use payment_state::{PaymentState, RetryAction};
pub use plans::{PayOutcome, PlanDeps, Plans, Reversal};
pub use rails::{Question, Rail};
pub use state::PlanState;

use std::sync::Arc;
use std::time::Duration;

use tollgate_money::{Micros, Usd};

/// The price of one month, on every route.
pub const PRICE: Usd = Usd::from_cents(19_900);

/// Days bought by one transfer.
pub const DAYS: u32 = 30;

pub(crate) const DAY: Duration = Duration::from_hours(24);

/// The configured protocols for buying the plan. The others answer with 503 and stay out of the documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanProtocols {
    /// Signed transfers.
    pub x402: bool,
    /// `Payment` challenges.
    pub mpp: bool,
    /// PayPal: checkouts (UCP), and the page for people.
    pub paypal: bool,
}

impl PlanProtocols {
    /// Every protocol.
    pub const ALL: PlanProtocols = PlanProtocols {
        x402: true,
        mpp: true,
        paypal: true,
    };

    /// Whether programs can buy the plan at all.
    pub fn is_any(self) -> bool {
        self.x402 || self.mpp || self.paypal
    }
}

/// The plan on sale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its id: `svc-pro-monthly`, where `svc` is the service's short name.
    pub product: Arc<str>,
    /// Its name in URLs: `svc-pro`.
    pub slug: Arc<str>,
    /// The display name.
    pub name: Arc<str>,
    /// The rate class it grants.
    pub class: Arc<str>,
    /// Credits granted by each payment; zero without credits.
    pub monthly_credits: Micros,
    /// Days before the end from which a plan without renewal may be bought again.
    pub renewal_days: u32,
    /// Devices included; `None` if not applicable.
    pub device_slots: Option<u32>,
    /// Tasks with a dedicated computer, for each month; `None` if not applicable.
    pub computer_use_tasks: Option<u32>,
    /// Contents of the plan, as text.
    pub features: Arc<[String]>,
}
