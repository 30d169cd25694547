//! Purchases: from an order at a payment provider to credit in the books.
//!
//! What holds after every call, and after a crash at any write:
//!
//! 1. Money is taken only for a purchase that is stored, by an order that is stored, under a key that is stored.
//! 2. A payment is credited exactly once: the credit and the purchase's state are one unit of work, and the credit's reference is the
//!    payment's id, which the books take once.
//! 3. An answer that was lost is never guessed: the order is read again until it says what has happened.
//! 4. Notices and returning buyers are only bells. What they say is never believed; they make somebody look.
//!
//! No HTTP and no clock: the provider stands behind [`Orders`], time and randomness are handed in.

mod counters;
mod decide;
mod desk;
mod error;
mod keys;
mod look;
mod offer;
pub mod once;
mod orders;
mod schedule;

pub use counters::{Counters, Counts};
pub use desk::{Draw, Notice, Parts, TopUps, Wish};
pub use error::{BeginError, LookError};
pub use offer::{Offer, PriceError};
pub use orders::{
    Capture, CaptureStatus, NewOrder, Order, OrderError, OrderStatus, Orders, Placed, Trouble,
};
pub use schedule::OFFERED;
