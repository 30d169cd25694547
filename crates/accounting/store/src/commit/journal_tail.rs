//! The unposted tail of the write-ahead journal, in the writer's memory: open holds, started operations, and balances.
//!
//! The tail checks every decision about a hold or an operation a second time, independent of the calling code. An operation starts once,
//! a hold ends once, no balance drops below its limit. From time to time all accumulated changes are posted: balances, open holds, and
//! the journal pages that owners see. A posting costs some rows per account, not one row per request.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;

use tollgate_clock::{Month, Timestamp};
use tollgate_money::{AccountId, CredentialId, IdHasher, Micros, OperationId};

use super::posted_balances::PostedBalances;
use super::posting_schedule::PostingSchedule;
use super::recent_operations::RecentOperations;
use crate::allotment::KeySpending;
use crate::carry::OpeningRow;
use crate::commit_id;
use crate::engine::{Balance, JournalRows, Page, RowError, Sql, WriteError, damaged_commit};
use crate::entries::{self, Body, DecodeError, LedgerPart, Record};
use crate::journal::Packer;
use crate::reads::{BalanceDelta, DayTotals};
use crate::rows::OpenHold;
use crate::tables;
use crate::unit::LoadedAccount;

/// A postings row has about this fraction of the maximum number of records posted at once: 512 records. A query for the newest records
/// then does not read thousands. The engine also has memory for the row; otherwise the system would supply this memory page by page,
/// while commits wait.
const ROWS: usize = 128;

type Ids<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

pub(crate) struct JournalTail {
    node: i64,
    schedule: PostingSchedule,
    /// Balances as of the last commit, of the accounts with changes in the tail.
    accounts: Ids<AccountId, Balance>,
    /// Balances of other accounts: an account used again is not read again. Only postings of this node change these rows.
    posted: PostedBalances,
    /// Keys with a cap row of this node, in a cluster. The cap row counts the charges of the key.
    capped: HashSet<CredentialId, BuildHasherDefault<IdHasher>>,
    open: Ids<OperationId, Open>,
    /// Posted holds that have ended since.
    ended: Vec<OperationId>,
    recent: RecentOperations,
    buffer: TailBuffer,
    packer: Packer,
    page: Vec<u8>,
    undo: Vec<Undo>,
}

/// The journal since the last posting. This memory is the larger part of a posting's memory, and is reused for the next posting. The
/// system has to clear newly allocated memory page by page, while commits wait.
#[derive(Default)]
struct TailBuffer {
    bodies: Vec<u8>,
    rows: Vec<TailRow>,
    records: usize,
}

/// A row of the journal.
#[derive(Clone, Copy, Debug)]
struct TailRow {
    id: i64,
    /// The end of the row's body.
    end: usize,
}

/// A record visible to its owner.
struct VisibleRecord<'b> {
    account: AccountId,
    /// The record's journal row.
    row: i64,
    record: Record<'b>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    hold: OpenHold,
    posted: bool,
}

/// The undo log of a unit.
enum Undo {
    Started(OperationId),
    Opened(OperationId),
    Ended(Open),
}

impl JournalTail {
    /// Loads the unposted remainder of the previous run.
    pub(crate) fn load(
        sql: &dyn Sql,
        node: i64,
        records_max: usize,
    ) -> Result<JournalTail, RowError> {
        let mut tail = JournalTail::new(node, records_max);
        tables::holds::posted(sql, &mut |hold| {
            // Other nodes resolve their own holds.
            if hold.node == node {
                let posted = true;
                tail.open.insert(hold.operation, Open { hold, posted });
            }
        })?;
        tail.recent = RecentOperations::load(sql, node)?;
        if commit_id::has_allotments(node) {
            tables::allotment::caps_of_node(sql, node, &mut |row| {
                tail.count_cap_of(row.cap.credential)
            })?;
        }
        tables::journal::bodies(sql, JournalRows::UnpostedOfNode(node), &mut |id, body| {
            tail.replay_row(sql, id, body)
        })?;
        Ok(tail)
    }

