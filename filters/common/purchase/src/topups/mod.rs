//! Credits: from an order at a payment provider to credit in the books.

mod counters;
mod decide;
mod desk;
mod error;
mod keys;
mod look;
mod offer;
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
