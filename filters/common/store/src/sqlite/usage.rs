//! Reading what an account has used.
//!
//! Every statement walks the index of `usage` by account and time, between two instants: what a reader waits for grows with the period
//! that was asked for and not with the store.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rusqlite::{Connection, params};
use tollgate_money::{AccountId, Micros, OperationId, Price};

use super::columns::{
    NEWER_REQUESTS, OLDER_REQUESTS, all_prices, count, each_row, rows_max, usage,
};
use super::failure::RowError;
use crate::rows::{CredentialId, UsageFlags, UsageRow};
use crate::usage::{Place, RequestMark, RequestsWanted, UsageDay};

const DAY_US: i64 = 86_400_000_000;

/// The smallest id there is: with an instant it stands before every request of that instant.
const FIRST: OperationId = OperationId::from_bytes([0; 16]);

const DAYS: &str = "SELECT at, model, credential_id, prompt_tokens, completion_tokens, flags, cost
     FROM usage WHERE account_id = ?1 AND at >= ?2 AND at < ?3";

/// What one account used, by day, model and credential.
pub(crate) fn days(
    connection: &Connection,
    account: AccountId,
    from: i64,
    to: i64,
) -> Result<Vec<UsageDay>, RowError> {
    let prices = Prices::read(connection)?;
    let mut models: HashMap<Box<str>, Arc<str>> = HashMap::new();
    let mut days: BTreeMap<(i64, Arc<str>, Option<CredentialId>), UsageDay> = BTreeMap::new();
    // Added up here and not by the engine, whose sum fails where an upstream's absurd counts leave its range.
    let mut statement = connection.prepare_cached(DAYS)?;
    let mut rows = statement.query(params![account.as_bytes(), from, to])?;
    while let Some(row) = rows.next()? {
        let at: i64 = row.get(0)?;
        let name = row.get_ref(1)?.as_str()?;
        let model = match models.get(name) {
            Some(model) => model.clone(),
            None => {
                let model = Arc::<str>::from(name);
                models.insert(name.into(), model.clone());
                model
            }
        };
        let credential: Option<[u8; 16]> = row.get(2)?;
        let credential = credential.map(CredentialId::from_bytes);
        let (prompt, completion) = (count(row, 3)?, count(row, 4)?);
        let flags = UsageFlags::from_bits(row.get(5)?);
        let cost = Micros::new(row.get(6)?);
        let is_hit = flags.contains(UsageFlags::CACHE_HIT);
        let saved = match prices.at(&model, at).filter(|_| is_hit) {
            Some(price) => {
                let rest = price.charge(prompt, completion).get();
                Micros::new(rest.saturating_sub(cost.get()).max(0))
            }
            None => Micros::ZERO,
        };
        let day_at = at.div_euclid(DAY_US) * DAY_US;
        let day = days
            .entry((day_at, model.clone(), credential))
            .or_insert_with(|| UsageDay {
                day_at,
                model,
                credential,
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
        day.incomplete += u64::from(flags.contains(UsageFlags::INCOMPLETE));
        day.prompt_tokens = day.prompt_tokens.saturating_add(prompt);
        day.completion_tokens = day.completion_tokens.saturating_add(completion);
        day.cost = day.cost.saturating_add(cost);
        day.saved = day.saved.saturating_add(saved);
    }
    Ok(days.into_values().collect())
}

/// Requests of one account, newest first.
pub(crate) fn requests(
    connection: &Connection,
    wanted: &RequestsWanted,
) -> Result<Vec<UsageRow>, RowError> {
    let newest = RequestMark {
        at: wanted.to,
        operation: FIRST,
    };
    let (sql, mark) = match wanted.place {
        Place::Newest => (OLDER_REQUESTS, newest),
        Place::OlderThan(mark) => (OLDER_REQUESTS, mark.min(newest)),
        Place::NewerThan(mark) => (NEWER_REQUESTS, mark),
    };
    let mut found = Vec::new();
    each_row(
        connection,
        sql,
        params![
            wanted.account.as_bytes(),
            wanted.from,
            wanted.to,
            mark.at,
            mark.operation.as_bytes(),
            wanted.model.as_deref(),
            wanted.credential.as_ref().map(|id| id.as_bytes()),
            rows_max(wanted.limit),
        ],
        |row| usage(row, 0),
        &mut |row| found.push(row),
    )?;
    if matches!(wanted.place, Place::NewerThan(_)) {
        found.reverse();
    }
    Ok(found)
}

/// What each model cost, and from when on.
struct Prices(HashMap<Arc<str>, Vec<(i64, Price)>>);

impl Prices {
    fn read(connection: &Connection) -> Result<Prices, RowError> {
        let mut prices = Prices(HashMap::new());
        // In the order of their beginnings.
        all_prices(connection, &mut |row| {
            let versions = prices.0.entry(row.model).or_default();
            versions.push((row.valid_from, row.price));
        })?;
        Ok(prices)
    }

    fn at(&self, model: &str, at: i64) -> Option<&Price> {
        let versions = self.0.get(model)?;
        let later = versions.partition_point(|(valid_from, _)| *valid_from <= at);
        versions[..later].last().map(|(_, price)| price)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Dialect;

    #[test]
    fn requests_are_found_by_their_account_and_time_and_not_by_walking_the_table() {
        let connection = Connection::open_in_memory().expect("an engine");
        let dialect = Dialect {
            int: "INTEGER",
            bin: "BLOB",
            rows: "STRICT",
            keyed: "STRICT, WITHOUT ROWID",
        };
        for step in dialect.steps(0) {
            connection.execute_batch(&step).expect("the schema");
        }
        for (sql, params) in [(DAYS, 3), (OLDER_REQUESTS, 8), (NEWER_REQUESTS, 8)] {
            let mut plan = connection
                .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
                .expect("a statement");
            let nothing = vec![rusqlite::types::Null; params];
            let told: Vec<String> = plan
                .query_map(rusqlite::params_from_iter(nothing), |row| row.get(3))
                .expect("a plan")
                .collect::<Result<_, _>>()
                .expect("a plan");
            assert_eq!(told.len(), 1, "nothing is sorted afterwards: {told:?}");
            assert!(
                told[0].contains("USING INDEX usage_account (account_id=? AND at>? AND at<?)"),
                "{told:?}"
            );
        }
    }
}
