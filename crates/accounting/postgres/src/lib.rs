//! A blocking client of PostgreSQL over the messages of `postgres-protocol`: connections, prepared and pipelined statements, portals.
//!
//! Reasons for a client of its own: the tag of a completed command, by which alone a `COMMIT` differs from a `ROLLBACK`; many statements in
//! one message whose results are read later, across transactions; portals outside of a transaction that the client owns; and blocking calls,
//! since the caller is one writing thread.

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
