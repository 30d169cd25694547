//! The tables of the store: their statements, which every engine runs, and the conversion of their rows.
//!
//! A statement is standard enough for SQLite, PostgreSQL and what speaks its protocol. Where a row may have the key of another one, the
//! statement says `ON CONFLICT DO NOTHING` and the rows that it changed are counted: an error would end a transaction of PostgreSQL.

mod acme;
mod allotment;
mod audit_log;
mod carry;
mod checkout;
mod columns;
mod completion_keys;
mod erasure;
mod id_lists;
mod journal;
mod key_state;
mod keys;
mod loaded;
mod mandate;
mod oauth;
mod pages;
mod parts;
mod plan;
mod recovery;
mod refusals;
mod rows;
mod signin;
mod size;
mod topup;
mod usage_days;
mod versioned;
mod x402;

#[cfg(test)]
pub(crate) use self::allotment::posted_balances_sql;
pub(crate) use self::allotment::remove_caps;
pub(crate) use self::journal::{StepOrder, each_step, step};
use crate::engine::WriteError;
use crate::error::Refusal;

/// Refuses where no row was changed.
fn changed(rows: usize, refusal: impl FnOnce() -> Refusal) -> Result<(), WriteError> {
    match rows {
        0 => Err(WriteError::Refused(refusal())),
        _ => Ok(()),
    }
}
