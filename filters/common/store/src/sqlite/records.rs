//! What the owner of an account sees of the journal: their postings, and what has not been posted yet.
//!
//! A posting says when its first and its last record were made, so that a reader leaves alone what lies outside the time asked for. The
//! records of one posting may be older than some of the posting before: times are handed in by callers.

use rusqlite::{Connection, params};
use tollgate_money::{AccountId, OperationId};

use super::failure::RowError;
use super::journal;
use crate::books::{Body, Broken, LedgerPart, Record};

/// An instant and an operation: the place of a record in the order of time.
pub(crate) type Place = (i64, OperationId);

/// Whose records, and which.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) account: AccountId,
    /// Unix microseconds; none before it.
    pub(crate) from: i64,
    /// Unix microseconds; none at it or after it.
    pub(crate) to: i64,
}

impl Wanted {
    fn takes(&self, record: &Record<'_>) -> bool {
        record.account() == self.account
            && (self.from..self.to).contains(&record.at())
            && record.is_seen_by_owner()
    }

    /// Hands over every record, in no order.
    pub(crate) fn each(
        &self,
        connection: &Connection,
        each: &mut dyn FnMut(LedgerPart),
    ) -> Result<(), RowError> {
        self.unposted(connection, &mut |_, part| each(part))?;
        let mut statement = connection.prepare_cached(
            "SELECT body FROM postings WHERE account_id = ?1 AND at_max >= ?2 AND at_min < ?3",
        )?;
        let mut rows = statement.query(params![self.account.as_bytes(), self.from, self.to])?;
        while let Some(row) = rows.next()? {
            self.posting(row.get_ref(0)?.as_blob()?, &mut |_, part| each(part))?;
        }
        Ok(())
    }

    /// The newest `limit` records that `wanted` takes, newest first.
    pub(crate) fn newest(
        &self,
        connection: &Connection,
        limit: usize,
        wanted: &dyn Fn(Place, &LedgerPart) -> bool,
    ) -> Result<Vec<LedgerPart>, RowError> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let mut found = Kept::new(limit, |one, other| other.cmp(one));
        self.unposted(connection, &mut |place, part| {
            found.offer(wanted, place, part);
        })?;
        let mut statement = connection.prepare_cached(
            "SELECT body, at_max FROM postings WHERE account_id = ?1 AND at_max >= ?2 AND at_min < ?3 ORDER BY at_max DESC, id DESC",
        )?;
        let mut rows = statement.query(params![self.account.as_bytes(), self.from, self.to])?;
        while let Some(row) = rows.next()? {
            // All that follow end no later than this one.
            let at_max: i64 = row.get(1)?;
            if found.last().is_some_and(|(at, _)| at_max < at) {
                break;
            }
            self.posting(row.get_ref(0)?.as_blob()?, &mut |place, part| {
                found.offer(wanted, place, part);
            })?;
        }
        Ok(found.parts())
    }

    /// The oldest `limit` records that `wanted` takes, oldest first.
    pub(crate) fn oldest(
        &self,
        connection: &Connection,
        limit: usize,
        wanted: &dyn Fn(Place, &LedgerPart) -> bool,
    ) -> Result<Vec<LedgerPart>, RowError> {
        let mut found = Kept::new(limit, Place::cmp);
        let mut statement = connection.prepare_cached(
            "SELECT body, at_min FROM postings WHERE account_id = ?1 AND at_max >= ?2 AND at_min < ?3 ORDER BY at_max, id",
        )?;
        let mut rows = statement.query(params![self.account.as_bytes(), self.from, self.to])?;
        while let Some(row) = rows.next()? {
            // One of those that follow may begin before what has been found, although it ends later.
            let at_min: i64 = row.get(1)?;
            if found.last().is_some_and(|(at, _)| at_min > at) {
                continue;
            }
            self.posting(row.get_ref(0)?.as_blob()?, &mut |place, part| {
                found.offer(wanted, place, part);
            })?;
        }
        drop(rows);
        self.unposted(connection, &mut |place, part| {
            found.offer(wanted, place, part);
        })?;
        Ok(found.parts())
    }

    fn unposted(
        &self,
        connection: &Connection,
        each: &mut dyn FnMut(Place, LedgerPart),
    ) -> Result<(), RowError> {
        journal::unposted(connection, &mut |_, record| {
            if self.takes(&record) {
                each((record.at(), record.operation()), record.part()?);
            }
            Ok(())
        })
    }

    fn posting(
        &self,
        body: &[u8],
        each: &mut dyn FnMut(Place, LedgerPart),
    ) -> Result<(), RowError> {
        let broken = |broken: Broken| {
            RowError::Damaged(format!("a posting of account `{}` {broken}", self.account))
        };
        for record in Body::read(body).map_err(broken)?.records() {
            let record = record.map_err(broken)?;
            if self.takes(&record) {
                let part = record.part().map_err(broken)?;
                each((record.at(), record.operation()), part);
            }
        }
        Ok(())
    }
}

/// The first `limit` in some order of what is offered.
struct Kept<C> {
    limit: usize,
    order: C,
    parts: Vec<(Place, LedgerPart)>,
}

impl<C: Fn(&Place, &Place) -> std::cmp::Ordering> Kept<C> {
    fn new(limit: usize, order: C) -> Kept<C> {
        Kept {
            limit,
            order,
            parts: Vec::new(),
        }
    }

    fn offer(
        &mut self,
        wanted: &dyn Fn(Place, &LedgerPart) -> bool,
        place: Place,
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
        // Stable: of two with the same place the first offered comes first.
        self.parts
            .sort_by(|(one, _), (other, _)| (self.order)(one, other));
        self.parts.truncate(self.limit);
    }

    /// The place of the last one, once there are as many as wanted.
    fn last(&mut self) -> Option<Place> {
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
