//! Reads, each on a connection of its own.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, Params, Row, params};
use tollgate_money::{AccountId, Micros, OperationId};

use super::failure::RowError;
use super::file;
use super::snapshot::SqliteSnapshot;
use crate::books;
use crate::codes::{
    AccountStatus, CacheScope, Contra, CredentialKind, Endpoint, EntryKind, LoginKind,
};
use crate::error::{OpenError, ReadError};
use crate::rows::{
    AccountRow, CredentialId, CredentialRow, LedgerLine, LoginId, LoginRow, NewCredential,
    OpenHold, UsageFlags, UsageRecord, UsageRow, UsageTotal,
};
use crate::store::{OperationRows, Read, Snapshot};

/// Connections that are kept for the next reader.
const IDLE_MAX: usize = 4;

const DAY_US: i64 = 86_400_000_000;

/// Opens connections as they are needed, and keeps a few.
pub(crate) struct Reader {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl Reader {
    pub(crate) fn new(path: &Path) -> Reader {
        Reader {
            path: path.to_owned(),
            idle: Mutex::default(),
        }
    }

    /// Makes sure that there is a store to read.
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let connection = file::connect_read(&self.path)?;
        self.give_back(connection);
        Ok(())
    }

    pub(crate) fn take(&self, what: &'static str) -> Result<Connection, ReadError> {
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        match idle {
            Some(connection) => Ok(connection),
            None => file::connect_read(&self.path).map_err(|error| ReadError::Engine {
                what,
                source: Box::new(error),
            }),
        }
    }

    pub(crate) fn give_back(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }

    fn with<T>(
        &self,
        what: &'static str,
        read: impl FnOnce(&Connection) -> Result<T, RowError>,
    ) -> Result<T, ReadError> {
        let connection = self.take(what)?;
        let result = read(&connection).map_err(|error| error.reading(what));
        self.give_back(connection);
        result
    }
}

impl Read for Reader {
    fn accounts(&self, each: &mut dyn FnMut(AccountRow)) -> Result<(), ReadError> {
        self.with("accounts", |connection| {
            all_accounts(connection, "", [], each)
        })
    }

    fn credentials(&self, now: i64, each: &mut dyn FnMut(CredentialRow)) -> Result<(), ReadError> {
        self.with("credentials", |connection| {
            // The plus keeps the engine from walking the index by expiry, which would fetch each row by itself.
            all_credentials(
                connection,
                "WHERE revoked_at IS NULL AND +expires_at > ?1",
                [now],
                each,
            )
        })
    }

    fn open_holds(&self, each: &mut dyn FnMut(OpenHold)) -> Result<(), ReadError> {
        self.with("holds", |connection| {
            each_row(connection, HOLDS, [], hold, each)
        })
    }

    fn account(&self, id: AccountId) -> Result<Option<AccountRow>, ReadError> {
        self.with("an account", |connection| {
            let mut found = None;
            all_accounts(connection, "WHERE id = ?1", [id.as_bytes()], &mut |row| {
                found = Some(row);
            })?;
            Ok(found)
        })
    }

    fn account_by_login(
        &self,
        kind: LoginKind,
        address: &str,
    ) -> Result<Option<AccountRow>, ReadError> {
        self.with("an account", |connection| {
            let mut found = None;
            all_accounts(
                connection,
                "WHERE id = (SELECT account_id FROM logins WHERE kind = ?1 AND address = ?2)",
                params![kind.code(), address],
                &mut |row| found = Some(row),
            )?;
            Ok(found)
        })
    }

    fn accounts_after(
        &self,
        after: Option<AccountId>,
        limit: usize,
    ) -> Result<Vec<AccountRow>, ReadError> {
        self.with("accounts", |connection| {
            let mut found = Vec::new();
            all_accounts(
                connection,
                "WHERE id > ?1 ORDER BY id LIMIT ?2",
                params![
                    after.as_ref().map_or(&[][..], |id| &id.as_bytes()[..]),
                    rows_max(limit)
                ],
                &mut |row| found.push(row),
            )?;
            Ok(found)
        })
    }

    fn logins(&self, account: AccountId) -> Result<Vec<LoginRow>, ReadError> {
        self.with("logins", |connection| {
            let mut found = Vec::new();
            each_row(
                connection,
                "SELECT id, account_id, kind, address, verified_at, created_at FROM logins WHERE account_id = ?1 ORDER BY id",
                [account.as_bytes()],
                login,
                &mut |row| found.push(row),
            )?;
            Ok(found)
        })
    }

    fn account_credentials(&self, account: AccountId) -> Result<Vec<CredentialRow>, ReadError> {
        self.with("credentials", |connection| {
            let mut found = Vec::new();
            all_credentials(
                connection,
                "WHERE account_id = ?1 ORDER BY created_at, id",
                [account.as_bytes()],
                &mut |row| found.push(row),
            )?;
            Ok(found)
        })
    }