    /// Rebuilds all posted data from a node's journal, in the open transaction, after the previous data was deleted.
    pub(crate) fn rebuild(sql: &dyn Sql, node: i64, records_max: usize) -> Result<(), WriteError> {
        let mut tail = JournalTail::new(node, records_max);
        tail.replay_sums(sql)?;
        let mut error = None;
        let read = tables::journal::bodies(sql, JournalRows::OfNode(node), &mut |id, body| {
            tail.replay_row(sql, id, body)?;
            if error.is_none() && tail.schedule.is_full(tail.buffer.records) {
                error = tail.post(sql).err();
            }
            Ok(())
        });
        match error {
            Some(error) => return Err(error),
            None => read?,
        }
        tail.post(sql)
    }

    /// Number of records from which on a posting is due, for any number of accounts.
    pub(crate) fn records_max(&self) -> usize {
        self.schedule.records_max
    }

    fn new(node: i64, records_max: usize) -> JournalTail {
        JournalTail {
            node,
            schedule: PostingSchedule::new(records_max),
            accounts: Ids::default(),
            posted: PostedBalances::default(),
            capped: HashSet::default(),
            open: Ids::default(),
            ended: Vec::new(),
            recent: RecentOperations::default(),
            buffer: TailBuffer::default(),
            packer: Packer::default(),
            page: Vec::new(),
            undo: Vec::new(),
        }
    }

    /// Adds the sums of the node's removed records.
    fn replay_sums(&mut self, sql: &dyn Sql) -> Result<(), RowError> {
        let mut sums = Vec::new();
        tables::carry::all(sql, &mut |row| match row {
            OpeningRow::Sum(sum) if sum.node == self.node => sums.push(sum),
            _ => {}
        })?;
        for sum in sums {
            if let Some(state) = self.account_state(sql, sum.account)? {
                let changed = sum.allotted.get().wrapping_sub(sum.charged.get());
                state.available = state.available.wrapping_add(changed);
            }
        }
        Ok(())
    }

    /// Adds a row of an earlier commit.
    fn replay_row(&mut self, sql: &dyn Sql, id: i64, bytes: &[u8]) -> Result<(), RowError> {
        let decode_error = damaged_commit(id);
        let body = Body::read(bytes).map_err(&decode_error)?;
        let mut records = 0;
        for record in body.records() {
            let part = record
                .and_then(|record| record.part())
                .map_err(&decode_error)?;
            records += 1;
            self.owner(part.account());
            match part {
                LedgerPart::Hold { .. } => {
                    let (node, epoch, _) = commit_id::numbers(id);
                    self.insert_hold(&part, node, epoch);
                }
                LedgerPart::Settle { operation, .. } | LedgerPart::Release { operation, .. } => {
                    if let Some(open) = self.open.remove(&operation)
                        && open.posted
                    {
                        self.ended.push(operation);
                    }
                }
                _ => {}
            }
            let Some(entry) = entries::Entry::of(&part) else {
                continue;
            };
            // The audit reports entries without an account.
            if let Some(state) = self.account_state(sql, entry.account)? {
                state.available = state.available.wrapping_add(entry.d_available.get());
                state.held = state.held.wrapping_add(entry.d_held.get());
                state.at = state.at.max(entry.at);
            }
        }
        self.push_row(id, bytes, records);
        Ok(())
    }

    fn insert_hold(&mut self, part: &LedgerPart, node: i64, epoch: i64) {
        if let LedgerPart::Hold {
            operation,
            account,
            amount,
            at,
            expires_at,
            ..
        } = *part
        {
            let hold = OpenHold {
                operation,
                account,
                amount,
                node,
                epoch,
                created_at: at,
                expires_at,
            };
            let posted = false;
            self.open.insert(operation, Open { hold, posted });
        }
    }

    /// Starts an operation; `false` when the operation was started before.
    pub(crate) fn begin(&mut self, operation: OperationId) -> bool {
        let begun = !self.open.contains_key(&operation) && self.recent.insert(operation);
        if begun {
            self.undo.push(Undo::Started(operation));
        }
        begun
    }

    /// Records the hold of an operation that was just started.
    pub(crate) fn hold(&mut self, part: &LedgerPart, epoch: i64) {
        self.insert_hold(part, self.node, epoch);
        if let LedgerPart::Hold { operation, .. } = *part {
            self.undo.push(Undo::Opened(operation));
        }
    }

