//! The audit rules.
//!
//! Sums are 128 bits wide: a damaged row must show as a violation, not stop the audit.

use std::collections::{BTreeMap, HashMap};

use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_store::entries::{Body, Entry};
use tollgate_store::{
    AccountRow, AllotmentRow, AuditRecord, BatchRows, Contra, EntryKind, OpeningBalances,
    OperationRows, PaymentRow, PriceRow, SubscriptionRow,
};

use super::WrongCap;
use super::allotments::Allotments;
use super::audit_log::AuditLogChain;
use super::payments::Payments;
use super::{DerivedDifference, Report, Sums, Violation};

/// A running audit.
#[derive(Default)]
pub(crate) struct Check {
    report: Report,
    accounts: HashMap<AccountId, Summed>,
    contra: HashMap<Contra, i128>,
    /// By version.
    prices: HashMap<i64, Vec<PriceRow>>,
    available: i128,
    held: i128,
    usage_written_off: i128,
    /// By node: epoch, number and hash of the last seal.
    chain: BTreeMap<i64, (i64, i64, [u8; 32])>,
    payments: Payments,
    audit_log: AuditLogChain,
    allotments: Allotments,
    unreadable: bool,
}

/// The sums of an account's rows.
#[derive(Clone, Copy, Default)]
struct Summed {
    available: i128,
    held: i128,
    holds: i128,
    known: bool,
}

impl Check {
    /// Adds a version of a price. Visited before the operations at the version's price.
    pub(crate) fn price(&mut self, row: &PriceRow) {
        self.prices
            .entry(row.version)
            .or_default()
            .push(row.clone());
    }

    /// Adds the opening balances of removed commits. Visited before the following commits.
    pub(crate) fn carried(&mut self, carried: &OpeningBalances) {
        for node in &carried.nodes {
            let (epoch, number) = node.last();
            self.chain.insert(node.node, (epoch, number, node.hash));
            self.report.removed_commits += node.commits;
        }
        for sum in &carried.sums {
            let charged = i128::from(sum.charged.get());
            self.accounts.entry(sum.account).or_default().available -= charged;
            *self.contra.entry(Contra::Revenue).or_default() += charged;
            self.usage_written_off += i128::from(sum.written_off.get());
            self.allotments.carried(sum);
        }
        for (node, entry) in &carried.entries {
            self.allotments.entry(*node, entry, true);
        }
        if let Some(problem) = carried.problem {
            self.wrong(None, None, problem.to_owned());
        }
    }

    /// Checks one operation: the operation begins once, its end frees the held amount, and its charge is at most the cost of its usage. The
    /// rows also count towards their accounts.
    pub(crate) fn operation(&mut self, rows: &OperationRows) {
        self.report.operations += 1;
        for entry in &rows.entries {
            self.report.entries += 1;
            self.entry(entry);
        }
        if let Some(hold) = &rows.hold {
            self.report.open_holds += 1;
            self.accounts.entry(hold.account).or_default().holds += i128::from(hold.amount.get());
        }
        let open = rows.entries.iter().find(|entry| entry.phase() == 0);
        let end = rows.entries.iter().find(|entry| entry.phase() == 1);
        if rows.is_duplicate {
            let account = open.map(|open| open.account);
            let account = account.or(rows.usage.as_ref().map(|usage| usage.account));
            self.wrong(
                Some(rows.id),
                account,
                String::from("an operation that begins a second time"),
            );
        }
        self.ends_its_hold(rows.id, open, end);
        self.open_hold(rows, open, end);
        self.usage(rows);
        self.cost(rows, end.or(open));
    }

