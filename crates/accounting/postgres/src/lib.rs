//! A blocking client of PostgreSQL over the messages of `postgres-protocol`: connections, prepared and pipelined statements, portals.
//!
//! Four requirements are the reason for a new client. The client reports the tag of a completed command, the only difference between a
//! `COMMIT` and a `ROLLBACK`. The client sends many statements in one message, and reads their results later, across transactions. Portals
//! exist outside of a transaction that the client owns. Calls block, since the caller is a single writing thread.

#[cfg(feature = "any")]
pub mod any;
mod connection;
mod profile;
mod row_values;
mod socket;
mod tls;
mod url;
mod value;
mod wire;

pub use self::connection::{Connection, Sent, Target, WAIT, is_select, refuse_nul};
pub use self::profile::{Connected, Profile, ServerError, Transport};
pub use self::row_values::RowValues;
pub use self::socket::CONNECT;
pub use self::url::{DatabaseUrl, UrlError};
pub use self::wire::{Expected, NothingChanged, lost};
