//! Account statements, day by day.

use tollgate_clock::Timestamp;
use tollgate_money::{CredentialId, Micros};

use crate::entries::Entry;

/// Charges for one credential on one day, from one credit of that day to the next: so the balance after each credit is the one that was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaySpending {
    /// The time of the last of them.
    pub last_at: Timestamp,
    /// The credential; `None` for use without one.
    pub credential: Option<CredentialId>,
    /// Number of operations with a cost.
    pub requests: u64,
    /// The amount charged.
    pub cost: Micros,
}

/// Some days of an account, all read at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The available balance now.
    pub available: Micros,
    /// The held balance now.
    pub held: Micros,
    /// Change of `available + held` since the end of these days.
    pub changed_since: Micros,
    /// The entries that moved credit under a reference in these days, newest first.
    pub credits: Vec<Entry>,
    /// The charges of these days, newest first.
    pub spending: Vec<DaySpending>,
    /// The time of the last entry before these days, if there is one.
    pub older: Option<Timestamp>,
}
