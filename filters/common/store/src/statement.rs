//! What happened on an account, day by day.

use tollgate_money::{AccountId, Micros};

use crate::books::Entry;
use crate::error::ReadError;
use crate::rows::CredentialId;

/// What an account was charged for the use of one credential on one day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaySpending {
    /// Unix microseconds of the day's beginning, UTC.
    pub day_at: i64,
    /// The credential; `None` for use without one.
    pub credential: Option<CredentialId>,
    /// How many operations cost something.
    pub requests: u64,
    /// What was taken.
    pub cost: Micros,
}

/// Some days of an account, all as they were at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Free to spend now.
    pub available: Micros,
    /// Promised to open holds now.
    pub held: Micros,
    /// By how much `available + held` has changed since the end of these days.
    pub changed_since: Micros,
    /// The entries that moved credit under a reference in these days, newest first.
    pub credits: Vec<Entry>,
    /// What was charged in these days, newest day first.
    pub spending: Vec<DaySpending>,
    /// Unix microseconds of the last thing before these days, if there was one.
    pub older: Option<i64>,
}

/// Statements. Blocks, as [`crate::Read`] does.
pub trait ReadStatement {
    /// What happened in `from <= at < to` (Unix microseconds); `None` when there is no such account.
    fn statement(
        &self,
        account: AccountId,
        from: i64,
        to: i64,
    ) -> Result<Option<Statement>, ReadError>;
}
