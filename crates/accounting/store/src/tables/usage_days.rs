//! Rows of usage totals by day.

use std::sync::LazyLock;

use tollgate_money::{AccountId, CredentialId};

use crate::engine::{DayRange, EachDay, EngineError, RowError, Select, Sql, SqlRow, Value, values};
use crate::usage::UsageDay;

const COLUMNS: &str = "account_id, day_at, model, credential_id, requests, cache_hits, incomplete, prompt_tokens, completion_tokens,
    cost, saved, written_off";

/// The values of all columns.
macro_rules! of_columns {
    ($account:expr, $day:expr) => {
        values![
            $account,
            $day.day_at,
            $day.model,
            credential_of($day),
            $day.requests,
            $day.cache_hits,
            $day.incomplete,
            $day.prompt_tokens,
            $day.completion_tokens,
            $day.cost,
            $day.saved,
            $day.written_off,
        ]
    };
}

/// Visits usage totals, as last posted.
pub(crate) fn read(
    connection: &dyn Sql,
    which: DayRange,
    each: &mut EachDay<'_>,
) -> Result<(), RowError> {
    match which {
        DayRange::Posted => read_where(connection, "usage_days", "", values![], each),
        DayRange::Of { account, from, to } => ["usage_days", "carried_days"]
            .into_iter()
            .try_for_each(|table| {
                read_where(
                    connection,
                    table,
                    "WHERE account_id = ?1 AND day_at >= ?2 AND day_at < ?3",
                    values![account, from, to],
                    each,
                )
            }),
    }
}

/// Visits the totals of removed records.
pub(crate) fn carried(connection: &dyn Sql, each: &mut EachDay<'_>) -> Result<(), RowError> {
    read_where(connection, "carried_days", "", values![], each)
}

const KEY: &str = "WHERE account_id = ?1 AND day_at = ?2 AND model = ?3 AND credential_id = ?4";

fn credential_of(day: &UsageDay) -> &[u8] {
    day.credential.as_ref().map_or(&[], |id| id.as_bytes())
}

/// The total of removed records with the key of another total.
pub(crate) fn carried_day(
    connection: &dyn Sql,
    account: AccountId,
    key: &UsageDay,
) -> Result<Option<UsageDay>, RowError> {
    let mut found = None;
    let credential = credential_of(key);
    let key = values![account, key.day_at, key.model, credential];
    read_where(connection, "carried_days", KEY, key, &mut |_, day| {
        found = Some(day);
    })?;
    Ok(found)
}

/// Inserts or replaces a total of removed records.
pub(crate) fn put_carried(
    connection: &dyn Sql,
    account: AccountId,
    day: &UsageDay,
) -> Result<(), EngineError> {
    let columns: Vec<_> = COLUMNS.split(',').map(str::trim).collect();
    let parameters: Vec<_> = (1..=columns.len()).map(|at| format!("?{at}")).collect();
    let sets = columns[4..].iter();
    let sets: Vec<_> = sets
        .map(|column| format!("{column} = excluded.{column}"))
        .collect();
    let sql = format!(
        "INSERT INTO carried_days ({COLUMNS}) VALUES ({})
         ON CONFLICT (account_id, day_at, model, credential_id) DO UPDATE SET {}",
        parameters.join(", "),
        sets.join(", ")
    );
    connection
        .execute(&sql, of_columns!(account, day))
        .map(|_| ())
}

/// Subtracts a total from the posted total with its key.
pub(crate) fn take(
    connection: &dyn Sql,
    account: AccountId,
    day: &UsageDay,
) -> Result<(), EngineError> {
    let columns: Vec<_> = COLUMNS.split(',').map(str::trim).collect();
    let sets = columns[4..].iter().zip(5..);
    let sets: Vec<_> = sets
        .map(|(column, at)| format!("{column} = {column} - ?{at}"))
        .collect();
    let sql = format!("UPDATE usage_days SET {} {KEY}", sets.join(", "));
    connection.execute(&sql, of_columns!(account, day))?;
    let sql = format!("DELETE FROM usage_days {KEY} AND requests = 0");
    let credential = credential_of(day);
    let key = values![account, day.day_at, day.model, credential];
    connection.execute(&sql, key).map(|_| ())
}

