#![doc = include_str!("../README.md")]

mod config;
mod delivery;
pub mod mail;
mod module;
mod sender;
pub mod sms;
mod text;

pub use config::{RawMail, RawSignin, RawSms, SigninSettings};
pub use delivery::{Attempts, Delivery, Outbox, Senders};
pub use module::SigninModule;
pub use sender::{OutgoingMessage, SendError, Sender};