    /// Ends a hold; `false` without an open hold of this account and amount.
    pub(crate) fn end(
        &mut self,
        operation: OperationId,
        account: AccountId,
        amount: Micros,
    ) -> bool {
        match self.open.get(&operation) {
            Some(open) if (open.hold.account, open.hold.amount) == (account, amount) => {}
            _ => return false,
        }
        if let Some(open) = self.open.remove(&operation) {
            if open.posted {
                self.ended.push(operation);
            }
            // The operation may have started long ago, and has to be remembered for a while longer.
            self.recent.insert(operation);
            self.undo.push(Undo::Ended(open));
        }
        true
    }

    /// The current position of the undo log, for [`JournalTail::rewind`].
    pub(crate) fn mark(&self) -> usize {
        self.undo.len()
    }

    /// Undoes the entries of the undo log since `mark`.
    pub(crate) fn rewind(&mut self, mark: usize) {
        while self.undo.len() > mark {
            match self.undo.pop() {
                Some(Undo::Started(operation)) => self.recent.forget(operation),
                Some(Undo::Opened(operation)) => {
                    self.open.remove(&operation);
                }
                Some(Undo::Ended(open)) => {
                    if open.posted {
                        self.ended.pop();
                    }
                    self.open.insert(open.hold.operation, open);
                }
                None => {}
            }
        }
    }

    /// Clears the undo log.
    pub(crate) fn begin_batch(&mut self) {
        self.undo.clear();
    }

    fn account_state(
        &mut self,
        sql: &dyn Sql,
        account: AccountId,
    ) -> Result<Option<&mut Balance>, RowError> {
        let place = match self.accounts.entry(account) {
            Entry::Occupied(state) => return Ok(Some(state.into_mut())),
            Entry::Vacant(place) => place,
        };
        let mut posted = self.posted.take(account);
        if posted.is_none() {
            tables::loaded::balances(sql, self.node, &[account], &mut |_, state| {
                posted = Some(state)
            })?;
        }
        Ok(posted.map(|state| place.insert(state)))
    }

    /// Reads the missing balances of the accounts that a commit may change, in one query. A query per account would cost a message to the
    /// server per account.
    pub(crate) fn read_posted(
        &mut self,
        sql: &dyn Sql,
        accounts: impl Iterator<Item = AccountId>,
    ) -> Result<(), RowError> {
        let is_here = |account: &AccountId| {
            self.accounts.contains_key(account) || self.posted.contains(*account)
        };
        let mut missing: Vec<AccountId> = accounts.filter(|account| !is_here(account)).collect();
        missing.sort_unstable();
        missing.dedup();
        let mut found = Vec::with_capacity(missing.len());
        tables::loaded::balances(sql, self.node, &missing, &mut |account, state| {
            found.push((account, state));
        })?;
        self.posted.put(found);
        Ok(())
    }

    /// An account as of the last commit, computed from its posted state. The tail does not keep the account: the tail keeps only accounts
    /// with changes in the tail.
    pub(crate) fn with_tail(&self, account: AccountId, mut posted: LoadedAccount) -> LoadedAccount {
        if let Some(state) = self.accounts.get(&account) {
            posted.available = Micros::new(state.available);
            posted.held = Micros::new(state.held);
        }
        posted
    }

    /// Changes both fields of an account by the decisions of one commit.
    pub(crate) fn apply_delta(
        &mut self,
        sql: &dyn Sql,
        account: AccountId,
        by: BalanceDelta,
    ) -> Result<(), WriteError> {
        let Some(state) = self.account_state(sql, account)? else {
            return Err(WriteError::Inconsistent(format!(
                "account `{account}` does not exist"
            )));
        };
        let available = state.available.checked_add(by.available);
        let held = state.held.checked_add(by.held);
        match (available, held) {
            (Some(available), Some(held)) if held >= 0 && available >= -state.credit_limit => {
                (state.available, state.held) = (available, held);
                state.at = state.at.max(by.at);
                Ok(())
            }
            _ => Err(WriteError::Inconsistent(format!(
                "account `{account}` would go below its credit limit"
            ))),
        }
    }

    /// Records the account of one journal record.
    pub(crate) fn owner(&mut self, account: AccountId) {
        self.schedule.see(account);
    }

    /// Records that this node has a row of a cap of the key, or will have the row with the open transaction.
    pub(crate) fn count_cap_of(&mut self, credential: CredentialId) {
        self.capped.insert(credential);
    }

