//! An account's statement, read in one transaction: the sums are consistent.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, Micros};

use super::records::RecordQuery;
use super::tail;
use crate::engine::{RowError, Sql};
use crate::entries::{Entry, LedgerPart};
use crate::error::ReadError;
use crate::reader::Reader;
use crate::rows::UsageRow;
use crate::statement::{DaySpending, Statement};

impl Reader {
    /// The statement for `from <= at < to`; `None` for an unknown account.
    pub fn statement(
        &self,
        account: AccountId,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Option<Statement>, ReadError> {
        self.with_view("a statement", |sql| read(sql, account, from, to))
    }
}

fn read(
    sql: &dyn Sql,
    account: AccountId,
    from: Timestamp,
    to: Timestamp,
) -> Result<Option<Statement>, RowError> {
    let Some(found) = tail::account(sql, account)? else {
        return Ok(None);
    };
    let (available, held) = (found.available, found.held);
    let mut changed_since = 0i64;
    let mut credits = Vec::new();
    let mut days = BTreeMap::new();
    let since = RecordQuery {
        account,
        from,
        to: Timestamp::MAX,
    };
    since.each(sql, &mut |part| {
        let Some(entry) = Entry::of(&part) else {
            return;
        };
        if entry.at >= to {
            // A settlement returns the hold: the change of both fields together is the cost.
            let changed = match part.usage() {
                Some(usage) => usage.cost.get().wrapping_neg(),
                None => entry.d_available.get().wrapping_add(entry.d_held.get()),
            };
            changed_since = changed_since.wrapping_add(changed);
        } else if entry.reference.is_some() {
            credits.push(entry);
        } else if let Some(usage) = part.usage() {
            add(&mut days, 0, &usage);
        }
    })?;
    credits.sort_by_key(|entry| Reverse((entry.at, entry.operation)));
    split_at_credits(sql, account, &credits, &mut days)?;
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
    let older = before.newest(sql, 1, &leaves_line)?;
    let mut spending: Vec<DaySpending> = days
        .into_iter()
        .map(|((_, _, credential), spent)| DaySpending {
            last_at: spent.last_at,
            credential,
            requests: spent.requests,
            cost: spent.cost,
        })
        .collect();
    spending.sort_by_key(|spent| Reverse(spent.last_at));
    Ok(Some(Statement {
        available,
        held,
        changed_since: Micros::new(changed_since),
        credits,
        spending,
        older: older.first().map(|part| part.at()),
    }))
}

/// Day, number of earlier credits of the day, and credential.
type SpentKey = (Timestamp, usize, Option<CredentialId>);

#[derive(Default)]
struct Spent {
    last_at: Timestamp,
    requests: u64,
    cost: Micros,
}

/// Adds an operation after `after` credits of its day. Operations without a cost have no line.
fn add(days: &mut BTreeMap<SpentKey, Spent>, after: usize, usage: &UsageRow) {
    if usage.cost <= Micros::ZERO {
        return;
    }
    let key = (usage.at.start_of_day(), after, usage.usage.credential);
    let spent = days.entry(key).or_default();
    spent.last_at = spent.last_at.max(usage.at);
    spent.requests += 1;
    spent.cost = spent.cost.saturating_add(usage.cost);
}

/// Divides the spending of a day at the credits of the day. Reads only days with credits again.
fn split_at_credits(
    sql: &dyn Sql,
    account: AccountId,
    newest_first: &[Entry],
    days: &mut BTreeMap<SpentKey, Spent>,
) -> Result<(), RowError> {
    for credits in
        newest_first.chunk_by(|one, next| one.at.start_of_day() == next.at.start_of_day())
    {
        let Some(day) = credits.first().map(|credit| credit.at.start_of_day()) else {
            continue;
        };
        let before = days.len();
        days.retain(|(of, ..), _| *of != day);
        if days.len() == before {
            continue;
        }
        let of_day = RecordQuery {
            account,
            from: day,
            to: day + Duration::from_secs(86_400),
        };
        of_day.each(sql, &mut |part| {
            if let Some(usage) = part.usage() {
                let later = credits.partition_point(|credit| credit.at > usage.at);
                add(days, credits.len() - later, &usage);
            }
        })?;
    }
    Ok(())
}