fn read_where(
    connection: &dyn Sql,
    table: &str,
    which: &str,
    values: &[Value<'_>],
    each: &mut EachDay<'_>,
) -> Result<(), RowError> {
    let sql = format!("SELECT {COLUMNS} FROM {table} {which}");
    connection.each(&sql, values, day, &mut |(account, day)| each(account, day))
}

fn day(row: &dyn SqlRow) -> Result<(AccountId, UsageDay), RowError> {
    let credential = row.get::<&[u8]>(3)?;
    let day = UsageDay {
        day_at: row.get(1)?,
        model: row.get(2)?,
        credential: credential.try_into().ok().map(CredentialId::from_bytes),
        requests: row.get(4)?,
        cache_hits: row.get(5)?,
        incomplete: row.get(6)?,
        prompt_tokens: row.get(7)?,
        completion_tokens: row.get(8)?,
        cost: row.get(9)?,
        saved: row.get(10)?,
        written_off: row.get(11)?,
    };
    Ok((row.get(0)?, day))
}

static ADD: LazyLock<String> = LazyLock::new(|| {
    let columns: Vec<_> = COLUMNS.split(',').map(str::trim).collect();
    let values: Vec<_> = (1..=columns.len()).map(|at| format!("?{at}")).collect();
    let sum = |column: &&str| format!("{column} = usage_days.{column} + excluded.{column}");
    let sums: Vec<_> = columns[4..].iter().map(sum).collect();
    format!(
        "INSERT INTO usage_days ({COLUMNS}) VALUES ({})
         ON CONFLICT (account_id, day_at, model, credential_id) DO UPDATE SET {}",
        values.join(", "),
        sums.join(", ")
    )
});

/// Adds to the usage totals.
pub(crate) fn add<'d>(
    connection: &dyn Sql,
    mut totals: impl Iterator<Item = (AccountId, &'d UsageDay)>,
) -> Result<(), EngineError> {
    connection.execute_rows(&ADD, &mut |run| {
        totals.try_for_each(|(account, day)| run(of_columns!(account, day)))
    })
}

/// Removes all usage totals.
pub(crate) fn remove_all(connection: &dyn Sql) -> Result<(), EngineError> {
    connection.write("DELETE FROM usage_days", values![])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Duration;

    use tollgate_clock::Timestamp;
    use tollgate_money::{Micros, OperationId};

    use super::*;
    use crate::codes::{CacheScope, Endpoint, EntryKind};
    use crate::entries::LedgerPart;
    use crate::reader::Reader;
    use crate::rows::{NewAccount, RootSecret, UsageFlags, UsageRecord};
    use crate::sqlite::Pool;
    use crate::sqlite::{Durability, Options, open, open_read};
    use crate::store::commit;
    use crate::unit::{Admission, Part, UnitOfWork};
    use crate::usage::{PageCursor, RequestsQuery};

    const ACCOUNT: AccountId = AccountId::from_bytes([1; 16]);
    const DAY: Duration = Duration::from_secs(86_400);
    /// Days over which the requests are spread.
    const DAYS: u32 = 30;

    /// A store with `requests` requests of one account, spread over the days after the first.
    fn filled(requests: u32) -> (tempfile::TempDir, Arc<Pool>) {
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
        // The second opening posts the rest: a reader finds tails of equal length in both stores.
        let options = Options::new(Timestamp::from_micros(1), RootSecret([7; 32]));
        open(&path, options).expect("the store opens").close();
        drop(open_read(&path).expect("it can be read"));
        let pool = Pool::open(&path).expect("a pool");
        (folder, Arc::new(pool))
    }

    /// The steps of SQLite's virtual machine for a read.
    fn steps(pool: &Arc<Pool>, read: impl Fn(&Reader)) -> u64 {
        let counted = Arc::new(AtomicU64::new(0));
        let mut connection = pool.acquire("a test").expect("a connection");
        let count = Arc::clone(&counted);
        let counting = move || {
            count.fetch_add(1, Relaxed);
            false
        };
        connection
            .progress_handler(1, Some(counting))
            .expect("a handler");
        pool.release(connection);
        read(&Reader::new(Arc::<Pool>::clone(pool)));
        let mut connection = pool.acquire("a test").expect("a connection");
        connection
            .progress_handler(1, None::<fn() -> bool>)
            .expect("no handler");
        pool.release(connection);
        counted.load(Relaxed)
    }

    #[test]
    fn a_page_costs_no_more_with_a_hundred_times_the_requests() {
        let (_few_folder, few) = filled(1_000);
        let (_many_folder, many) = filled(100_000);
        let (from, to) = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH + 60 * DAY);
        let totals = |read: &Reader| {
            let days = read.usage_days(ACCOUNT, from, to).expect("a read");
            assert_eq!(days.len(), 4 * DAYS as usize);
        };
        let newest = |read: &Reader| {
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
