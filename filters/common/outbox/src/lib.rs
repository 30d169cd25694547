#![doc = include_str!("../README.md")]

mod delivery;
pub mod mail;
mod sender;
pub mod sms;
mod text;

pub use delivery::{Delivery, Outbox, Senders};
pub use sender::{OutgoingMessage, SendError, Sender};