    fn credential_by_hash(&self, hash: &[u8; 32]) -> Result<Option<CredentialRow>, ReadError> {
        self.with("a credential", |connection| {
            let mut found = None;
            all_credentials(connection, "WHERE hash = ?1", [hash], &mut |row| {
                found = Some(row);
            })?;
            Ok(found)
        })
    }

    fn usage_totals(
        &self,
        account: AccountId,
        from: i64,
        to: i64,
    ) -> Result<Vec<UsageTotal>, ReadError> {
        self.with("usage", |connection| {
            // Added up here and not by the engine, whose sum fails where an upstream's absurd counts leave its range.
            let mut days: BTreeMap<(i64, Arc<str>), UsageTotal> = BTreeMap::new();
            each_row(
                connection,
                "SELECT at / ?4 * ?4, model, 1, prompt_tokens, completion_tokens, cost, writeoff
                 FROM usage WHERE account_id = ?1 AND at >= ?2 AND at < ?3",
                params![account.as_bytes(), from, to, DAY_US],
                usage_total,
                &mut |row| match days.entry((row.day_at, Arc::clone(&row.model))) {
                    Entry::Vacant(day) => {
                        day.insert(row);
                    }
                    Entry::Occupied(mut day) => add(day.get_mut(), &row),
                },
            )?;
            Ok(days.into_values().collect())
        })
    }

    fn lines(
        &self,
        account: AccountId,
        before: i64,
        limit: usize,
    ) -> Result<Vec<LedgerLine>, ReadError> {
        self.with("entries", |connection| {
            let mut found = Vec::new();
            each_row(
                connection,
                CREDIT_LINES,
                params![account.as_bytes(), before, rows_max(limit)],
                entry,
                &mut |entry| found.push(LedgerLine { entry, usage: None }),
            )?;
            each_row(
                connection,
                USAGE_LINES,
                params![account.as_bytes(), before, rows_max(limit)],
                |row| {
                    Ok(LedgerLine {
                        entry: entry(row)?,
                        usage: Some(usage(row, ENTRY_COLUMNS)?),
                    })
                },
                &mut |line| found.push(line),
            )?;
            found.sort_by_key(|line| {
                std::cmp::Reverse((line.entry.at, line.entry.operation, line.entry.phase()))
            });
            found.truncate(limit);
            Ok(found)
        })
    }

    fn operation(&self, id: OperationId) -> Result<OperationRows, ReadError> {
        self.with("an operation", |connection| {
            let mut rows = OperationRows {
                id,
                entries: Vec::new(),
                hold: None,
                usage: None,
            };
            // One transaction, so that a commit in between does not show half of itself.
            let view = connection.unchecked_transaction()?;
            each_row(
                &view,
                OPERATION_ENTRIES,
                [id.as_bytes()],
                entry,
                &mut |entry| rows.entries.push(entry),
            )?;
            each_row(&view, OPERATION_HOLD, [id.as_bytes()], hold, &mut |hold| {
                rows.hold = Some(hold)
            })?;
            each_row(
                &view,
                OPERATION_USAGE,
                [id.as_bytes()],
                |row| usage(row, 0),
                &mut |usage| rows.usage = Some(usage),
            )?;
            Ok(rows)
        })
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, ReadError> {
        let snapshot = SqliteSnapshot::begin(self)?;
        Ok(Box::new(snapshot))
    }
}

macro_rules! entry_columns {
    () => {
        "e.op_id, e.kind, e.account_id, e.d_avail, e.d_held, e.contra, e.ref, e.price_ver, e.node_id, e.epoch, e.batch, e.at, e.phase"
    };
}
macro_rules! usage_columns {
    () => {
        "u.op_id, u.account_id, u.credential_id, u.endpoint, u.model, u.upstream, u.prompt_tokens, u.completion_tokens, u.flags,
         u.cost, u.writeoff, u.http_status, u.ttfb_us, u.total_us, u.at"
    };
}

/// How many columns an entry has.
const ENTRY_COLUMNS: usize = 13;

pub(crate) const ENTRIES: &str = concat!(
    "SELECT ",
    entry_columns!(),
    " FROM entries e ORDER BY op_id, phase"
);
pub(crate) const ENTRIES_BY_BATCH: &str = concat!(
    "SELECT ",
    entry_columns!(),
    " FROM entries e ORDER BY node_id, epoch, batch, op_id, phase"
);
pub(crate) const SEALS: &str = "SELECT node_id, epoch, n, entries, sum_avail, sum_held, prev, hash, at FROM seals ORDER BY node_id, epoch, n";
pub(crate) const USAGE: &str = concat!("SELECT ", usage_columns!(), " FROM usage u ORDER BY op_id");
pub(crate) const HOLDS: &str =
    "SELECT id, account_id, amount, node_id, epoch, created_at, expires_at FROM holds ORDER BY id";
const OPERATION_ENTRIES: &str = concat!(
    "SELECT ",
    entry_columns!(),
    " FROM entries e WHERE op_id = ?1 ORDER BY phase"
);
const OPERATION_HOLD: &str = "SELECT id, account_id, amount, node_id, epoch, created_at, expires_at FROM holds WHERE id = ?1";
const OPERATION_USAGE: &str = concat!(
    "SELECT ",
    usage_columns!(),
    " FROM usage u WHERE op_id = ?1"
);
const CREDIT_LINES: &str = concat!(
    "SELECT ",
    entry_columns!(),
    " FROM entries e WHERE account_id = ?1 AND ref IS NOT NULL AND at < ?2 ORDER BY at DESC LIMIT ?3"
);
/// A usage record's entry is its settlement, or the charge that stands alone; a usage record that cost nothing may have none.
const USAGE_LINES: &str = concat!(
    "SELECT ",
    entry_columns!(),
    ", ",
    usage_columns!(),
    " FROM usage u JOIN entries e ON e.op_id = u.op_id AND e.kind IN (2, 4)
     WHERE u.account_id = ?1 AND u.at < ?2 ORDER BY u.at DESC LIMIT ?3"
);

/// Hands over the rows of a query.
pub(crate) fn each_row<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    mut read: impl FnMut(&Row<'_>) -> Result<T, RowError>,
    each: &mut dyn FnMut(T),
) -> Result<(), RowError> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    while let Some(row) = rows.next()? {
        each(read(row)?);
    }
    Ok(())
}

