#![doc = include_str!("../README.md")]

pub mod checkouts;
mod conflict;
mod credits;
mod due;
pub mod idempotency;
mod keyed_lock;
mod keys;
pub mod mandates;
pub mod plan;
mod scheduled;
mod tasks;
pub mod topups;
mod versioned;
pub mod wire;

use tollgate_service::{GATEWAY, provided};

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
pub use versioned::Versioned;

provided! {
    GATEWAY => [PurchaseTasks];
    "purchase" => [Credits, idempotency::IdempotencyKeys, plan::Plan, plan::Plans];
    "paypal" => [TopUps, mandates::Mandates];
    "pay" => [plan::PlanProtocols, wire::Product];
    "commerce" => [checkouts::Checkouts];
}
