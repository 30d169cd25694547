//! Queries of an account's journal records: its postings and its unposted records.
//!
//! A posting stores the times of its first and its last record: a reader skips postings outside the requested time. Records of a posting
//! may be older than records of the previous posting, since callers pass the times in.

use std::ops::ControlFlow;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, OperationId};

use super::tail::each_record;
use crate::engine::{JournalRows, PageOrder, PageRange, RowError, Sql};
use crate::entries::{Body, DecodeError, LedgerPart, Record};
use crate::tables;

/// An instant and an operation: the position of a record in the order of time.
pub(crate) type Position = (Timestamp, OperationId);

/// Account and filter of a query.
#[derive(Clone, Copy)]
pub(crate) struct RecordQuery {
    pub(crate) account: AccountId,
    /// Inclusive.
    pub(crate) from: Timestamp,
    /// Exclusive.
    pub(crate) to: Timestamp,
}

impl RecordQuery {
    fn takes(&self, record: &Record<'_>) -> bool {
        record.account() == self.account
            && (self.from..self.to).contains(&record.at())
            && record.is_owner_visible()
    }

    /// Visits every record, in no order.
    pub(crate) fn each(
        &self,
        sql: &dyn Sql,
        each: &mut dyn FnMut(LedgerPart),
    ) -> Result<(), RowError> {
        self.each_unposted(sql, &mut |_, part| each(part))?;
        self.each_posted(sql, each)
    }

    /// Visits every posted record, in no order.
    pub(crate) fn each_posted(
        &self,
        sql: &dyn Sql,
        each: &mut dyn FnMut(LedgerPart),
    ) -> Result<(), RowError> {
        tables::pages::of_account(sql, self.pages(PageOrder::None), &mut |page| {
            self.posting(page.body, &mut |_, part| each(part))?;
            Ok(ControlFlow::Continue(()))
        })
    }

    /// The newest `limit` records that `wanted` accepts, newest first.
    pub(crate) fn newest(
        &self,
        sql: &dyn Sql,
        limit: usize,
        wanted: &dyn Fn(Position, &LedgerPart) -> bool,
    ) -> Result<Vec<LedgerPart>, RowError> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let mut found = FirstN::new(limit, |one, other| other.cmp(one));
        self.each_unposted(sql, &mut |place, part| {
            found.offer(wanted, place, part);
        })?;
        tables::pages::of_account(sql, self.pages(PageOrder::NewestFirst), &mut |page| {
            // Every following page ends no later than this page.
            if found.last().is_some_and(|(at, _)| page.at_max < at) {
                return Ok(ControlFlow::Break(()));
            }
            self.posting(page.body, &mut |place, part| {
                found.offer(wanted, place, part)
            })?;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found.parts())
    }

    /// The oldest `limit` records that `wanted` accepts, oldest first.
    pub(crate) fn oldest(
        &self,
        sql: &dyn Sql,
        limit: usize,
        wanted: &dyn Fn(Position, &LedgerPart) -> bool,
    ) -> Result<Vec<LedgerPart>, RowError> {
        let mut found = FirstN::new(limit, Position::cmp);
        tables::pages::of_account(sql, self.pages(PageOrder::OldestFirst), &mut |page| {
            // A following page may start before the found records, although the page ends later.
            if found.last().is_some_and(|(at, _)| page.at_min > at) {
                return Ok(ControlFlow::Continue(()));
            }
            self.posting(page.body, &mut |place, part| {
                found.offer(wanted, place, part)
            })?;
            Ok(ControlFlow::Continue(()))
        })?;
        self.each_unposted(sql, &mut |place, part| {
            found.offer(wanted, place, part);
        })?;
        Ok(found.parts())
    }

    fn pages(&self, order: PageOrder) -> PageRange {
        PageRange {
            account: self.account,
            from: self.from,
            to: self.to,
            order,
        }
    }

    /// Visits every unposted record.
    pub(crate) fn each_unposted(
        &self,
        sql: &dyn Sql,
        each: &mut dyn FnMut(Position, LedgerPart),
    ) -> Result<(), RowError> {
        each_record(sql, JournalRows::Unposted, &mut |_, record| {
            if self.takes(&record) {
                each((record.at(), record.operation()), record.part()?);
            }
            Ok(())
        })
    }

    fn posting(
        &self,
        body: &[u8],
        each: &mut dyn FnMut(Position, LedgerPart),
    ) -> Result<(), RowError> {
        let decode_error = |decode_error: DecodeError| {
            RowError::Damaged(format!(
                "a posting of account `{}` {decode_error}",
                self.account
            ))
        };
        for record in Body::read(body).map_err(decode_error)?.records() {
            let record = record.map_err(decode_error)?;
            if self.takes(&record) {
                let part = record.part().map_err(decode_error)?;
                each((record.at(), record.operation()), part);
            }
        }
        Ok(())
    }
}

/// The first `limit` of the offered records in a given order.
struct FirstN<C> {
    limit: usize,
    order: C,
    parts: Vec<(Position, LedgerPart)>,
}

impl<C: Fn(&Position, &Position) -> std::cmp::Ordering> FirstN<C> {
    fn new(limit: usize, order: C) -> FirstN<C> {
        FirstN {
            limit,
            order,
            parts: Vec::new(),
        }
    }

    fn offer(
        &mut self,
        wanted: &dyn Fn(Position, &LedgerPart) -> bool,
        place: Position,
        part: LedgerPart,
    ) {
        if !wanted(place, &part) {
            return;
        }
        self.parts.push((place, part));
        if self.parts.len() > self.limit.saturating_mul(2).max(64) {
            self.cut();
        }
    }

    fn cut(&mut self) {
        // Stable: of two parts at equal positions the first offered part comes first.
        self.parts
            .sort_by(|(one, _), (other, _)| (self.order)(one, other));
        self.parts.truncate(self.limit);
    }

    /// The position of the last part, once there are `limit` parts.
    fn last(&mut self) -> Option<Position> {
        if self.parts.len() < self.limit {
            return None;
        }
        self.cut();
        self.parts.last().map(|(place, _)| *place)
    }

    fn parts(mut self) -> Vec<LedgerPart> {
        self.cut();
        self.parts.into_iter().map(|(_, part)| part).collect()
    }
}
