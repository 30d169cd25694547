//! Usage totals by day: accumulated from the records of the journal at their posting, and by a reader for unposted records.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, Micros};

use super::records::RecordQuery;
use crate::engine::{DayRange, RowError, Sql, WriteError};
use crate::entries::{Body, DecodeError};
use crate::rows::{PriceRow, UsageFlags, UsageRow};
use crate::tables;
use crate::usage::UsageDay;

/// Totals kept in memory while all totals are derived again.
const TOTALS_MAX: usize = 65_536;

type Key = (AccountId, Timestamp, Arc<str>, Option<CredentialId>);

/// Totals by account, day, model and credential.
#[derive(Default)]
pub(crate) struct DayTotals {
    days: BTreeMap<Key, UsageDay>,
    /// Read with the first cache hit: the savings of a hit need the prices.
    prices: Option<Prices>,
}

impl DayTotals {
    /// Adds an operation.
    pub(crate) fn add(&mut self, sql: &dyn Sql, used: &UsageRow) -> Result<(), RowError> {
        let usage = &used.usage;
        let is_hit = usage.flags.contains(UsageFlags::CACHE_HIT);
        let saved = match is_hit {
            true => self.prices(sql)?.saved(used),
            false => Micros::ZERO,
        };
        self.add_day(
            used.account,
            UsageDay {
                day_at: used.at.start_of_day(),
                model: Arc::clone(&usage.model),
                credential: usage.credential,
                requests: 1,
                cache_hits: u64::from(is_hit),
                incomplete: u64::from(usage.flags.contains(UsageFlags::INCOMPLETE)),
                prompt_tokens: usage.prompt_tokens,
                completion_tokens: usage.completion_tokens,
                cost: used.cost,
                saved,
                written_off: used.written_off,
            },
        );
        Ok(())
    }

    /// Adds totals of a day.
    pub(crate) fn add_day(&mut self, account: AccountId, more: UsageDay) {
        let key = (
            account,
            more.day_at,
            Arc::clone(&more.model),
            more.credential,
        );
        let Some(day) = self.days.get_mut(&key) else {
            self.days.insert(key, more);
            return;
        };
        day.requests = day.requests.saturating_add(more.requests);
        day.cache_hits = day.cache_hits.saturating_add(more.cache_hits);
        day.incomplete = day.incomplete.saturating_add(more.incomplete);
        day.prompt_tokens = day.prompt_tokens.saturating_add(more.prompt_tokens);
        day.completion_tokens = day.completion_tokens.saturating_add(more.completion_tokens);
        day.cost = day.cost.saturating_add(more.cost);
        day.saved = day.saved.saturating_add(more.saved);
        day.written_off = day.written_off.saturating_add(more.written_off);
    }

    fn prices(&mut self, sql: &dyn Sql) -> Result<&Prices, RowError> {
        if self.prices.is_none() {
            self.prices = Some(Prices::read(sql)?);
        }
        Ok(self.prices.as_ref().expect("read above"))
    }

    /// Every total with its account, in the order of account, day, model and credential.
    pub(crate) fn each(&self) -> impl Iterator<Item = (AccountId, &UsageDay)> {
        self.days.iter().map(|((account, ..), day)| (*account, day))
    }

    fn into_days(self) -> Vec<UsageDay> {
        self.days.into_values().collect()
    }
}

/// Usage of an account by day, model and credential.
///
/// Whole days are read as totals, at a cost independent of the number of requests. A range that begins or ends within a day is read request
/// by request.
pub(crate) fn days(sql: &dyn Sql, wanted: RecordQuery) -> Result<Vec<UsageDay>, RowError> {
    let is_whole =
        |at: Timestamp| matches!(at, Timestamp::MIN | Timestamp::MAX) || at == at.start_of_day();
    let mut totals = DayTotals::default();
    let mut failed = Ok(());
    let mut add = |totals: &mut DayTotals, used: Option<UsageRow>| {
        if let (Some(used), Ok(())) = (used, &failed) {
            failed = totals.add(sql, &used);
        }
    };
    if is_whole(wanted.from) && is_whole(wanted.to) && tables::marks::are_days_posted(sql)? {
        wanted.each_unposted(sql, &mut |_, part| add(&mut totals, part.usage()))?;
        let range = DayRange::Of {
            account: wanted.account,
            from: wanted.from,
            to: wanted.to,
        };
        tables::usage_days::read(sql, range, &mut |account, day| totals.add_day(account, day))?;
    } else {
        wanted.each(sql, &mut |part| add(&mut totals, part.usage()))?;
    }
    failed?;
    Ok(totals.into_days())
}

/// Derives all totals from the postings again, in the open transaction.
pub(crate) fn rebuild_days(sql: &dyn Sql) -> Result<(), WriteError> {
    tables::usage_days::remove_all(sql)?;
    let mut totals = DayTotals::default();
    let mut failed = Ok(());
    tables::pages::all(sql, &mut |page| {
        let damaged = |decode_error: DecodeError| {
            RowError::Damaged(format!(
                "a posting of account `{}` {decode_error}",
                page.account
            ))
        };
        for record in Body::read(page.body).map_err(damaged)?.records() {
            let part = record.and_then(|record| record.part()).map_err(damaged)?;
            if let Some(used) = part.usage() {
                totals.add(sql, &used)?;
            }
        }
        if totals.days.len() >= TOTALS_MAX {
            failed = tables::usage_days::add(sql, totals.each());
            totals.days.clear();
        }
        Ok(match failed {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        })
    })?;
    failed?;
    tables::usage_days::add(sql, totals.each())?;
    tables::marks::set_days_posted(sql)?;
    Ok(())
}

/// The versions of the price of a model, in the order of their start.
struct Prices(HashMap<Arc<str>, Vec<PriceRow>>);

impl Prices {
    fn read(sql: &dyn Sql) -> Result<Prices, RowError> {
        let mut prices = Prices(HashMap::new());
        tables::prices::all(sql, &mut |row| {
            let versions = prices.0.entry(Arc::clone(&row.model)).or_default();
            versions.push(row);
        })?;
        Ok(prices)
    }

    /// The cost of a cached response beyond the charge.
    fn saved(&self, used: &UsageRow) -> Micros {
        let usage = &used.usage;
        let Some(row) = self.of(used) else {
            return Micros::ZERO;
        };
        let whole = row
            .price
            .charge(usage.prompt_tokens, usage.completion_tokens);
        Micros::new(whole.get().saturating_sub(used.cost.get()).max(0))
    }

    /// The choice must be equal whenever a record is posted, audited, removed, or read from an export file. A version named by a record is
    /// stored before the record. A version that begins at a time may become durable after later records are posted.
    fn of(&self, used: &UsageRow) -> Option<&PriceRow> {
        let versions = self.0.get(&used.usage.model)?;
        let named = used.price_version;
        let named = named.filter(|_| used.usage.flags.contains(UsageFlags::PRICE_OF_VERSION));
        if let Some(row) = named.and_then(|it| versions.iter().find(|row| row.version == it)) {
            return Some(row);
        }
        let later = versions.partition_point(|row| row.valid_from <= used.at);
        versions[..later].last()
    }
}
