//! Purchases of credits: from an order at a payment provider to credit in the ledger.

mod counters;
mod decide;
mod error;
mod keys;
mod offer;
mod orders;
mod owing;
mod processor;
mod reconcile;
mod schedule;
mod top_up;

pub use counters::TopUpEvent;
pub use error::{BeginError, ReconcileError};
pub use offer::{Offer, PriceError};
pub use orders::{
    Capture, CaptureStatus, CreatedOrder, FailureKind, NewOrder, Order, OrderError, OrderStatus,
    Orders,
};
pub use processor::{Draw, Notification, PurchaseRequest, TopUpDeps, TopUps};
pub use schedule::OFFERED;
