//! Reads, each on a connection of its own.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, params};
use tollgate_money::{AccountId, Micros, OperationId};

use super::columns::{
    CREDIT_LINES, ENTRY_COLUMNS, HOLDS, OPERATION_ENTRIES, OPERATION_HOLD, OPERATION_USAGE,
    USAGE_LINES, add, all_accounts, all_credentials, all_prices, each_row, entry, hold, login,
    rows_max, usage, usage_total,
};
use super::failure::RowError;
use super::snapshot::SqliteSnapshot;
use super::{file, keys};
use crate::codes::LoginKind;
use crate::error::{OpenError, ReadError};
use crate::idempotency::{IdempotencyKey, IdempotencyRow};
use crate::rows::{
    AccountRow, CredentialId, CredentialRow, LedgerLine, LoginRow, OpenHold, PriceRow, UsageRow,
    UsageTotal,
};
use crate::store::{OperationRows, Read, Snapshot};
use crate::usage::{RequestsWanted, UsageDay};

/// Connections that are kept for the next reader.
const IDLE_MAX: usize = 4;

/// A day, in microseconds.
pub(super) const DAY_US: i64 = 86_400_000_000;

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

    pub(crate) fn with<T>(
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

    fn prices(&self, each: &mut dyn FnMut(PriceRow)) -> Result<(), ReadError> {
        self.with("prices", |connection| all_prices(connection, each))
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

    fn credential_spent(
        &self,
        account: AccountId,
        credential: CredentialId,
        since: i64,
    ) -> Result<Micros, ReadError> {
        self.with("what a credential has spent", |connection| {
            let spent: i64 = connection
                .prepare_cached(
                    "SELECT coalesce(sum(cost), 0) FROM usage
                     WHERE account_id = ?1 AND at >= ?2 AND credential_id = ?3",
                )?
                .query_row(
                    params![account.as_bytes(), since, credential.as_bytes()],
                    |row| row.get(0),
                )?;
            Ok(Micros::new(spent))
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

    fn idempotency(&self, key: &IdempotencyKey) -> Result<Option<IdempotencyRow>, ReadError> {
        self.with("an idempotency key", |connection| {
            Ok(keys::read(connection, key)?)
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

    fn usage_days(
        &self,
        account: AccountId,
        from: i64,
        to: i64,
    ) -> Result<Vec<UsageDay>, ReadError> {
        self.with("usage", |connection| {
            super::usage::days(connection, account, from, to)
        })
    }

    fn requests(&self, wanted: &RequestsWanted) -> Result<Vec<UsageRow>, ReadError> {
        self.with("requests", |connection| {
            super::usage::requests(connection, wanted)
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
