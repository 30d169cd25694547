//! Reads of the audit: all operations, and the differences between the journal and the derived data.

use std::collections::HashMap;
use std::ops::ControlFlow;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, OperationId};

use super::caps;
use super::day_totals::DayTotals;
use super::tail::{self, each_record};
use crate::allotment::{AllotmentRow, CapShares};
use crate::audit_log::AuditRecord;
use crate::carry::{self, History, OpeningBalances, RecordDigest};
use crate::commit_id;
use crate::engine::{
    Accounts, DayRange, JournalRows, KeySet, Reading as _, RowError, Select, Sql, values,
};
use crate::entries::{Body, Entry, LedgerPart, Record};
use crate::error::ReadError;
use crate::journal::Packer;
use crate::plan::{PaymentRow, SubscriptionRow};
use crate::reader::{Reader, View};
use crate::rows::{AccountRow, OpenHold, PriceRow};
use crate::store::{BatchRows, OperationRows, Replayed};
use crate::tables;

/// Committed data at one instant, until the drop.
pub struct Snapshot<'r>(Box<dyn View + 'r>);

impl<'r> Snapshot<'r> {
    /// A snapshot of the present commits: the first read fixes the snapshot, not the start of the transaction.
    pub(super) fn begin(reader: &'r Reader) -> Result<Snapshot<'r>, ReadError> {
        let view = reader.connections.snapshot("a snapshot")?;
        let fixed = view.sql().number("SELECT count(*) FROM meta", values![]);
        fixed.map_err(|error| error.reading("a snapshot"))?;
        Ok(Snapshot(view))
    }

    /// Every version of every price.
    pub fn prices(&self, each: &mut dyn FnMut(PriceRow)) -> Result<(), ReadError> {
        (tables::prices::all(self.0.sql(), each)).map_err(|error| error.reading("prices"))
    }

    /// Every account.
    pub fn accounts(&self, each: &mut dyn FnMut(AccountRow)) -> Result<(), ReadError> {
        tail::accounts(self.0.sql(), Accounts::All, each).map_err(|error| error.reading("accounts"))
    }

    /// Every operation with any stored row, in no order.
    pub fn operations(&self, each: &mut dyn FnMut(OperationRows)) -> Result<(), ReadError> {
        Operations::walk(self.0.sql(), each).map_err(|error| error.reading("operations"))
    }

    /// Every node, with run and number of its last posted commit, if any.
    pub fn posted(&self, each: &mut dyn FnMut(i64, Option<(i64, i64)>)) -> Result<(), ReadError> {
        let mut mark = |node, posted| {
            let (_, epoch, number) = commit_id::numbers(posted);
            each(node, (posted != 0).then_some((epoch, number)));
        };
        (tables::marks::posted(self.0.sql(), &mut mark)).map_err(|error| error.reading("nodes"))
    }

    /// A node's parts of accounts, as of the node's last posting.
    pub fn allotments(
        &self,
        node: i64,
        each: &mut dyn FnMut(AllotmentRow),
    ) -> Result<(), ReadError> {
        (tables::allotment::of_node(self.0.sql(), node, each))
            .map_err(|error| error.reading("allotments"))
    }

    /// Every spending cap with parts of nodes.
    pub fn caps(&self, each: &mut dyn FnMut(CapShares)) -> Result<(), ReadError> {
        caps::shares(self.0.sql(), each).map_err(|error| error.reading("allotments of caps"))
    }

    /// Every account whose postings, usage totals or references differ from the journal.
    pub fn posting_differences(&self, each: &mut dyn FnMut(AccountId)) -> Result<(), ReadError> {
        posting_differences(self.0.sql(), each).map_err(|error| error.reading("postings"))
    }

    /// Every payment for the plan.
    pub fn payments(&self, each: &mut dyn FnMut(PaymentRow)) -> Result<(), ReadError> {
        (tables::plan::all_payments(self.0.sql(), each)).map_err(|error| error.reading("payments"))
    }

    /// Every subscription.
    pub fn subscriptions(&self, each: &mut dyn FnMut(SubscriptionRow)) -> Result<(), ReadError> {
        (tables::plan::all_subscriptions(self.0.sql(), each))
            .map_err(|error| error.reading("subscriptions"))
    }

    /// Every record of the audit log, by node and number.
    pub fn audit_log(&self, each: &mut dyn FnMut(AuditRecord)) -> Result<(), ReadError> {
        (tables::audit_log::all(self.0.sql(), each)).map_err(|error| error.reading("the audit log"))
    }

    /// The carried state of removed commits.
    pub fn carried(&self) -> Result<OpeningBalances, ReadError> {
        carry::read(self.0.sql()).map_err(|error| error.reading("carried rows"))
    }

    /// Replays the exported commits of all nodes from their first commit on, and compares the result with the carried state.
    ///
    /// # Errors
    ///
    /// The errors of `next`, and a commit that does not follow the previous commit or differs from its seal.
    pub fn replayed(
        &self,
        next: &mut dyn FnMut() -> Result<Option<BatchRows>, ReadError>,
    ) -> Result<Replayed, ReadError> {
        let mut history = History::default();
        let mut removed = HashMap::new();
        let marks = tables::carry::nodes(self.0.sql(), &mut |node| {
            removed.insert(node.node, node.last());
        });
        marks.map_err(|error| error.reading("carried rows"))?;
        while let Some(commit) = next()? {
            // A file of an interrupted run may have commits that are still in the journal.
            let place = (commit.seal.epoch, commit.seal.number);
            if removed
                .get(&commit.seal.node)
                .is_none_or(|last| place > *last)
            {
                continue;
            }
            (history.add(self.0.sql(), &commit))
                .map_err(|error| error.reading("exported commits"))?;
        }
        let (_, stored) =
            (tables::carry::number(self.0.sql())).map_err(|error| error.reading("carried rows"))?;
        Ok(Replayed {
            commits: history.nodes.values().map(|node| node.commits).sum(),
            is_carried: history.digest() == stored,
        })
    }

    /// Every commit of the journal, by node, epoch and number.
    pub fn batches(&self, each: &mut dyn FnMut(BatchRows)) -> Result<(), ReadError> {
        (tables::journal::commits(self.0.sql(), each)).map_err(|error| error.reading("seals"))
    }
}

/// Assembles operations from the journal, in the order of their ends; unfinished operations come last.
struct Operations {
    /// Every begun operation, to find a second start.
    begun: KeySet,
    open: HashMap<OperationId, Entry>,
    holds: HashMap<OperationId, OpenHold>,
}

impl Operations {
    fn walk(sql: &dyn Sql, each: &mut dyn FnMut(OperationRows)) -> Result<(), RowError> {
        let mut operations = Operations {
            begun: KeySet::new()?,
            open: HashMap::new(),
            holds: tail::open_holds(sql)?,
        };
        let walked = tables::journal::bodies(sql, JournalRows::All, &mut |_, body| {
            // Unreadable records show as a seal mismatch.
            let Ok(body) = Body::read(body) else {
                return Ok(());
            };
            let mut parts = body.records().map_while(|record| record.ok()?.part().ok());
            parts.try_for_each(|part| operations.part(&part, each))
        });
        if walked.is_ok() {
            operations.rest(each);
        }
        walked
    }

