//! Reads of the ledger: posted data, with the journal's unposted tail.

mod audit;
pub(crate) mod caps;
mod day_totals;
mod read;
mod records;
mod statement;
mod tail;
mod usage;

pub use self::audit::Snapshot;
pub(crate) use self::day_totals::{DayTotals, rebuild_days};
pub(crate) use self::tail::{BalanceDelta, accounts};
