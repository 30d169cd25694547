//! Checkout sessions, in which a platform helps an account's owner to buy the plan (Universal Commerce Protocol).
//!
//! Invariants in addition to those of the crate:
//!
//! 1. A checkout moves no money. Its owner agrees to the account's one mandate, which other checkouts and other routes share.
//! 2. The unit of work that grants the plan completes every waiting checkout of the account. Nothing else completes one.
//! 3. Completed and cancelled are final: such a checkout never changes.

mod error;
mod processor;
mod session;

pub use error::CheckoutError;
pub use processor::{AttachParts, CheckoutDeps, Checkouts, View, attach_nothing};
pub(crate) use session::completed;
pub use session::{Checkout, CheckoutContent, NewCheckout, NotModifiable, Status};