    /// Checks that a row is a complete double entry with the shape of its kind.
    fn entry(&mut self, entry: &Entry) {
        self.payments.entry(entry);
        let available = i128::from(entry.d_available.get());
        let held = i128::from(entry.d_held.get());
        let summed = self.accounts.entry(entry.account).or_default();
        // An allotment moves credit between a node and the shared balance. Both belong to the account.
        if entry.kind != EntryKind::Allotment {
            summed.available += available;
            summed.held += held;
            *self.contra.entry(entry.contra).or_default() -= available + held;
        }
        let shape = match entry.kind {
            EntryKind::Hold => held >= 0 && available == -held,
            EntryKind::Release => held <= 0 && available == -held,
            EntryKind::Settle => held <= 0 && available + held <= 0,
            EntryKind::Charge => held == 0 && available <= 0,
            EntryKind::TopUp | EntryKind::Grant | EntryKind::Refund => held == 0 && available > 0,
            EntryKind::Expiry => held == 0 && available < 0,
            EntryKind::Correction | EntryKind::Allotment => held == 0 && available != 0,
            _ => false,
        };
        if !shape || entry.contra != entry.kind.contra() {
            let what = format!(
                "a {:?} of {available} available and {held} held against {:?} is no entry that is ever made",
                entry.kind, entry.contra
            );
            self.wrong(Some(entry.operation), Some(entry.account), what);
        }
    }

    fn ends_its_hold(&mut self, id: OperationId, open: Option<&Entry>, end: Option<&Entry>) {
        let Some(end) = end else { return };
        match open {
            Some(open)
                if open.kind == EntryKind::Hold
                    && open.account == end.account
                    && i128::from(open.d_held.get()) == -i128::from(end.d_held.get()) => {}
            Some(open) => {
                let what = format!(
                    "a {:?} of {} held on `{}` ends a {:?} of {} held on `{}`",
                    end.kind, end.d_held, end.account, open.kind, open.d_held, open.account
                );
                self.wrong(Some(id), Some(end.account), what);
            }
            None => {
                let what = format!("a {:?} without a hold before it", end.kind);
                self.wrong(Some(id), Some(end.account), what);
            }
        }
    }

    /// A hold is open exactly while no entry resolves it.
    fn open_hold(&mut self, rows: &OperationRows, open: Option<&Entry>, end: Option<&Entry>) {
        let unresolved = open.filter(|open| open.kind == EntryKind::Hold && end.is_none());
        let what = match (unresolved, &rows.hold) {
            (None, None) => return,
            (Some(open), Some(hold))
                if (open.account, open.d_held) == (hold.account, hold.amount) =>
            {
                return;
            }
            (Some(_), Some(_)) => "the open hold is not what its entry says",
            (Some(_), None) => "a hold without an end that is not open",
            (None, Some(_)) => "an open hold that has ended, or never began",
        };
        let account = rows.hold.map(|hold| hold.account);
        let account = account.or(open.map(|open| open.account));
        self.wrong(Some(rows.id), account, what.to_owned());
    }

    /// A charge and its usage record are one record of the journal, so the two agree. The written-off amount may still be invalid.
    fn usage(&mut self, rows: &OperationRows) {
        let Some(usage) = &rows.usage else { return };
        self.report.usage += 1;
        self.usage_written_off += i128::from(usage.written_off.get());
        self.accounts.entry(usage.account).or_default();
        if usage.written_off < Micros::ZERO {
            let what = format!(
                "a usage record of {} and {} written off",
                usage.cost, usage.written_off
            );
            self.wrong(Some(rows.id), Some(usage.account), what);
        }
    }

    /// No account pays more than the cost of its usage at the price version of the hold. A smaller charge is no violation: an aborted
    /// request costs no request price, and a cached response only a fraction.
    fn cost(&mut self, rows: &OperationRows, last: Option<&Entry>) {
        let (Some(usage), Some(entry)) = (&rows.usage, last) else {
            return;
        };
        let versions = entry.price_version.and_then(|it| self.prices.get(&it));
        let mut versions = versions.into_iter().flatten();
        // A version from before the storage of versions cannot be checked.
        let Some(row) = versions.find(|row| row.model == usage.usage.model) else {
            return;
        };
        let due = row
            .price
            .charge(usage.usage.prompt_tokens, usage.usage.completion_tokens);
        self.report.priced += 1;
        let claimed = usage.cost.saturating_add(usage.written_off);
        if claimed > due {
            let what = format!(
                "{claimed} were asked for {} and {} tokens of `{}`, which cost {due} at price version {}",
                usage.usage.prompt_tokens,
                usage.usage.completion_tokens,
                usage.usage.model,
                row.version
            );
            self.wrong(Some(rows.id), Some(usage.account), what);
        }
    }

