//! Proof that the books balance, recomputed from the entries.

mod check;
mod payments;

use std::fmt;

use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_store::{Read, ReadError};

use self::check::Check;
pub use self::payments::Paid;

/// One thing in the books that cannot be true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The operation it was found at, if at one.
    pub operation: Option<OperationId>,
    /// The account it was found at, if at one.
    pub account: Option<AccountId>,
    /// What is wrong, as a sentence.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(operation) = self.operation {
            write!(f, "{operation}: ")?;
        }
        if let Some(account) = self.account {
            write!(f, "{account}: ")?;
        }
        f.write_str(&self.what)
    }
}

/// Every entry summed up by where the money came from or went. The signed sum of all fields is zero in books that balance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Credit bought with outside money, as the contra side sees it (below zero).
    pub sold: Micros,
    /// Spent on operations, less refunds.
    pub spent: Micros,
    /// Granted by the operator, as the contra side sees it (below zero).
    pub granted: Micros,
    /// Written off by entries.
    pub written_off: Micros,
    /// Expired.
    pub expired: Micros,
    /// Corrected.
    pub corrected: Micros,
    /// Promised to open holds.
    pub held: Micros,
    /// Free to spend.
    pub available: Micros,
}

impl Sums {
    /// The signed sum, zero in books that balance; at the ends of the range where it would leave it.
    pub fn total(&self) -> Micros {
        [
            self.sold,
            self.spent,
            self.granted,
            self.written_off,
            self.expired,
            self.corrected,
            self.held,
            self.available,
        ]
        .into_iter()
        .fold(Micros::ZERO, Micros::saturating_add)
    }
}

/// What an audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Accounts looked at.
    pub accounts: u64,
    /// Operations looked at.
    pub operations: u64,
    /// Entries looked at.
    pub entries: u64,
    /// Usage records looked at.
    pub usage: u64,
    /// Usage records whose cost was worked out again, at the price version of their entry.
    pub priced: u64,
    /// Open holds.
    pub open_holds: u64,
    /// Seals looked at.
    pub seals: u64,
    /// Money for the plan.
    pub paid: Paid,
    /// The totals.
    pub sums: Sums,
    /// What operations cost beyond what could be taken: in usage records, in no entry.
    pub usage_written_off: Micros,
    /// What cannot be true; at most [`Report::VIOLATIONS_MAX`], the rest only counted.
    pub violations: Vec<Violation>,
    /// How many violations there are.
    pub violations_count: u64,
    /// What repairs have written into the journal, in its order.
    pub repairs: Vec<String>,
    /// Accounts whose stored fields differ from their entries.
    pub derived_differences: Vec<DerivedDifference>,
}

/// An account whose stored fields differ from the sums of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DerivedDifference {
    /// The account.
    pub account: AccountId,
    /// What is stored: free to spend, and promised.
    pub stored: (Micros, Micros),
    /// What the entries add up to: free to spend, and promised.
    pub summed: (Micros, Micros),
}

impl Report {
    /// How many violations are listed at most.
    pub const VIOLATIONS_MAX: usize = 1000;

    /// Whether everything adds up.
    pub fn clean(&self) -> bool {
        self.violations_count == 0
    }
}

/// Recomputes everything from one view of the store, beside a running gateway or with none. Blocks.
pub fn audit(store: &dyn Read) -> Result<Report, ReadError> {
    let view = store.snapshot()?;
    let mut check = Check::default();
    view.batches(&mut |rows| check.batch(&rows))?;
    view.posted(&mut |node, last| check.posted(node, last))?;
    if check.has_unreadable() {
        // Whatever else the books say, it is not all.
        return Ok(check.report());
    }
    view.prices(&mut |row| check.price(&row))?;
    view.operations(&mut |rows| check.operation(&rows))?;
    view.payments(&mut |row| check.payment(&row))?;
    view.subscriptions(&mut |row| check.subscription(&row))?;
    view.accounts(&mut |account| check.account(&account))?;
    view.misposted(&mut |account| check.misposted(account))?;
    Ok(check.report())
}