    /// Adds a journal row.
    pub(crate) fn push_row(&mut self, id: i64, body: &[u8], records: usize) {
        self.buffer.bodies.extend_from_slice(body);
        let end = self.buffer.bodies.len();
        self.buffer.rows.push(TailRow { id, end });
        self.buffer.records += records;
    }

    /// Whether the tail has unposted records.
    pub(crate) fn has_unposted(&self) -> bool {
        !self.buffer.rows.is_empty()
    }

    /// Whether enough records have accumulated to be posted; `now_us` is the time of a monotonic clock.
    pub(crate) fn is_due(&mut self, now_us: u64) -> bool {
        self.schedule.is_due(self.buffer.records, now_us)
    }

    /// Records the duration of the last posting, including its commit.
    pub(crate) fn posting_took(&mut self, us: u64) {
        self.schedule.took(us);
    }

    /// Posts all accumulated changes, in the open transaction.
    pub(crate) fn post(&mut self, sql: &dyn Sql) -> Result<(), WriteError> {
        let mut balances: Vec<_> = self.accounts.drain().collect();
        // In order of id: neighbouring accounts share a page.
        balances.sort_unstable_by_key(|(account, _)| *account);
        tables::accounts::post_balances(sql, self.node, &balances)?;
        tables::holds::remove(sql, &self.ended)?;
        self.ended.clear();
        let mut begun = self.open.values_mut().filter(|open| !open.posted);
        tables::holds::insert(
            sql,
            begun.by_ref().map(|open| {
                open.posted = true;
                &open.hold
            }),
        )?;
        self.post_records(sql)?;
        if let Some(last) = self.buffer.rows.last() {
            tables::marks::set_posted(sql, self.node, last.id)?;
        }
        self.buffer.clear();
        self.schedule.posted();
        self.posted.put(balances);
        Ok(())
    }

    fn post_records(&mut self, sql: &dyn Sql) -> Result<(), WriteError> {
        // This process packed or has already read the bodies.
        let unreadable = |decode_error: DecodeError| {
            WriteError::Inconsistent(format!("the journal {decode_error}"))
        };
        let bodies = self.buffer.bodies();
        let bodies = bodies
            .map(|(row, body)| Ok((row, Body::read(body)?)))
            .collect::<Result<Vec<_>, _>>()
            .map_err(unreadable)?;
        let mut records = Vec::with_capacity(self.buffer.records);
        let mut totals = DayTotals::default();
        let mut spent = KeySpending::new();
        for (row, body) in &bodies {
            for record in body.records() {
                let record = record.map_err(unreadable)?;
                if record.is_owner_visible() {
                    if let Some(used) = record.part().map_err(unreadable)?.usage() {
                        totals.add(sql, &used)?;
                        let credential = used.usage.credential;
                        if let Some(credential) = credential.filter(|it| self.capped.contains(it)) {
                            let month = Month::of(used.operation.began_at());
                            *spent.entry((credential, month)).or_default() += used.cost.get();
                        }
                    }
                    let account = record.account();
                    let row = *row;
                    records.push(VisibleRecord {
                        account,
                        row,
                        record,
                    });
                }
            }
        }
        tables::usage_days::add(sql, totals.each())?;
        if !spent.is_empty() {
            tables::allotment::spend_caps(sql, self.node, &spent)?;
        }
        // Stable: earlier records stay first.
        records.sort_by_key(|posted| posted.account);
        let mut error = None;
        tables::pages::insert(sql, &mut |insert| {
            for page in pages(&records, (self.schedule.records_max / ROWS).max(1)) {
                let [.., last] = page else { continue };
                let (mut at_min, mut at_max) = (Timestamp::MAX, Timestamp::MIN);
                for VisibleRecord { record, .. } in page {
                    at_min = at_min.min(record.at());
                    at_max = at_max.max(record.at());
                    if let Err(decode_error) = self.packer.copy(record) {
                        error = Some(unreadable(decode_error));
                        return Ok(());
                    }
                }
                self.packer.finish_into(&mut self.page);
                insert(Page {
                    account: last.account,
                    row: last.row,
                    at_min,
                    at_max,
                    body: &self.page,
                })?;
            }
            Ok(())
        })?;
        match error {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// Divides records, ordered by account, into pages of one account each with a maximum length. A page ends with a row of the journal; the
/// row identifies the page among the account's pages.
fn pages<'r, 'b>(
    records: &'r [VisibleRecord<'b>],
    full: usize,
) -> impl Iterator<Item = &'r [VisibleRecord<'b>]> {
    let mut length = 0;
    records.chunk_by(move |one, next| {
        length += 1;
        let ends = length >= full && one.row != next.row;
        let same = one.account == next.account && !ends;
        if !same {
            length = 0;
        }
        same
    })
}

impl TailBuffer {
    /// The bodies, each with the id of its row.
    fn bodies(&self) -> impl Iterator<Item = (i64, &[u8])> {
        let ends = self.rows.iter().map(|row| row.end);
        let begins = std::iter::once(0).chain(ends);
        let rows = begins.zip(&self.rows);
        rows.map(|(begin, row)| (row.id, &self.bodies[begin..row.end]))
    }

