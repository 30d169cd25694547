//! Purchases: what is sold, what was paid, and what that gives.
//!
//! What holds on every way of paying, after every call, and after a crash at any write:
//!
//! 1. Whatever could move money is stored before it is asked for, under a key that is stored.
//! 2. A payment counts exactly once: what it gives and the note of it are one unit of work, and its reference is taken once.
//! 3. An answer that was lost is never guessed: whoever took the money is asked until it says what has happened.
//! 4. Notices and returning buyers are only bells. What they say is never believed; they make somebody look.
//!
//! [`topups`] sells credits, [`plan`] is what an account has of the plan and what was paid for it, [`mandates`] are charged for it
//! each month. No HTTP and no clock: payment providers stand behind traits, time and randomness are handed in.

pub mod checkouts;
pub mod idempotency;
mod keys;
pub mod mandates;
pub mod plan;
mod tasks;
pub mod topups;
pub mod wire;

pub use keys::key_of;
pub use tasks::{PurchaseTask, PurchaseTasks};
pub use topups::{
    BeginError, Capture, CaptureStatus, Counters, Counts, CreatedOrder, Draw, FailureKind,
    NewOrder, Notification, OFFERED, Offer, Order, OrderError, OrderStatus, Orders, PriceError,
    PurchaseRequest, ReconcileError, TopUpDeps, TopUps,
};
