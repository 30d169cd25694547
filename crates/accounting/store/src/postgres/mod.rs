//! The shared engine: a PostgreSQL database, reached by several processes over a network.
//!
//! One connection writes. A commit of ledger parts alone is one statement with the fence inside; every other commit is one transaction
//! that begins with the fence. A connection lost during a commit leaves the commit's outcome unknown: the writer reconnects and finds the
//! outcome before any caller is notified. Reads use separate connections.

mod claim;
mod engine;
mod failure;
mod feed;
mod import;
#[cfg(feature = "simulation")]
mod intercepted;
mod lease;
mod measure;
mod nodes;
mod open;
mod options;
mod own_tables;
mod read;
mod recover;
mod schema;
mod ticker;
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
pub use tollgate_postgres::{DatabaseUrl, UrlError};
