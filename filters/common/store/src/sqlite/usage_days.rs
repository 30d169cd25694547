//! Rows of usage totals by day.

use std::sync::Arc;

use rusqlite::{Connection, Params, Row, params};
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, Micros};

use super::columns::each_row;
use crate::engine::{DayRange, EachDay, RowError};
use crate::reads::DayTotals;
use crate::usage::UsageDay;

const COLUMNS: &str = "account_id, day_at, model, credential_id, requests, cache_hits, incomplete, prompt_tokens, completion_tokens,
    cost, saved, written_off";

pub(crate) fn read(
    connection: &Connection,
    which: DayRange,
    each: &mut EachDay<'_>,
) -> Result<(), RowError> {
    match which {
        DayRange::All => read_where(connection, "", [], each),
        DayRange::Of { account, from, to } => read_where(
            connection,
            "WHERE account_id = ?1 AND day_at >= ?2 AND day_at < ?3",
            params![account.as_bytes(), from.as_micros(), to.as_micros()],
            each,
        ),
    }
}

fn read_where(
    connection: &Connection,
    which: &str,
    params: impl Params,
    each: &mut EachDay<'_>,
) -> Result<(), RowError> {
    let sql = format!("SELECT {COLUMNS} FROM usage_days {which}");
    each_row(connection, &sql, params, day, &mut |(account, day)| {
        each(account, day);
    })
}

fn day(row: &Row<'_>) -> Result<(AccountId, UsageDay), RowError> {
    let credential = row.get_ref(3)?.as_blob().unwrap_or_default();
    let day = UsageDay {
        day_at: row.get(1).map(Timestamp::from_micros)?,
        model: row.get::<_, Arc<str>>(2)?,
        credential: credential.try_into().ok().map(CredentialId::from_bytes),
        requests: count(row, 4)?,
        cache_hits: count(row, 5)?,
        incomplete: count(row, 6)?,
        prompt_tokens: count(row, 7)?,
        completion_tokens: count(row, 8)?,
        cost: row.get(9).map(Micros::new)?,
        saved: row.get(10).map(Micros::new)?,
        written_off: row.get(11).map(Micros::new)?,
    };
    Ok((AccountId::from_bytes(row.get(0)?), day))
}

/// Whether the totals include every posted row.
pub(crate) fn are_posted(connection: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM nodes WHERE days_posted <> posted";
    Ok(!connection.prepare_cached(sql)?.exists([])?)
}

pub(crate) fn add(connection: &Connection, totals: &DayTotals) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached(&format!(
        "INSERT INTO usage_days ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
         ON CONFLICT (account_id, day_at, model, credential_id) DO UPDATE SET
           requests = requests + excluded.requests, cache_hits = cache_hits + excluded.cache_hits,
           incomplete = incomplete + excluded.incomplete, prompt_tokens = prompt_tokens + excluded.prompt_tokens,
           completion_tokens = completion_tokens + excluded.completion_tokens, cost = cost + excluded.cost,
           saved = saved + excluded.saved, written_off = written_off + excluded.written_off"
    ))?;
    for (account, day) in totals.each() {
        let credential = day.credential.as_ref().map(|id| &id.as_bytes()[..]);
        insert.execute(params![
            account.as_bytes(),
            day.day_at.as_micros(),
            &*day.model,
            credential.unwrap_or_default(),
            stored(day.requests),
            stored(day.cache_hits),
            stored(day.incomplete),
            stored(day.prompt_tokens),
            stored(day.completion_tokens),
            day.cost.get(),
            day.saved.get(),
            day.written_off.get(),
        ])?;
    }
    Ok(())
}

fn count(row: &Row<'_>, at: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(at)?.unsigned_abs())
}