pub(crate) fn all_accounts(
    connection: &Connection,
    which: &str,
    params: impl Params,
    each: &mut dyn FnMut(AccountRow),
) -> Result<(), RowError> {
    let sql = format!(
        "SELECT id, status, rate_class, cache_scope, available, held, credit_limit, created_at, updated_at FROM accounts {which}"
    );
    let mut classes = Words::default();
    each_row(
        connection,
        &sql,
        params,
        |row| account(row, &mut classes),
        each,
    )
}

fn all_credentials(
    connection: &Connection,
    which: &str,
    params: impl Params,
    each: &mut dyn FnMut(CredentialRow),
) -> Result<(), RowError> {
    let sql = format!(
        "SELECT hash, id, kind, account_id, client_id, grant_id, resource, scopes, label, hint, models, cap, created_at, expires_at,
                revoked_at FROM credentials {which}"
    );
    each_row(connection, &sql, params, credential, each)
}

/// The few distinct words that a column of many rows has, each kept once.
#[derive(Default)]
struct Words(Vec<Arc<str>>);

impl Words {
    fn get(&mut self, word: &str) -> Arc<str> {
        match self.0.iter().find(|known| &***known == word) {
            Some(known) => Arc::clone(known),
            None => {
                let word = Arc::<str>::from(word);
                self.0.push(Arc::clone(&word));
                word
            }
        }
    }
}

fn account(row: &Row<'_>, classes: &mut Words) -> Result<AccountRow, RowError> {
    Ok(AccountRow {
        id: AccountId::from_bytes(row.get(0)?),
        status: word(row, 1, "an account's status", AccountStatus::from_code)?,
        class: classes.get(row.get_ref(2)?.as_str()?),
        cache_scope: word(row, 3, "an account's cache scope", CacheScope::from_code)?,
        available: Micros::new(row.get(4)?),
        held: Micros::new(row.get(5)?),
        credit_limit: Micros::new(row.get(6)?),
        created_at: row.get(7)?,
        updated_at: row.get(8)?,
    })
}

fn credential(row: &Row<'_>) -> Result<CredentialRow, RowError> {
    let models = row.get_ref(10)?.as_str_or_null()?;
    let expires_at: i64 = row.get(13)?;
    Ok(CredentialRow {
        made: NewCredential {
            hash: row.get(0)?,
            id: CredentialId::from_bytes(row.get(1)?),
            kind: word(row, 2, "a credential's kind", CredentialKind::from_code)?,
            account: AccountId::from_bytes(row.get(3)?),
            client_id: row.get(4)?,
            grant_id: row.get(5)?,
            resource: row.get(6)?,
            scopes: row.get(7)?,
            label: row.get(8)?,
            hint: row.get(9)?,
            // No model at all is written as an empty text, which has no line.
            models: models.map(|models| models.lines().map(Arc::from).collect()),
            spending_cap: row.get::<_, Option<i64>>(11)?.map(Micros::new),
            created_at: row.get(12)?,
            expires_at: (expires_at != super::parts::NEVER).then_some(expires_at),
        },
        revoked_at: row.get(14)?,
    })
}

