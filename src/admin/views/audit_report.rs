//! The result of an audit.

use schemars::JsonSchema;
use serde::Serialize;
use tollgate_ledger::audit::Report;

use super::Credits;

/// The result of an audit of the books.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AuditReport")]
pub(crate) struct AuditReportView {
    /// Whether there is no violation.
    clean: bool,
    accounts: u64,
    operations: u64,
    /// Ledger entries.
    entries: u64,
    /// Usage records.
    usage: u64,
    /// Charges that were calculated again from their tokens and prices.
    priced: u64,
    open_holds: u64,
    /// Links of the journal's hash chain.
    seals: u64,
    /// Commits that retention has exported and removed.
    removed_commits: u64,
    /// Records of the audit log.
    audit_records: u64,
    plan: PlanPayments,
    sums: LedgerSums,
    /// Credits of usage that was not charged.
    usage_written_off: Credits,
    /// What `tollgate repair` has done to these books.
    repairs: Vec<String>,
    violations_count: u64,
    /// The first of them.
    violations: Vec<ViolationView>,
}

/// Payments for the plan, and their total in cents.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PlanPayments {
    x402: u64,
    x402_cents: i64,
    paypal: u64,
    paypal_cents: i64,
    returned: u64,
}

/// Credits by what became of them, over all accounts.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct LedgerSums {
    sold: Credits,
    granted: Credits,
    spent: Credits,
    written_off: Credits,
    expired: Credits,
    corrected: Credits,
    held: Credits,
    available: Credits,
    /// 0 in books that balance.
    total: Credits,
}

/// What is wrong in the books.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Violation")]
pub(crate) struct ViolationView {
    operation: Option<String>,
    account: Option<String>,
    what: String,
}

impl AuditReportView {
    /// The view of a report.
    pub(crate) fn of(report: &Report) -> AuditReportView {
        let (sums, paid) = (&report.sums, &report.paid);
        let violations = report.violations.iter().map(|one| ViolationView {
            operation: one.operation.map(|id| id.to_string()),
            account: one.account.map(|id| id.to_string()),
            what: one.what.clone(),
        });
        AuditReportView {
            clean: report.clean(),
            accounts: report.accounts,
            operations: report.operations,
            entries: report.entries,
            usage: report.usage,
            priced: report.priced,
            open_holds: report.open_holds,
            seals: report.seals,
            removed_commits: report.removed_commits,
            audit_records: report.audit_records,
            plan: PlanPayments {
                x402: paid.x402,
                x402_cents: paid.x402_amount.cents(),
                paypal: paid.paypal,
                paypal_cents: paid.paypal_amount.cents(),
                returned: paid.returned,
            },
            sums: LedgerSums {
                sold: sums.sold.into(),
                granted: sums.granted.into(),
                spent: sums.spent.into(),
                written_off: sums.written_off.into(),
                expired: sums.expired.into(),
                corrected: sums.corrected.into(),
                held: sums.held.into(),
                available: sums.available.into(),
                total: sums.total().into(),
            },
            usage_written_off: report.usage_written_off.into(),
            repairs: report.repairs.clone(),
            violations_count: report.violations_count,
            violations: violations.collect(),
        }
    }
}