/// A count as the database stores numbers.
fn stored(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Duration;

    use tollgate_money::OperationId;

    use super::super::read::{Pool, SqliteStore};
    use super::super::{Durability, Options, open, open_read};
    use super::*;
    use crate::codes::{CacheScope, Endpoint, EntryKind};
    use crate::entries::LedgerPart;
    use crate::opened::Connections;
    use crate::rows::{NewAccount, RootSecret, UsageFlags, UsageRecord};
    use crate::store::{Read, commit};
    use crate::unit::{Admission, Part, UnitOfWork};
    use crate::usage::{PageCursor, RequestsQuery};

    const ACCOUNT: AccountId = AccountId::from_bytes([1; 16]);
    const DAY: Duration = Duration::from_secs(86_400);
    /// Days over which the requests are spread.
    const DAYS: u32 = 30;

    /// A store with so many requests of one account, spread over the days after the first.
    fn filled(requests: u32) -> (tempfile::TempDir, SqliteStore) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        let options = Options {
            durability: Durability::Process,
            ..Options::new(Timestamp::from_micros(1), RootSecret([7; 32]))
        };
        let store = open(&path, options).expect("the store opens");
        let first = [
            Part::CreateAccount(Box::new(NewAccount {
                id: ACCOUNT,
                class: Arc::from("free"),
                cache_scope: CacheScope::Shared,
                credit_limit: Micros::ZERO,
                created_at: Timestamp::from_micros(1),
            })),
            Part::Ledger(LedgerPart::Credit {
                operation: OperationId::from_bytes([255; 16]),
                account: ACCOUNT,
                kind: EntryKind::Grant,
                amount: Micros::new(1_000_000_000),
                reference: Arc::from("first"),
                at: Timestamp::from_micros(1),
            }),
        ];
        let charge = |number: u32| {
            Part::Ledger(LedgerPart::Charge {
                operation: OperationId::from_bytes(u128::from(number + 1).to_be_bytes()),
                account: ACCOUNT,
                charged: Micros::new(1),
                written_off: Micros::ZERO,
                price_version: None,
                usage: UsageRecord {
                    credential: Some(CredentialId::from_bytes([(number % 4) as u8; 16])),
                    endpoint: Endpoint::Chat,
                    model: Arc::from("small"),
                    upstream: None,
                    prompt_tokens: 1,
                    completion_tokens: 1,
                    flags: UsageFlags::NONE,
                    http_status: 200,
                    ttfb_us: None,
                    total_us: None,
                },
                at: Timestamp::UNIX_EPOCH + DAY + DAY * DAYS / requests * number,
            })
        };
        let charges: Vec<Part> = (0..requests).map(charge).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime").block_on(async {
            let unit = UnitOfWork::of_all(first, Admission::Always);
            commit(&*store, unit).await.expect("it is committed");
            for charges in charges.chunks(500) {
                let unit = UnitOfWork::of_all(charges.to_vec(), Admission::Always);
                commit(&*store, unit).await.expect("it is committed");
            }
        });
        store.close();
        // Opened once more, which posts what is left: a reader of both stores finds no tail of another length.
        let options = Options::new(Timestamp::from_micros(1), RootSecret([7; 32]));
        open(&path, options).expect("the store opens").close();
        drop(open_read(&path).expect("it can be read"));
        let connections = Pool::open(&path).expect("a pool");
        (
            folder,
            SqliteStore {
                connections,
                writing: (),
            },
        )
    }

    /// The steps of SQLite's virtual machine that a read takes.
    fn steps(store: &SqliteStore, read: impl Fn(&dyn Read)) -> u64 {
        let counted = Arc::new(AtomicU64::new(0));
        let mut connection = store.connections.acquire("a test").expect("a connection");
        let count = Arc::clone(&counted);
        let counting = move || {
            count.fetch_add(1, Relaxed);
            false
        };
        connection
            .progress_handler(1, Some(counting))
            .expect("a handler");
        store.connections.release(connection);
        read(store);
        let mut connection = store.connections.acquire("a test").expect("a connection");
        connection
            .progress_handler(1, None::<fn() -> bool>)
            .expect("no handler");
        store.connections.release(connection);
        counted.load(Relaxed)
    }

    #[test]
    fn a_page_costs_no_more_with_a_hundred_times_the_requests() {
        let (_few_folder, few) = filled(1_000);
        let (_many_folder, many) = filled(100_000);
        let (from, to) = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH + 60 * DAY);
        let totals = |read: &dyn Read| {
            let days = read.usage_days(ACCOUNT, from, to).expect("a read");
            assert_eq!(days.len(), 4 * DAYS as usize);
        };
        let newest = |read: &dyn Read| {
            let wanted = RequestsQuery {
                account: ACCOUNT,
                from,
                to,
                model: None,
                credential: None,
                cursor: PageCursor::Newest,
                limit: 26,
            };
            assert_eq!(read.requests(&wanted).expect("a read").len(), 26);
        };
        for (what, few, many) in [
            ("totals", steps(&few, totals), steps(&many, totals)),
            ("newest requests", steps(&few, newest), steps(&many, newest)),
        ] {
            assert!(few > 0, "{what} are counted");
            assert!(many <= few + few / 4, "{what}: {few} steps, then {many}");
        }
    }
}