    /// Checks that a payment granted the booked credits. Runs after the last operation.
    pub(crate) fn payment(&mut self, row: &PaymentRow) {
        if let Some(what) = self.payments.payment(row) {
            self.wrong(None, Some(row.account), what);
        }
    }

    /// Checks that no account has more plan time than paid for. Runs after the last payment.
    pub(crate) fn subscription(&mut self, row: &SubscriptionRow) {
        if let Some(what) = self.payments.subscription(row) {
            self.wrong(None, Some(row.account), what);
        }
    }

    /// Checks one account: the balances are the sums of its entries and of its open holds, and within its credit limit. Runs after the last
    /// operation.
    pub(crate) fn account(&mut self, account: &AccountRow) {
        if let Some(what) = self.payments.account(account) {
            self.wrong(None, Some(account.id), what);
        }
        self.report.accounts += 1;
        let summed = self.accounts.entry(account.id).or_default();
        summed.known = true;
        let summed = *summed;
        self.available += i128::from(account.available.get());
        self.held += i128::from(account.held.get());
        let stored = (
            i128::from(account.available.get()),
            i128::from(account.held.get()),
        );
        if stored != (summed.available, summed.held) {
            self.report.derived_differences.push(DerivedDifference {
                account: account.id,
                available_stored: account.available,
                available_summed: narrow(summed.available),
                held_stored: account.held,
                held_summed: narrow(summed.held),
            });
            let what = format!(
                "{} available and {} held are stored, the entries add up to {} and {}",
                account.available,
                account.held,
                narrow(summed.available),
                narrow(summed.held)
            );
            self.wrong(None, Some(account.id), what);
        }
        if stored.1 != summed.holds {
            let what = format!(
                "{} are held, the open holds add up to {}",
                account.held,
                narrow(summed.holds)
            );
            self.wrong(None, Some(account.id), what);
        }
        if stored.1 < 0 || stored.0 < -i128::from(account.credit_limit.get()) {
            let what = format!(
                "{} available and {} held go below the credit limit of {}",
                account.available, account.held, account.credit_limit
            );
            self.wrong(None, Some(account.id), what);
        }
    }

    /// Adds a node, with its last posted commit. Runs before the first commit. Returns the node if the node has allotments.
    pub(crate) fn node(&mut self, node: i64, posted: Option<(i64, i64)>) -> Option<i64> {
        self.allotments.posted(node, posted)
    }

    /// Checks a node's allotment of an account: the allotment is the sum of the node's entries, and not below zero. Runs after the last
    /// commit.
    pub(crate) fn allotment(&mut self, node: i64, row: &AllotmentRow) {
        if let Some(what) = self.allotments.row(node, row) {
            self.wrong(None, Some(row.account), what);
        }
    }

    /// Checks allotments without a stored row. Runs after the last stored allotment.
    pub(crate) fn allotments_end(&mut self) {
        for (account, what) in self.allotments.rest() {
            self.wrong(None, Some(account), what);
        }
    }

    /// Adds a problem of a key's cap. The counted spending differs from the charges, a node has spent more than granted, or the grants
    /// exceed the cap.
    pub(super) fn wrong_cap(&mut self, cap: WrongCap) {
        self.wrong(None, Some(cap.account), cap.what);
    }

    /// Checks that the journal has a node's last posted commit. Runs after the last commit.
    pub(crate) fn posted(&mut self, node: i64, posted: Option<(i64, i64)>) {
        let last = self
            .chain
            .get(&node)
            .map(|(epoch, number, _)| (*epoch, *number));
        if posted > last {
            let what = format!("node {node} has posted a commit that is not in the journal");
            self.wrong(None, None, what);
        }
    }

