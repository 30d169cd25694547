#![doc = include_str!("../README.md")]

mod certificate;
mod client;
pub mod facilitator;
mod fault;
mod gate;
mod guard;
mod head;
pub mod mailbox;
pub mod mcp;
pub mod paypal;
mod ports;
mod postgres;
mod process;
pub mod provider;
mod redis;
mod secrets;
mod server;
pub mod wallet;
mod wire;

pub use certificate::Certificate;
pub use client::{Answer, Client, Event, EventStream, RawClient, StreamEnd};
pub use facilitator::Facilitator;
pub use gate::Gate;
pub use guard::within;
pub use head::{BadHead, Head};
pub use mailbox::Mailbox;
pub use mcp::{Act, McpCall, McpServer};
pub use paypal::PayPal;
pub use ports::{free_port, refusing_address};
pub use postgres::Postgres;
pub use process::Process;
pub use provider::{Call, Ended, Provider, Script, Settings};
pub use redis::Redis;
pub use secrets::Secrets;
pub use tempfile::{TempDir, tempdir};
pub use wallet::Wallet;
