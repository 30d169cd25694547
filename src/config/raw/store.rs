//! `[store]` as it is written.

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::settings::{At, Number, Switch, Whole, Word};

use crate::config::settings::Durability;

/// The database of accounts, keys and the ledger.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawStore {
    /// The database. A file is created when it is missing; in an empty PostgreSQL database the tables are created.
    ///
    /// Type: `sqlite:` and a path, or `postgres://user@host:port/database`
    /// Default: `sqlite:tollgate.db`
    pub(crate) url: Option<At<String>>,
    /// The variable that contains the password for a PostgreSQL database.
    ///
    /// Type: name of a variable
    /// Range: a variable that is set; not beside `password_file`
    pub(crate) password_env: Option<At<String>>,
    /// The file that contains the password for a PostgreSQL database.
    ///
    /// Type: path
    /// Range: a readable file with one word; not beside `password_env`
    pub(crate) password_file: Option<At<String>>,
    /// Free space of an SQLite file's file system below which new requests are refused with 503; 0 for no check.
    pub(crate) free_bytes_min: Whole<268_435_456, 0, 1_099_511_627_776>,
    /// The durability of a commit to an SQLite file: `power` survives a power failure, `process` only the end of the process. With
    /// `process` a power failure may lose the latest charges. A commit to PostgreSQL always survives one.
    pub(crate) durability: Word<Durability>,
    /// The name of this gateway among several that use the PostgreSQL database at once. Without it one gateway has the database.
    ///
    /// Type: name
    /// Range: 1 to 64 characters `a` to `z`, `0` to `9`, `-`; not beside `standby`
    pub(crate) node: Option<At<String>>,
    /// Waits while another gateway has the PostgreSQL database, and takes over when it ends or does not renew its lease. Nothing listens until
    /// then.
    pub(crate) standby: Switch<false>,
    /// Whole months of the journal that `tollgate retention` keeps, before the current one; earlier ones are exported and removed. Without it
    /// everything is kept.
    ///
    /// Range: beside `exports`
    pub(crate) keep_months: Number<1, 1200>,
    /// The folder for the export files of `tollgate retention`.
    ///
    /// Type: path
    /// Range: a folder that exists; beside `keep_months`
    pub(crate) exports: Option<At<String>>,
    /// The folder, on a local disk that outlasts the process, for charges that are due while the PostgreSQL database does not answer. Without
    /// it answers wait for the database.
    ///
    /// Type: path
    /// Range: a folder of this gateway alone, created if it is missing; with a PostgreSQL database
    pub(crate) spool: Option<At<String>>,
    /// Bytes that the spool may have; answers wait for the database beyond.
    pub(crate) spool_bytes_max: Whole<268_435_456, 1_048_576, 1_099_511_627_776>,
    /// With `spool`: how long after the end of its lease other gateways leave the holds of this one alone, and how long it waits for the
    /// database before it ends. Without `spool` 60.
    pub(crate) orphan_grace_secs: Whole<900, 60, 86_400>,
}
