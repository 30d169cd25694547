//! Queries for an account's usage: totals by model and credential, and cursor pagination over the account's requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::{CredentialId, Micros, OperationId};

use super::day_totals::days;
use super::records::RecordQuery;
use crate::engine::{RowError, Sql};
use crate::entries::LedgerPart;
use crate::rows::{UsageRow, UsageTotal};
use crate::usage::{PageCursor, RequestPosition, RequestsQuery};

/// The smallest id: with an instant it precedes every request of the instant.
const FIRST: OperationId = OperationId::from_bytes([0; 16]);

/// Requests of an account, newest first.
pub(crate) fn requests(sql: &dyn Sql, wanted: &RequestsQuery) -> Result<Vec<UsageRow>, RowError> {
    let mut bounds = RecordQuery {
        account: wanted.account,
        from: wanted.from,
        to: wanted.to,
    };
    let is_asked_for = |part: &LedgerPart| {
        let usage = part.usage().map(|usage| usage.usage);
        usage.is_some_and(|usage| {
            wanted
                .model
                .as_ref()
                .is_none_or(|model| *model == usage.model)
                && wanted
                    .credential
                    .is_none_or(|it| usage.credential == Some(it))
        })
    };
    let newest = RequestPosition {
        at: wanted.to,
        operation: FIRST,
    };
    let found = match wanted.cursor {
        PageCursor::NewerThan(mark) => {
            bounds.from = bounds.from.max(mark.at);
            let mark = (mark.at, mark.operation);
            let is_newer = |place, part: &LedgerPart| place > mark && is_asked_for(part);
            let mut found = bounds.oldest(sql, wanted.limit, &is_newer)?;
            found.reverse();
            found
        }
        PageCursor::Newest | PageCursor::OlderThan(_) => {
            let mark = match wanted.cursor {
                PageCursor::OlderThan(mark) => mark.min(newest),
                _ => newest,
            };
            // The cursor's instant may contain older requests.
            bounds.to = bounds.to.min(mark.at + Duration::from_micros(1));
            let mark = (mark.at, mark.operation);
            let is_older = |place, part: &LedgerPart| place < mark && is_asked_for(part);
            bounds.newest(sql, wanted.limit, &is_older)?
        }
    };
    Ok(found.iter().filter_map(LedgerPart::usage).collect())
}

/// Usage of an account, by day and model.
pub(crate) fn totals(sql: &dyn Sql, wanted: RecordQuery) -> Result<Vec<UsageTotal>, RowError> {
    let mut totals: BTreeMap<(Timestamp, Arc<str>), UsageTotal> = BTreeMap::new();
    for day in days(sql, wanted)? {
        let total = totals
            .entry((day.day_at, Arc::clone(&day.model)))
            .or_insert_with(|| UsageTotal {
                day_at: day.day_at,
                model: day.model,
                requests: 0,
                prompt_tokens: 0,
                completion_tokens: 0,
                cost: Micros::ZERO,
                written_off: Micros::ZERO,
            });
        total.requests += day.requests;
        total.prompt_tokens = total.prompt_tokens.saturating_add(day.prompt_tokens);
        total.completion_tokens = total
            .completion_tokens
            .saturating_add(day.completion_tokens);
        total.cost = total.cost.saturating_add(day.cost);
        total.written_off = total.written_off.saturating_add(day.written_off);
    }
    Ok(totals.into_values().collect())
}

/// The spending of a credential from a time on.
pub(crate) fn spent(
    sql: &dyn Sql,
    wanted: RecordQuery,
    credential: CredentialId,
) -> Result<Micros, RowError> {
    let days = days(sql, wanted)?;
    let own = days.iter().filter(|day| day.credential == Some(credential));
    Ok(own.fold(Micros::ZERO, |sum, day| sum.saturating_add(day.cost)))
}
