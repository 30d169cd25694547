//! Checkouts: sessions in which a platform helps an account's owner to buy the plan, by the Universal Commerce Protocol.
//!
//! What holds beside the rules of the crate:
//!
//! 1. A checkout moves no money. Its owner is led to the account's one mandate, which other checkouts and other ways of buying share.
//! 2. The unit of work that gives the plan completes every checkout that waits for it. No other thing completes one.
//! 3. An end is an end: a checkout that is completed or cancelled never changes.

mod error;
mod processor;
mod session;

pub use error::CheckoutError;
pub(crate) use processor::completed;
pub use processor::{AttachParts, CheckoutDeps, Checkouts, View, attach_nothing};
pub use session::{CheckoutRequest, NewCheckout, NotModifiable, Status};
