//! The shared engine: a PostgreSQL database, which several processes reach over a network.
//!
//! One connection writes. A commit of ledger parts alone is one statement with the fence inside it; every other commit is one transaction
//! that begins with the fence. A connection that is lost during a commit leaves its outcome unknown: the writer connects again and finds
//! out before it notifies a caller. Reads use their own connections.
//!
//! The protocol is spoken here, over the messages of the `postgres-protocol` crate, and blocking: the writer is a thread and reads are
//! blocking calls, so an asynchronous client would run an executor for each connection, and the clients that there are do not show the tag
//! of a completed command, by which alone a `COMMIT` differs from a `ROLLBACK`.

mod claim;
mod connection;
mod engine;
mod failure;
mod feed;
mod import;
#[cfg(feature = "simulation")]
mod intercepted;
mod key_set;
mod lease;
mod measure;
mod nodes;
mod open;
mod options;
mod own_tables;
mod read;
mod recover;
mod row_values;
mod schema;
mod socket;
mod ticker;
mod tls;
mod url;
mod value;
mod wire;
mod writer;

pub use self::import::{ImportError, Imported, Progress, finish_import, import, open_imported};
#[cfg(feature = "simulation")]
pub use self::intercepted::{Submitter, open_intercepted};
pub use self::measure::{Measured, measure};
pub use self::nodes::{NodeLease, NodeState, nodes};
pub use self::open::{check_empty, check_nodes, holder, migrate, open, open_read, reach};
pub use self::options::{NodeRole, Options, SpoolOptions};
#[cfg(feature = "simulation")]
pub(crate) use self::own_tables::{OWN_COLUMNS, OWN_TABLES};
pub use self::recover::rebuild_postings;
pub use self::url::{DatabaseUrl, UrlError};
