//! The embedded engine: one SQLite file with its log and its lock.
//!
//! One thread owns the writing connection; the sync of the disk is the window of group commit, there is no timer. A second thread
//! checkpoints the log into the main file. Reads use their own connections. What a commit contains is decided above (`commit`); here are
//! the rows of each table, the file, and the fence.

mod backup;
mod checkout;
mod checkpoint;
mod columns;
mod compile_options;
mod completion_keys;
mod descriptor;
mod engine;
mod failure;
mod fence;
mod file;
mod key_state;
mod keys;
mod lock;
mod mandate;
mod name;
mod oauth;
mod open;
mod options;
mod parts;
mod plan;
mod read;
mod recover;
mod refusals;
mod rows;
mod signin;
mod topup;
mod usage_days;
mod versioned;
mod x402;

pub use self::backup::{BackupError, backup, backup_replacing, export};
pub use self::compile_options::has_compile_options;
pub use self::lock::Lock;
pub use self::name::resolve;
#[cfg(test)]
pub(crate) use self::open::new_engine;
pub use self::open::{open, open_read};
pub use self::options::{Durability, Options};
pub use self::recover::{rebuild_postings, repair};
pub use crate::recovery::{Action, BalanceChange, Finding, Repair};
