//! Mandates: consent of an account's owner to a monthly charge for the plan, and the reconciliation of every charge made under it.
//!
//! Invariants in addition to those of the crate:
//!
//! 1. An account has at most one offered mandate and one that is agreed to or charged; both at once only after a failed charge. Opening is
//!    idempotent: it returns the same mandate again.
//! 2. An active subscription at the provider is no proof of payment. A listed charge buys a period, once, in the unit of work that records
//!    it; a payment that is reported but not listed yet grants one provisional day.
//! 3. Every charge buys a period or is refunded. A duplicate mandate, whose charges would pay for a plan that is paid by another route, is
//!    cancelled at the provider and refunded; this is stored first and retried until the provider confirms it.
//! 4. A mandate that its owner has cancelled is suspended at the provider and can be resumed until the next charge would have been due; it is
//!    cancelled there, which is final, only then. A subscription that the provider or the merchant has suspended is not resumed here; for an
//!    hour after a resumption it counts as suspended by the cancellation before.
//! 5. A mandate that was offered once stays under reconciliation: a buyer may agree to it long after another was created.

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
