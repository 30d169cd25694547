//! Account statements, day by day.

use tollgate_clock::Timestamp;
use tollgate_money::{CredentialId, Micros};

use crate::entries::Entry;

/// Charges for a credential on a day, between two credits of the day: the shown balance after a credit is the actual balance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaySpending {
    /// The time of the last charge.
    pub last_at: Timestamp,
    /// The credential; `None` for use without a credential.
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
    /// Change of `available + held` since the end of the days.
    pub changed_since: Micros,
    /// The entries that moved credit under a reference in the days, newest first.
    pub credits: Vec<Entry>,
    /// The charges of the days, newest first.
    pub spending: Vec<DaySpending>,
    /// The time of the last entry before the days, if any.
    pub older: Option<Timestamp>,
}
