//! The embedded engine: one SQLite file with its log and its lock.
//!
//! One thread owns the writing connection; the sync of the disk is the window of group commit, without a timer. A second thread
//! checkpoints the log into the main file. Reads use separate connections. The module `commit` decides the content of a commit. The
//! module `tables` has the statements of every engine. This module has the file, the connections, and the fence.

#[cfg(test)]
mod additive;
mod backup;
mod checkpoint;
mod compile_options;
mod descriptor;
mod engine;
mod failure;
mod fence;
mod file;
mod inspection;
mod last_commit;
mod lock;
mod name;
mod open;
mod options;
mod read;
mod recover;
mod rename;
mod root_secret;

pub use self::backup::{
    BackupError, CopiedPages, backup, backup_replacing, backup_watched, export, verify_pages,
};
pub use self::compile_options::has_compile_options;
pub use self::inspection::inspect;
pub use self::last_commit::{RecordState, path_of as record_path};
pub use self::lock::Lock;
pub use self::name::resolve;
pub(crate) use self::open::open_exclusive;
pub use self::open::{open, open_read, record_state};
pub use self::options::{Durability, Options};
pub use self::recover::{rebuild_postings, repair};
pub use self::rename::{RenameError, migrated, rename};
#[cfg(test)]
pub(crate) use self::{open::new_engine, read::Pool};
pub use crate::recovery::{Action, BalanceChange, Finding, Repair};