    fn part(
        &mut self,
        part: &LedgerPart,
        each: &mut dyn FnMut(OperationRows),
    ) -> Result<(), RowError> {
        let entry = Entry::of(part);
        let operation = part.operation();
        let ends = matches!(part, LedgerPart::Settle { .. } | LedgerPart::Release { .. });
        let is_duplicate = !ends && !self.begun.insert(operation.as_bytes())?;
        if let (LedgerPart::Hold { .. }, Some(entry), false) = (part, &entry, is_duplicate) {
            self.open.insert(operation, entry.clone());
            return Ok(());
        }
        let begun = ends.then(|| self.open.remove(&operation)).flatten();
        each(OperationRows {
            id: operation,
            entries: begun.into_iter().chain(entry).collect(),
            hold: None,
            usage: part.usage(),
            is_duplicate,
        });
        Ok(())
    }

    /// Unfinished operations, and holds without an operation.
    fn rest(mut self, each: &mut dyn FnMut(OperationRows)) {
        for (id, entry) in self.open.drain() {
            each(OperationRows {
                id,
                entries: vec![entry],
                hold: self.holds.remove(&id),
                usage: None,
                is_duplicate: false,
            });
        }
        for (id, hold) in self.holds.drain() {
            each(OperationRows {
                id,
                entries: Vec::new(),
                hold: Some(hold),
                usage: None,
                is_duplicate: false,
            });
        }
    }
}

/// The contents of the journal by account, less the contents of the derived tables.
type Digests = HashMap<AccountId, RecordDigest>;

/// Finds accounts whose postings, usage totals or references differ from the journal.
fn posting_differences(sql: &dyn Sql, each: &mut dyn FnMut(AccountId)) -> Result<(), RowError> {
    let mut digests = Digests::new();
    let Some(totals) = add_journal(sql, &mut digests)? else {
        // Unreadable records show as a seal mismatch.
        return Ok(());
    };
    compare_days(sql, &mut digests, &totals)?;
    // Removed records on pages count as if the records were in the journal.
    tables::carry::pages(sql, &mut |account, carried| {
        let digest = digests.entry(account).or_default();
        digest.records = digest.records.wrapping_add(carried.records);
        digest.sum = digest.sum.wrapping_add(carried.sum);
    })?;
    let mut wrong = subtract_pages(sql, &mut digests)?;
    tables::bookings::all(sql, &mut |booking| {
        let digest = digests.entry(booking.account).or_default();
        let booked = booked(
            booking.operation.as_bytes(),
            booking.kind,
            booking.amount.get(),
            booking.reference,
        );
        digest.add(booked.as_bytes(), -1);
    })?;
    let differing = digests
        .iter()
        .filter(|(_, digest)| **digest != RecordDigest::default());
    wrong.extend(differing.map(|(account, _)| *account));
    wrong.sort_unstable();
    wrong.dedup();
    wrong.into_iter().for_each(each);
    Ok(())
}

/// Adds the posted records and all bookings of the journal. Returns the usage of the posted records; `None` if a record is unreadable.
fn add_journal(sql: &dyn Sql, digests: &mut Digests) -> Result<Option<DayTotals>, RowError> {
    let mut packer = Packer::default();
    let mut totals = DayTotals::default();
    let mut added = Ok(());
    let mut add = |record: Record<'_>, is_posted: bool| {
        let digest = digests.entry(record.account()).or_default();
        if is_posted && record.is_owner_visible() {
            digest.add_record(&mut packer, &record, 1)?;
            if let (Some(used), Ok(())) = (record.part()?.usage(), &added) {
                added = totals.add(sql, &used);
            }
        }
        if let LedgerPart::Credit {
            operation,
            kind,
            amount,
            reference,
            ..
        } = record.part()?
        {
            let booked = booked(operation.as_bytes(), kind.code(), amount.get(), &reference);
            digest.add(booked.as_bytes(), 1);
        }
        Ok(())
    };
    let read =
        each_record(sql, JournalRows::Posted, &mut |_, record| add(record, true)).and_then(|()| {
            each_record(sql, JournalRows::Unposted, &mut |_, record| {
                add(record, false)
            })
        });
    match read {
        Err(RowError::Damaged(_)) => return Ok(None),
        other => other?,
    }
    added?;
    Ok(Some(totals))
}