    fn clear(&mut self) {
        self.bodies.clear();
        self.rows.clear();
        self.records = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::recent_operations::RECENT_MIN;
    use tollgate_clock::Timestamp;

    use super::*;

    fn operation(number: usize) -> OperationId {
        let number = (number as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        OperationId::from_bytes(number.to_le_bytes())
    }

    #[test]
    fn a_page_has_one_account_and_ends_with_a_row_once_it_is_full() {
        const FULL: usize = 5;
        let mut packer = Packer::default();
        packer.push(&LedgerPart::Release {
            operation: operation(0),
            account: AccountId::from_bytes([1; 16]),
            held: Micros::new(1),
            at: Timestamp::from_micros(1),
        });
        let body = packer.finish();
        let body = Body::read(&body).expect("it has just been packed");
        let record = body.records().next().expect("one").expect("a record");
        //   account, row and number of records, and the lengths of the pages
        for (records, lengths) in [
            (&[][..], &[][..]),
            (&[(1, 1, FULL + 1)], &[FULL + 1]),
            (&[(1, 1, FULL), (1, 2, 1)], &[FULL, 1]),
            (&[(1, 1, FULL - 1), (1, 2, 2), (1, 3, 1)], &[FULL + 1, 1]),
            (&[(1, 1, FULL - 1), (2, 1, 1), (2, 2, 1)], &[FULL - 1, 2]),
            (&[(1, 1, FULL), (2, 1, FULL), (2, 2, 1)], &[FULL, FULL, 1]),
            (&[(1, 1, FULL), (1, 2, FULL), (1, 3, 1)], &[FULL, FULL, 1]),
        ] {
            let records: Vec<VisibleRecord<'_>> = records
                .iter()
                .flat_map(|&(account, row, count)| {
                    let account = AccountId::from_bytes([account; 16]);
                    let posted = move |_| VisibleRecord {
                        account,
                        row,
                        record,
                    };
                    (0..count).map(posted)
                })
                .collect();
            let cut: Vec<usize> = pages(&records, FULL).map(<[_]>::len).collect();
            assert_eq!(cut, lengths);
        }
    }

    /// The operation may be in either generation when the operation ends, or in neither.
    #[test]
    fn an_operation_is_known_while_many_begin_after_its_end() {
        for before in [
            0,
            RECENT_MIN - 1,
            RECENT_MIN,
            2 * RECENT_MIN - 2,
            2 * RECENT_MIN,
        ] {
            let mut tail = JournalTail::new(1, usize::MAX);
            let (account, amount) = (AccountId::from_bytes([1; 16]), Micros::new(1));
            assert!(tail.begin(operation(0)));
            let hold = LedgerPart::Hold {
                operation: operation(0),
                account,
                amount,
                price_version: None,
                at: Timestamp::from_micros(1),
                expires_at: Timestamp::from_micros(2),
            };
            tail.hold(&hold, 1);
            let mut others = 1;
            let mut begin = |tail: &mut JournalTail, count| {
                for _ in 0..count {
                    tail.begin_batch();
                    assert!(tail.begin(operation(others)), "it is a new one");
                    others += 1;
                }
            };
            begin(&mut tail, before);
            assert!(!tail.begin(operation(0)), "it is open");
            assert!(tail.end(operation(0), account, amount));
            assert!(!tail.begin(operation(0)), "it has just ended");
            begin(&mut tail, RECENT_MIN - 1);
            assert!(
                !tail.begin(operation(0)),
                "{before} operations began while it was open"
            );
        }
    }
}
