//! An account's statement, read in one transaction so that it adds up.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, Micros};

use super::records::RecordQuery;
use super::tail;
use crate::engine::{RowError, Rows};
use crate::entries::{Entry, LedgerPart};
use crate::error::ReadError;
use crate::opened::{Connections, OpenedStore};
use crate::statement::{DaySpending, ReadStatement, Statement};

impl<C: Connections, W> ReadStatement for OpenedStore<C, W> {
    fn statement(
        &self,
        account: AccountId,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Option<Statement>, ReadError> {
        self.with_view("a statement", |view| read(view, account, from, to))
    }
}

fn read(
    view: &impl Rows,
    account: AccountId,
    from: Timestamp,
    to: Timestamp,
) -> Result<Option<Statement>, RowError> {
    let Some(found) = tail::account(view, account)? else {
        return Ok(None);
    };
    let (available, held) = (found.available, found.held);
    let mut changed_since = 0i64;
    let mut credits = Vec::new();
    let mut days: BTreeMap<(Reverse<Timestamp>, Option<CredentialId>), (u64, Micros)> =
        BTreeMap::new();
    let since = RecordQuery {
        account,
        from,
        to: Timestamp::MAX,
    };
    since.each(view, &mut |part| {
        let Some(entry) = Entry::of(&part) else {
            return;
        };
        if entry.at >= to {
            // A settlement returns the hold: its change of both fields together is the cost.
            let changed = match part.usage() {
                Some(usage) => usage.cost.get().wrapping_neg(),
                None => entry.d_available.get().wrapping_add(entry.d_held.get()),
            };
            changed_since = changed_since.wrapping_add(changed);
        } else if entry.reference.is_some() {
            credits.push(entry);
        } else if let Some(usage) = part.usage().filter(|usage| usage.cost > Micros::ZERO) {
            let day = Reverse(usage.at.start_of_day());
            let (requests, cost) = days.entry((day, usage.usage.credential)).or_default();
            *requests += 1;
            *cost = cost.saturating_add(usage.cost);
        }
    })?;
    credits.sort_by_key(|entry| Reverse((entry.at, entry.operation)));
    let before = RecordQuery {
        account,
        from: Timestamp::MIN,
        to: from,
    };
    // Operations without a cost have no line.
    let leaves_line = |_, part: &LedgerPart| match part.usage() {
        Some(usage) => usage.cost > Micros::ZERO,
        None => true,
    };
    let older = before.newest(view, 1, &leaves_line)?;
    let spending = days
        .into_iter()
        .map(|((day, credential), (requests, cost))| DaySpending {
            day_at: day.0,
            credential,
            requests,
            cost,
        });
    Ok(Some(Statement {
        available,
        held,
        changed_since: Micros::new(changed_since),
        credits,
        spending: spending.collect(),
        older: older.first().map(|part| part.at()),
    }))
}