    /// Adds an account whose postings or references differ from the journal. The owner of the account sees wrong data.
    pub(crate) fn posting_differences(&mut self, account: AccountId) {
        let what = String::from("its postings or references are not what the journal says");
        self.wrong(None, Some(account), what);
    }

    /// Checks one commit: the seal follows the previous seal, and matches the content.
    pub(crate) fn batch(&mut self, rows: &BatchRows) {
        let seal = &rows.seal;
        let (node, epoch, number) = (seal.node, seal.epoch, seal.number);
        let name = format!("commit {number} of node {node}, run {epoch}");
        self.report.seals += 1;
        self.allotments.batch(rows);
        if seal.entries == 0
            && let Ok(body) = Body::read(&rows.body)
        {
            let note = body.note().map(str::to_owned);
            self.report.repairs.extend(note);
        }
        let last = self.chain.insert(node, (epoch, number, seal.hash));
        let (expected, previous) = match last {
            Some((last_epoch, last, hash)) if last_epoch == epoch => (last + 1, hash),
            Some((_, _, hash)) => (1, hash),
            None => (1, [0; 32]),
        };
        if number != expected || seal.previous != previous {
            self.wrong(
                None,
                None,
                format!("{name} does not follow the one before it"),
            );
        }
        let what = match seal.reseal(&rows.body) {
            Ok(made) if made == *seal => return,
            Ok(made) => format!(
                "{name} was sealed over {} entries that are not the {} found",
                seal.entries, made.entries
            ),
            Err(error) => {
                self.unreadable = true;
                // An unreadable commit that matches its seal is from another release. Otherwise the commit is damaged.
                let damage = match seal.covers(&rows.body) {
                    true => "",
                    false => "does not match its seal: it ",
                };
                format!("{name} {damage}{error}")
            }
        };
        self.wrong(None, None, what);
    }

    /// Checks one record of the audit log: the record follows the previous record, and has the hash of its content.
    pub(crate) fn audit_record(&mut self, record: &AuditRecord) {
        self.report.audit_records += 1;
        if let Some(what) = self.audit_log.next(record) {
            self.wrong(None, None, what);
        }
    }

    /// Whether a commit is unreadable.
    pub(crate) fn has_unreadable(&self) -> bool {
        self.unreadable
    }

    /// The report. Accounts that appear only in entries are added last.
    pub(crate) fn report(mut self) -> Report {
        let mut unknown: Vec<AccountId> = self
            .accounts
            .iter()
            .filter(|(_, summed)| !summed.known)
            .map(|(account, _)| *account)
            .collect();
        unknown.sort_unstable();
        for account in unknown {
            let what = String::from("has ledger rows but is not an account");
            self.wrong(None, Some(account), what);
        }
        let payments = std::mem::take(&mut self.payments);
        self.report.paid = payments.paid;
        for (account, reference) in payments.rest() {
            let what = format!("credits are booked as `{reference}` without a payment");
            self.wrong(None, Some(account), what);
        }
        let contra = |side| narrow(self.contra.get(&side).copied().unwrap_or(0));
        self.report.sums = Sums {
            sold: contra(Contra::Outside),
            spent: contra(Contra::Revenue),
            granted: contra(Contra::Granted),
            written_off: contra(Contra::WriteOff),
            expired: contra(Contra::Expiry),
            corrected: contra(Contra::Correction),
            held: narrow(self.held),
            available: narrow(self.available),
        };
        let total = self.contra.values().sum::<i128>() + self.held + self.available;
        if total != 0 {
            let what = format!("the totals add up to {} and not to zero", narrow(total));
            self.wrong(None, None, what);
        }
        self.report.usage_written_off = narrow(self.usage_written_off);
        self.report
    }

    fn wrong(&mut self, operation: Option<OperationId>, account: Option<AccountId>, what: String) {
        self.report.add(Violation {
            operation,
            account,
            what,
        });
    }
}

/// A sum for display, clamped to the range of an amount.
fn narrow(sum: i128) -> Micros {
    Micros::new(sum.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64)
}
