//! Purchases: what is sold, what was paid, and what a payment grants.
//!
//! Invariants on every route of payment, after every call, and after a crash at any write:
//!
//! 1. A step that could move money is stored before the provider is called, with its idempotency key.
//! 2. A payment counts exactly once: what it grants and its record are one unit of work, and its reference is unique.
//! 3. The outcome of a lost answer is never guessed: the provider is read until it shows what has happened (reconciliation).
//! 4. Provider notifications and returning buyers only trigger reconciliation. Their content is not trusted.
//!
//! [`topups`] sells credits; [`plan`] is the subscription of an account and its payments; [`mandates`] are charged for it each month;
//! [`checkouts`] are sessions of commerce platforms; [`idempotency`] makes requests to buy repeatable. No HTTP: payment providers
//! are traits, and time and randomness are injected.

mod backoff;
pub mod checkouts;
mod credits;
mod due;
pub mod idempotency;
mod keyed_lock;
mod keys;
pub mod mandates;
pub mod plan;
mod tasks;
pub mod topups;
mod versioned;
pub mod wire;

pub use backoff::Backoff;
pub use credits::Credits;
pub use due::{Due, DueWork, DueWorker};
pub use keyed_lock::KeyedLock;
pub use keys::key_of;
pub use tasks::PurchaseTasks;
pub use topups::{
    BeginError, Capture, CaptureStatus, CreatedOrder, Draw, FailureKind, NewOrder, Notification,
    OFFERED, Offer, Order, OrderError, OrderStatus, Orders, PriceError, PurchaseRequest,
    ReconcileError, TopUpDeps, TopUpEvent, TopUps,
};
pub use versioned::{Versioned, VersionedRow};
