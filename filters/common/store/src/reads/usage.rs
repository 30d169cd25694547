//! Queries for an account's usage: totals by day, and cursor pagination over its requests.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::{CredentialId, Micros, OperationId, Price};

use super::records::RecordQuery;
use crate::engine::{RowError, Rows};
use crate::entries::LedgerPart;
use crate::rows::{UsageFlags, UsageRow, UsageTotal};
use crate::usage::{PageCursor, RequestPosition, RequestsQuery, UsageDay};

/// The smallest id: with an instant it precedes every request of that instant.
const FIRST: OperationId = OperationId::from_bytes([0; 16]);

/// Usage of one account, by day, model and credential.
pub(crate) fn days(rows: &impl Rows, wanted: RecordQuery) -> Result<Vec<UsageDay>, RowError> {
    let prices = Prices::read(rows)?;
    let mut days: BTreeMap<(Timestamp, Arc<str>, Option<CredentialId>), UsageDay> = BTreeMap::new();
    wanted.each(rows, &mut |part| {
        let Some(used) = part.usage() else { return };
        let usage = &used.usage;
        let is_hit = usage.flags.contains(UsageFlags::CACHE_HIT);
        let price = prices.at(&usage.model, used.at).filter(|_| is_hit);
        let saved = price.map_or(Micros::ZERO, |price| {
            let whole = price.charge(usage.prompt_tokens, usage.completion_tokens);
            Micros::new(whole.get().saturating_sub(used.cost.get()).max(0))
        });
        let day_at = used.at.start_of_day();
        let day = days
            .entry((day_at, Arc::clone(&usage.model), usage.credential))
            .or_insert_with(|| UsageDay {
                day_at,
                model: Arc::clone(&usage.model),
                credential: usage.credential,
                requests: 0,
                cache_hits: 0,
                incomplete: 0,
                prompt_tokens: 0,
                completion_tokens: 0,
                cost: Micros::ZERO,
                saved: Micros::ZERO,
            });
        day.requests += 1;
        day.cache_hits += u64::from(is_hit);
        day.incomplete += u64::from(usage.flags.contains(UsageFlags::INCOMPLETE));
        day.prompt_tokens = day.prompt_tokens.saturating_add(usage.prompt_tokens);
        day.completion_tokens = day
            .completion_tokens
            .saturating_add(usage.completion_tokens);
        day.cost = day.cost.saturating_add(used.cost);
        day.saved = day.saved.saturating_add(saved);
    })?;
    Ok(days.into_values().collect())
}

/// Requests of one account, newest first.
pub(crate) fn requests(
    rows: &impl Rows,
    wanted: &RequestsQuery,
) -> Result<Vec<UsageRow>, RowError> {
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
            let mut found = bounds.oldest(rows, wanted.limit, &is_newer)?;
            found.reverse();
            found
        }
        PageCursor::Newest | PageCursor::OlderThan(_) => {
            let mark = match wanted.cursor {
                PageCursor::OlderThan(mark) => mark.min(newest),
                _ => newest,
            };
            // The cursor's own instant may have older ones in it.
            bounds.to = bounds.to.min(mark.at + Duration::from_micros(1));
            let mark = (mark.at, mark.operation);
            let is_older = |place, part: &LedgerPart| place < mark && is_asked_for(part);
            bounds.newest(rows, wanted.limit, &is_older)?
        }
    };
    Ok(found.iter().filter_map(LedgerPart::usage).collect())
}

/// Usage of one account, by day and model.
pub(crate) fn totals(rows: &impl Rows, wanted: RecordQuery) -> Result<Vec<UsageTotal>, RowError> {
    let mut days: BTreeMap<(Timestamp, Arc<str>), UsageTotal> = BTreeMap::new();
    wanted.each(rows, &mut |part| {
        let Some(used) = part.usage() else { return };
        let day_at = used.at.start_of_day();
        let usage = &used.usage;
        let total = days
            .entry((day_at, Arc::clone(&usage.model)))
            .or_insert_with(|| UsageTotal {
                day_at,
                model: Arc::clone(&usage.model),
                requests: 0,
                prompt_tokens: 0,
                completion_tokens: 0,
                cost: Micros::ZERO,
                written_off: Micros::ZERO,
            });
        total.requests += 1;
        total.prompt_tokens = total.prompt_tokens.saturating_add(usage.prompt_tokens);
        total.completion_tokens = total
            .completion_tokens
            .saturating_add(usage.completion_tokens);
        total.cost = total.cost.saturating_add(used.cost);
        total.written_off = total.written_off.saturating_add(used.written_off);
    })?;
    Ok(days.into_values().collect())
}

/// The price of each model, and its start.
struct Prices(HashMap<Arc<str>, Vec<(Timestamp, Price)>>);

impl Prices {
    fn read(rows: &impl Rows) -> Result<Prices, RowError> {
        let mut prices = Prices(HashMap::new());
        // In order of their start.
        rows.prices(&mut |row| {
            let versions = prices.0.entry(row.model).or_default();
            versions.push((row.valid_from, row.price));
        })?;
        Ok(prices)
    }

    fn at(&self, model: &str, at: Timestamp) -> Option<&Price> {
        let versions = self.0.get(model)?;
        let later = versions.partition_point(|(valid_from, _)| *valid_from <= at);
        versions[..later].last().map(|(_, price)| price)
    }
}