fn login(row: &Row<'_>) -> Result<LoginRow, RowError> {
    Ok(LoginRow {
        id: LoginId::from_bytes(row.get(0)?),
        account: AccountId::from_bytes(row.get(1)?),
        kind: word(row, 2, "a login's kind", LoginKind::from_code)?,
        address: row.get(3)?,
        verified_at: row.get(4)?,
        created_at: row.get(5)?,
    })
}

pub(crate) fn hold(row: &Row<'_>) -> Result<OpenHold, RowError> {
    Ok(OpenHold {
        operation: OperationId::from_bytes(row.get(0)?),
        account: AccountId::from_bytes(row.get(1)?),
        amount: Micros::new(row.get(2)?),
        node: row.get(3)?,
        epoch: row.get(4)?,
        created_at: row.get(5)?,
        expires_at: row.get(6)?,
    })
}

pub(crate) fn entry(row: &Row<'_>) -> Result<books::Entry, RowError> {
    let kind = word(row, 1, "an entry's kind", EntryKind::from_code)?;
    // The key says in which order the entries of an operation stand; a kind in the other place is none that was ever written.
    word(row, 12, "an entry's phase", |phase| {
        (phase == kind.phase()).then_some(())
    })?;
    Ok(books::Entry {
        operation: OperationId::from_bytes(row.get(0)?),
        kind,
        account: AccountId::from_bytes(row.get(2)?),
        d_available: Micros::new(row.get(3)?),
        d_held: Micros::new(row.get(4)?),
        contra: word(row, 5, "an entry's other side", Contra::from_code)?,
        reference: row.get(6)?,
        price_version: row.get(7)?,
        node: row.get(8)?,
        epoch: row.get(9)?,
        batch: row.get(10)?,
        at: row.get(11)?,
    })
}

/// A usage record whose columns begin at `first`.
pub(crate) fn usage(row: &Row<'_>, first: usize) -> Result<UsageRow, RowError> {
    let credential: Option<[u8; 16]> = row.get(first + 2)?;
    Ok(UsageRow {
        operation: OperationId::from_bytes(row.get(first)?),
        account: AccountId::from_bytes(row.get(first + 1)?),
        usage: UsageRecord {
            credential: credential.map(CredentialId::from_bytes),
            endpoint: word(
                row,
                first + 3,
                "a usage record's endpoint",
                Endpoint::from_code,
            )?,
            model: row.get(first + 4)?,
            upstream: row.get(first + 5)?,
            prompt_tokens: count(row, first + 6)?,
            completion_tokens: count(row, first + 7)?,
            flags: UsageFlags::from_bits(row.get(first + 8)?),
            http_status: row.get(first + 11)?,
            ttfb_us: optional_count(row, first + 12)?,
            total_us: optional_count(row, first + 13)?,
        },
        cost: Micros::new(row.get(first + 9)?),
        written_off: Micros::new(row.get(first + 10)?),
        at: row.get(first + 14)?,
    })
}

fn usage_total(row: &Row<'_>) -> Result<UsageTotal, RowError> {
    Ok(UsageTotal {
        day_at: row.get(0)?,
        model: row.get(1)?,
        requests: count(row, 2)?,
        prompt_tokens: count(row, 3)?,
        completion_tokens: count(row, 4)?,
        cost: Micros::new(row.get(5)?),
        written_off: Micros::new(row.get(6)?),
    })
}

fn add(total: &mut UsageTotal, more: &UsageTotal) {
    total.requests += more.requests;
    total.prompt_tokens = total.prompt_tokens.saturating_add(more.prompt_tokens);
    total.completion_tokens = total
        .completion_tokens
        .saturating_add(more.completion_tokens);
    total.cost = total.cost.saturating_add(more.cost);
    total.written_off = total.written_off.saturating_add(more.written_off);
}

fn word<T>(
    row: &Row<'_>,
    column: usize,
    what: &'static str,
    from_code: impl Fn(i64) -> Option<T>,
) -> Result<T, RowError> {
    let code: i64 = row.get(column)?;
    from_code(code).ok_or_else(|| RowError::Unknown {
        what,
        value: code.to_string(),
    })
}

fn count(row: &Row<'_>, column: usize) -> Result<u64, RowError> {
    optional_count(row, column).map(|count| count.unwrap_or(0))
}

fn optional_count(row: &Row<'_>, column: usize) -> Result<Option<u64>, RowError> {
    let count: Option<i64> = row.get(column)?;
    count
        .map(|count| {
            u64::try_from(count).map_err(|_| RowError::Unknown {
                what: "a count",
                value: count.to_string(),
            })
        })
        .transpose()
}

/// A number of rows as SQLite takes it.
fn rows_max(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
