#![doc = include_str!("../README.md")]

mod drain;
pub mod mail;
mod sender;
pub mod sms;
mod text;

pub use drain::{Outbox, Ways};
pub use sender::{Failed, Outgoing, Sender};
