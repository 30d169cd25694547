//! The unposted tail of the journal, which readers add to the posted data: balances and open holds.

use std::collections::{HashMap, HashSet};

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros, OperationId};

use crate::commit_id;
use crate::engine::{Accounts, JournalRows, RowError, Sql, damaged_commit};
use crate::entries::{Body, DecodeError, Entry, LedgerPart, Record};
use crate::rows::{AccountRow, OpenHold};
use crate::tables;

/// Visits every record of some rows, in commit order, with the id of the row.
pub(crate) fn each_record(
    sql: &dyn Sql,
    which: JournalRows,
    each: &mut dyn FnMut(i64, Record<'_>) -> Result<(), DecodeError>,
) -> Result<(), RowError> {
    tables::journal::bodies(sql, which, &mut |id, body| {
        let damaged = damaged_commit(id);
        let body = Body::read(body).map_err(&damaged)?;
        body.records()
            .try_for_each(|record| each(id, record?))
            .map_err(&damaged)
    })
}

/// Every part of an operation. Scans the whole journal: for an operator's query, not for a request.
pub(crate) fn of_operation(
    sql: &dyn Sql,
    operation: OperationId,
) -> Result<Vec<LedgerPart>, RowError> {
    let mut found = Vec::new();
    each_record(sql, JournalRows::All, &mut |_, record| {
        if record.operation() == operation {
            found.push(record.part()?);
        }
        Ok(())
    })?;
    Ok(found)
}

/// The change of an account's stored fields by entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BalanceDelta {
    pub(crate) available: i64,
    pub(crate) held: i64,
    /// The time of the last entry.
    pub(crate) at: Timestamp,
}

impl BalanceDelta {
    pub(crate) fn add(&mut self, entry: &Entry) {
        // The order of addition differs from the order of the decisions; the sum is in range even if partial sums are out of range.
        self.available = self.available.wrapping_add(entry.d_available.get());
        self.held = self.held.wrapping_add(entry.d_held.get());
        self.at = self.at.max(entry.at);
    }
}

/// The unposted changes of accounts.
fn deltas(
    sql: &dyn Sql,
    which: Accounts<'_>,
) -> Result<HashMap<AccountId, BalanceDelta>, RowError> {
    let only: Option<HashSet<AccountId>> = match which {
        Accounts::Of(accounts) => Some(accounts.iter().copied().collect()),
        Accounts::All | Accounts::After(..) => None,
    };
    let mut deltas: HashMap<AccountId, BalanceDelta> = HashMap::new();
    each_record(sql, JournalRows::Unposted, &mut |_, record| {
        if let Some(only) = &only
            && !only.contains(&record.account())
        {
            return Ok(());
        }
        if let Some(entry) = Entry::of(&record.part()?) {
            deltas.entry(entry.account).or_default().add(&entry);
        }
        Ok(())
    })?;
    Ok(deltas)
}

/// Visits accounts with every commit since the accounts' last posting. `sql` has to be in a transaction: both reads need a common snapshot.
pub(crate) fn accounts(
    sql: &dyn Sql,
    which: Accounts<'_>,
    each: &mut dyn FnMut(AccountRow),
) -> Result<(), RowError> {
    let deltas = deltas(sql, which)?;
    tables::accounts::posted(sql, which, &mut |mut account| {
        if let Some(since) = deltas.get(&account.id) {
            account.available = Micros::new(account.available.get().wrapping_add(since.available));
            account.held = Micros::new(account.held.get().wrapping_add(since.held));
            account.updated_at = account.updated_at.max(since.at);
        }
        each(account);
    })
}

/// [`accounts`] for a single account.
pub(crate) fn account(sql: &dyn Sql, account: AccountId) -> Result<Option<AccountRow>, RowError> {
    let mut found = None;
    accounts(sql, Accounts::Of(&[account]), &mut |row| {
        found = Some(row);
    })?;
    Ok(found)
}

/// The credit of all accounts, available and held, without negative balances.
pub(crate) fn owed(sql: &dyn Sql) -> Result<Micros, RowError> {
    let deltas = deltas(sql, Accounts::All)?;
    let mut owed = tables::loaded::owed(sql)?;
    let changed: Vec<AccountId> = deltas.keys().copied().collect();
    tables::loaded::accounts(
        sql,
        commit_id::FIRST_OF_MANY,
        &changed,
        &mut |account, posted| {
            let before = (posted.available + posted.held + posted.elsewhere).get();
            let since = deltas[&account];
            let after = before
                .wrapping_add(since.available)
                .wrapping_add(since.held);
            owed = owed.wrapping_add(after.max(0) - before.max(0));
        },
    )?;
    Ok(Micros::new(owed))
}

/// Every open hold, in no order.
pub(crate) fn open_holds(sql: &dyn Sql) -> Result<HashMap<OperationId, OpenHold>, RowError> {
    let mut open = HashMap::new();
    tables::holds::posted(sql, &mut |hold| {
        open.insert(hold.operation, hold);
    })?;
    each_record(sql, JournalRows::Unposted, &mut |id, record| {
        match record.part()? {
            LedgerPart::Hold {
                operation,
                account,
                amount,
                at,
                expires_at,
                ..
            } => {
                let (node, epoch, _) = commit_id::numbers(id);
                let hold = OpenHold {
                    operation,
                    account,
                    amount,
                    node,
                    epoch,
                    created_at: at,
                    expires_at,
                };
                open.insert(operation, hold);
            }
            LedgerPart::Settle { operation, .. } | LedgerPart::Release { operation, .. } => {
                open.remove(&operation);
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(open)
}
