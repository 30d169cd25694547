//! The audit: reconciliation of balances against the entries.

mod allotments;
mod audit_log;
mod check;
mod payments;

use std::fmt;
use std::time::Duration;

use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_store::{KeyCap, ReadError, Reader, Snapshot, sleep};

use self::check::Check;
pub use self::payments::Paid;

/// One violation found in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The operation concerned, if any.
    pub operation: Option<OperationId>,
    /// The account concerned, if any.
    pub account: Option<AccountId>,
    /// The violation, as a sentence.
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

/// The entries, summed by contra account. The signed sum of the fields is zero in a ledger that balances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Credit bought with outside money, as seen from the contra side (negative).
    pub sold: Micros,
    /// Spent on operations, less refunds.
    pub spent: Micros,
    /// Granted by the operator, as seen from the contra side (negative).
    pub granted: Micros,
    /// Written off by entries.
    pub written_off: Micros,
    /// Expired.
    pub expired: Micros,
    /// Corrected.
    pub corrected: Micros,
    /// Reserved by open holds.
    pub held: Micros,
    /// Available.
    pub available: Micros,
}

impl Sums {
    /// The signed sum, zero in a ledger that balances; clamped to the range of the type.
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

/// The result of an audit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Accounts checked.
    pub accounts: u64,
    /// Operations checked.
    pub operations: u64,
    /// Entries checked.
    pub entries: u64,
    /// Usage records checked.
    pub usage: u64,
    /// Usage records whose cost was recomputed, at the price version of their entry.
    pub priced: u64,
    /// Open holds.
    pub open_holds: u64,
    /// Seals checked.
    pub seals: u64,
    /// Commits that were exported and removed. The carried balances were checked against their seal.
    pub removed_commits: u64,
    /// Records of the audit log checked.
    pub audit_records: u64,
    /// Payments for the plan.
    pub paid: Paid,
    /// The totals.
    pub sums: Sums,
    /// Costs of operations beyond the charges: in usage records, without an entry.
    pub usage_written_off: Micros,
    /// The violations; at most [`Report::VIOLATIONS_MAX`]. Further violations are only counted.
    pub violations: Vec<Violation>,
    /// Number of violations.
    pub violations_count: u64,
    /// The repairs recorded in the journal, in the order of the journal.
    pub repairs: Vec<String>,
    /// Accounts whose stored fields differ from their entries.
    pub derived_differences: Vec<DerivedDifference>,
}

/// An account whose stored fields differ from the sums of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DerivedDifference {
    /// The account.
    pub account: AccountId,
    /// Available, as stored.
    pub available_stored: Micros,
    /// Available, as the sum of the entries.
    pub available_summed: Micros,
    /// Held, as stored.
    pub held_stored: Micros,
    /// Held, as the sum of the entries.
    pub held_summed: Micros,
}

impl Report {
    /// Maximum number of violations listed.
    pub const VIOLATIONS_MAX: usize = 1000;

    /// Adds a violation.
    pub fn add(&mut self, violation: Violation) {
        self.violations_count += 1;
        if self.violations.len() < Report::VIOLATIONS_MAX {
            self.violations.push(violation);
        }
    }

    /// Whether the audit found no violation.
    pub fn clean(&self) -> bool {
        self.violations_count == 0
    }
}

/// Recomputes the ledger from one snapshot of the store, with or without a running gateway. Blocks.
pub fn audit(store: &Reader) -> Result<Report, ReadError> {
    audit_watched(store, &mut |_, _| {})
}

/// Like [`audit`], with progress reports: `report` gets the kind of the rows and the number of rows read. Called before the first row of a
/// kind, and after every [`REPORT_ROWS`] rows.
pub fn audit_watched(
    store: &Reader,
    report: &mut dyn FnMut(&'static str, u64),
) -> Result<Report, ReadError> {
    let view = store.snapshot()?;
    let mut check = Check::default();
    let mut nodes = Vec::new();
    view.posted(&mut |node, last| {
        nodes.extend(check.node(node, last));
    })?;
    check.carried(&view.carried()?);
    let mut count = Count::of("commits", report);
    view.batches(&mut |rows| {
        count.row();
        check.batch(&rows);
    })?;
    view.posted(&mut |node, last| check.posted(node, last))?;
    view.audit_log(&mut |record| check.audit_record(&record))?;
    if check.has_unreadable() {
        // An incomplete ledger allows no further check.
        return Ok(check.report());
    }
    view.prices(&mut |row| check.price(&row))?;
    let mut count = Count::of("operations", report);
    view.operations(&mut |rows| {
        count.row();
        check.operation(&rows);
    })?;
    view.payments(&mut |row| check.payment(&row))?;
    view.subscriptions(&mut |row| check.subscription(&row))?;
    let mut count = Count::of("accounts", report);
    view.accounts(&mut |account| {
        count.row();
        check.account(&account);
    })?;
    for node in nodes {
        view.allotments(node, &mut |row| check.allotment(node, &row))?;
    }
    check.allotments_end();
    let wrong = caps(store, &view, report)?;
    wrong.into_iter().for_each(|cap| check.wrong_cap(cap));
    view.posting_differences(&mut |account| check.posting_differences(account))?;
    Ok(check.report())
}

/// Maximum number of cap reads while some caps are wrong, and the pause before each further read: longer than a commit.
const CAP_READS_MAX: u32 = 5;
const CAP_PAUSE: Duration = Duration::from_millis(200);

/// The caps that are wrong in every read. A charge above its reservation is committed before its take of the cap. So a running node may
/// seem to have spent more than granted.
fn caps(
    store: &Reader,
    view: &Snapshot<'_>,
    report: &mut dyn FnMut(&'static str, u64),
) -> Result<Vec<WrongCap>, ReadError> {
    let read_wrong_caps = |view: &Snapshot<'_>| {
        let mut wrong = Vec::new();
        view.caps(&mut |shares| {
            if let Some(what) = allotments::cap(&shares) {
                wrong.push(WrongCap {
                    cap: shares.cap,
                    account: shares.account,
                    what,
                });
            }
        })?;
        Ok::<_, ReadError>(wrong)
    };
    report("caps", 0);
    let mut wrong = read_wrong_caps(view)?;
    for _ in 1..CAP_READS_MAX {
        if wrong.is_empty() {
            break;
        }
        sleep(CAP_PAUSE);
        report("caps", 0);
        let now = read_wrong_caps(&store.snapshot()?)?;
        wrong.retain(|it| now.iter().any(|still| still.cap == it.cap));
    }
    Ok(wrong)
}

/// A cap whose parts do not add up.
struct WrongCap {
    cap: KeyCap,
    account: AccountId,
    what: String,
}

/// Rows between two progress reports.
pub const REPORT_ROWS: u64 = 10_000;

/// The rows of one kind read so far.
struct Count<'r> {
    what: &'static str,
    rows: u64,
    report: &'r mut dyn FnMut(&'static str, u64),
}

impl<'r> Count<'r> {
    fn of(what: &'static str, report: &'r mut dyn FnMut(&'static str, u64)) -> Count<'r> {
        report(what, 0);
        Count {
            what,
            rows: 0,
            report,
        }
    }

    fn row(&mut self) {
        self.rows += 1;
        if self.rows.is_multiple_of(REPORT_ROWS) {
            (self.report)(self.what, self.rows);
        }
    }
}
