//! Clients: one that says exactly what it is told, and one that is convenient.

mod event;
mod plain;
mod raw;

pub use event::{Event, StreamEnd};
pub use plain::{Answer, Client, EventStream};
pub use raw::RawClient;
