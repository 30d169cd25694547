#![doc = include_str!("../README.md")]

mod certificates;
mod client;
mod environment;
mod error;
mod notice;
mod orders;
mod plans;
mod refund;
mod secret;
mod subscriptions;
mod token;
mod wire;

pub use client::{Client, ClientError, Settings, Times};
pub use environment::{Environment, EnvironmentError};
pub use error::{Error, ErrorKind};
pub use notice::{Notice, NoticeError, Resource, Verify};
pub use orders::{Capture, CaptureStatus, NewOrder, Order, OrderStatus, Placed};
pub use plans::{NewPlan, Plan};
pub use secret::Secret;
pub use subscriptions::{
    NewSubscription, Subscribed, Subscription, SubscriptionStatus, Transaction, TransactionStatus,
};
