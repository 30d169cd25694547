//! Clients: a raw one that sends exact bytes, and a convenient one.

mod event;
mod plain;
mod raw;

pub use event::{Event, StreamEnd};
pub use plain::{Answer, Client, EventStream};
pub use raw::RawClient;
