//! Mandates: consent of an account's owner to a monthly charge for the plan, and the reconciliation of every charge made under the consent.
//!
//! Invariants in addition to the crate's:
//!
//! 1. An account has at most one offered mandate and one mandate agreed to or charged; both at once only after a failed charge. Opening is
//!    idempotent: a repeated call returns the existing mandate.
//! 2. An active subscription at the provider is no proof of payment. A listed charge buys a period, once, in the unit of work of its
//!    record; a payment reported but not listed yet grants one provisional day.
//! 3. Every charge buys a period or is refunded. A duplicate mandate would charge for a plan paid by another route; the duplicate is
//!    cancelled at the provider and refunded. The decision is stored first and retried until the provider confirms.
//! 4. A mandate cancelled by the owner is suspended at the provider and can be resumed until the next charge would have been due. Only then
//!    follows the final cancellation there. A subscription suspended by the provider or the merchant is not resumed here. Exception: within
//!    an hour after a resumption, a suspension is attributed to the earlier cancellation.
//! 5. A mandate offered once stays under reconciliation: a buyer may agree long after the creation of another mandate.

mod cancel;
mod context;
mod counters;
mod current;
mod decide;
mod error;
mod keys;
mod mandate;
mod missing;
mod open;
mod period;
mod plan_check;
mod processor;
mod rail;
mod recent_reads;
mod reconcile;
mod recurring;
mod schedule;

pub use cancel::{may_charge, request_cancellation};
pub use context::AttachParts;
pub use counters::MandateEvent;
pub use current::current_mandate;
pub(crate) use current::is_own;
pub use decide::{is_past_due, is_stopped};
pub use error::{ChangeError, OpenError, VerifyError};
pub use mandate::{next_charge, resumable_after_cancel, resumable_until};
pub use open::Urls;
pub use period::without_grace;
pub use processor::{MandateDeps, MandateNotification, Mandates, Verified};
pub use recurring::{
    Charge, ChargeStatus, CreatedSubscription, NewSubscription, ProviderPlan, ProviderSubscription,
    Recurring, RecurringError, Status,
};
pub use schedule::RECURRING_OFFERED;
