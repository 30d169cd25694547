//! Recovery of a damaged ledger, in one transaction while no gateway runs.

mod rebuild_postings;
mod repair;

pub(crate) use self::rebuild_postings::{rebuild, verify_seals};
pub use self::repair::{Action, BalanceChange, Finding, Repair};
pub(crate) use self::repair::{RepairRun, repair};