/// Adds the usage totals of the journal, and subtracts the stored totals. Totals of a release without usage totals are derived at the next
/// start.
fn compare_days(sql: &dyn Sql, digests: &mut Digests, totals: &DayTotals) -> Result<(), RowError> {
    if !tables::marks::are_days_posted(sql)? {
        return Ok(());
    }
    for (account, day) in totals.each() {
        let digest = digests.entry(account).or_default();
        digest.add(format!("{day:?}").as_bytes(), 1);
    }
    tables::usage_days::read(sql, DayRange::Posted, &mut |account, day| {
        let digest = digests.entry(account).or_default();
        digest.add(format!("{day:?}").as_bytes(), -1);
    })
}

/// Subtracts the records of all pages. Returns the accounts of unreadable pages, and of pages with wrong times.
fn subtract_pages(sql: &dyn Sql, digests: &mut Digests) -> Result<Vec<AccountId>, RowError> {
    let mut packer = Packer::default();
    let mut wrong = Vec::new();
    tables::pages::all(sql, &mut |page| {
        let digest = digests.entry(page.account).or_default();
        let (mut at_min, mut at_max) = (Timestamp::MAX, Timestamp::MIN);
        let read = Body::read(page.body).and_then(|body| {
            body.records().try_for_each(|record| {
                let record = record?;
                at_min = at_min.min(record.at());
                at_max = at_max.max(record.at());
                digest.add_record(&mut packer, &record, -1)
            })
        });
        if read.is_err() || (at_min, at_max) != (page.at_min, page.at_max) {
            wrong.push(page.account);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(wrong)
}

fn booked(operation: &[u8; 16], kind: i64, amount: i64, reference: &str) -> String {
    format!("{operation:?} {kind} {amount} {reference}")
}
