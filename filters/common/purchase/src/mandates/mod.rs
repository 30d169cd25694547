//! Mandates: leave of an account's owner to be charged for the plan each month, and what came of each charge.
//!
//! What holds beside the rules of the crate:
//!
//! 1. An account has at most one mandate that is offered, and one that is agreed to or charged; both only where a charge has failed.
//!    Asked again, the desk gives the same one.
//! 2. That a subscription runs at the provider proves nothing. A charge in its list buys a period, once, together with the note of it; a
//!    payment that is told and not listed yet is good for one day.
//! 3. Every charge buys a period or goes back. A mandate whose charge nobody wants, because the plan runs by another way, is ended at the
//!    provider and its money given back; this is stored first and repeated until the provider shows that it is done.
//! 4. What was once offered stays ours to watch: a buyer may agree to it long after another was made.

mod cancel;
mod counters;
mod decide;
mod error;
mod keys;
mod open;
mod period;
mod plan_check;
mod processor;
mod reconcile;
mod recurring;
mod schedule;

pub use cancel::{may_charge, request_cancellation};
pub use counters::{MandateCounters, MandateCounts};
pub use decide::{is_past_due, is_stopped};
pub use error::{CancelError, OpenError, VerifyError};
pub use open::Urls;
pub use processor::{
    AttachParts, MandateDeps, MandateNotification, Mandates, Verified, current_mandate,
};
pub use recurring::{
    Charge, ChargeStatus, CreatedSubscription, NewSubscription, ProviderPlan, ProviderSubscription,
    Recurring, RecurringError, Status,
};
pub use schedule::RECURRING_OFFERED;
