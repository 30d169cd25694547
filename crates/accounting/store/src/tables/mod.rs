//! The tables of the store: their statements, which every engine runs, and the conversion of their rows.
//!
//! A statement is standard enough for SQLite, PostgreSQL and servers that speak PostgreSQL's protocol. Where a row may have the key of
//! another row, the statement says `ON CONFLICT DO NOTHING` and the changed rows are counted: an error would end a transaction of
//! PostgreSQL.

pub(crate) mod accounts;
mod acme;
pub(crate) mod allotment;
pub(crate) mod audit_log;
pub(crate) mod bookings;
pub(crate) mod carry;
mod checkout;
mod completion_keys;
pub(crate) mod credentials;
mod erasure;
pub(crate) mod holds;
mod id_lists;
pub(crate) mod journal;
mod key_state;
pub(crate) mod keys;
pub(crate) mod loaded;
pub(crate) mod logins;
mod mandate;
pub(crate) mod marks;
mod oauth;
pub(crate) mod pages;
pub(crate) mod parts;
pub(crate) mod plan;
pub(crate) mod prices;
pub(crate) mod recovery;
mod refusals;
mod signin;
pub(crate) mod size;
mod topup;
pub(crate) mod unit;
pub(crate) mod usage_days;
mod versioned;
mod x402;

use crate::engine::WriteError;
use crate::error::Refusal;

/// Refuses where no row was changed.
fn changed(rows: usize, refusal: impl FnOnce() -> Refusal) -> Result<(), WriteError> {
    match rows {
        0 => Err(WriteError::Refused(refusal())),
        _ => Ok(()),
    }
}
