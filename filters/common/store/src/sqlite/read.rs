//! The connection pool for reads: each read has a connection of its own.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, OptionalExtension, params};
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, Micros, OperationId};

use super::columns::{add, all_accounts, all_credentials, all_prices, each_row, login, rows_max};
use super::descriptor::Descriptor;
use super::records::RecordQuery;
use super::snapshot::SqliteSnapshot;
use super::{file, journal, keys};
use crate::codes::LoginKind;
use crate::engine::RowError;
use crate::entries::{Entry, LedgerPart};
use crate::error::{OpenError, ReadError};
use crate::idempotency::{IdempotencyKey, IdempotencyRow};
use crate::opened::{Connections, OpenedStore};
use crate::rows::{
    AccountRow, CredentialRow, LedgerLine, LoginRow, OpenHold, PriceRow, UsageRow, UsageTotal,
};
use crate::store::{OperationRows, Read, Snapshot};
use crate::usage::{RequestsQuery, UsageDay};

/// Connections kept for the next reader.
const IDLE_MAX: usize = 4;

/// A store in one SQLite file.
pub(crate) type SqliteStore<W = ()> = OpenedStore<Pool, W>;

/// A connection pool: opens connections on demand, and keeps a few.
pub(crate) struct Pool {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    /// Released after the connections.
    _file: Descriptor,
}

impl Pool {
    pub(crate) fn new(path: &Path) -> io::Result<Pool> {
        Ok(Pool {
            path: path.to_owned(),
            idle: Mutex::default(),
            _file: Descriptor::open(path)?,
        })
    }

    /// The same once there is a store to read.
    pub(crate) fn open(path: &Path) -> Result<Pool, OpenError> {
        let pool = Pool::new(path).map_err(|error| no_file(path, error))?;
        pool.release(file::connect_read(path)?);
        Ok(pool)
    }
}

impl Connections for Pool {
    type View = Connection;

    fn acquire(&self, what: &'static str) -> Result<Connection, ReadError> {
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

    fn release(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }

    fn in_snapshot<T>(
        connection: &Connection,
        read: impl FnOnce(&Connection) -> Result<T, RowError>,
    ) -> Result<T, RowError> {
        read(&*connection.unchecked_transaction()?)
    }
}

/// Why the file at `path`, which is to be read, could not be opened.
pub(crate) fn no_file(path: &Path, error: io::Error) -> OpenError {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::NotFound => OpenError::Missing { path },
        _ => OpenError::File {
            action: "open",
            path,
            source: error,
        },
    }
}

impl<W: Send + Sync> Read for SqliteStore<W> {
    fn accounts(&self, each: &mut dyn FnMut(AccountRow)) -> Result<(), ReadError> {
        self.with_view("accounts", |view| all_accounts(view, None, "", [], each))
    }

    fn credentials(
        &self,
        now: Timestamp,
        each: &mut dyn FnMut(CredentialRow),
    ) -> Result<(), ReadError> {
        self.with("credentials", |connection| {
            // The plus keeps the engine from using the index by expiry, which would fetch each row separately.
            all_credentials(
                connection,
                "WHERE revoked_at IS NULL AND +expires_at > ?1",
                [now.as_micros()],
                each,
            )
        })
    }

    fn prices(&self, each: &mut dyn FnMut(PriceRow)) -> Result<(), ReadError> {
        self.with("prices", |connection| all_prices(connection, each))
    }

    fn open_holds(&self, each: &mut dyn FnMut(OpenHold)) -> Result<(), ReadError> {
        self.with_view("holds", |view| {
            journal::open_holds(view)?.into_values().for_each(each);
            Ok(())
        })
    }

    fn account(&self, id: AccountId) -> Result<Option<AccountRow>, ReadError> {
        self.with_view("an account", |view| one_account(view, id))
    }

    fn account_by_login(
        &self,
        kind: LoginKind,
        address: &str,
    ) -> Result<Option<AccountRow>, ReadError> {
        self.with_view("an account", |view| {
            let id = view
                .prepare_cached("SELECT account_id FROM logins WHERE kind = ?1 AND address = ?2")?
                .query_row(params![kind.code(), address], |row| row.get(0))
                .optional()?;
            match id {
                Some(id) => one_account(view, AccountId::from_bytes(id)),
                None => Ok(None),
            }
        })
    }

    fn accounts_after(
        &self,
        after: Option<AccountId>,
        limit: usize,
    ) -> Result<Vec<AccountRow>, ReadError> {
        self.with_view("accounts", |view| {
            let mut found = Vec::new();
            all_accounts(
                view,
                None,
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
        since: Timestamp,
    ) -> Result<Micros, ReadError> {
        let wanted = RecordQuery {
            account,
            from: since,
            to: Timestamp::MAX,
        };
        self.with_view("what a credential has spent", |view| {
            let mut spent = Micros::ZERO;
            wanted.each(view, &mut |part| {
                let usage = part.usage();
                if let Some(usage) = usage.filter(|it| it.usage.credential == Some(credential)) {
                    spent = spent.saturating_add(usage.cost);
                }
            })?;
            Ok(spent)
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
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<UsageTotal>, ReadError> {
        self.with_view("usage", |view| {
            let mut days: BTreeMap<(Timestamp, Arc<str>), UsageTotal> = BTreeMap::new();
            RecordQuery { account, from, to }.each(view, &mut |part| {
                let Some(usage) = part.usage() else { return };
                let day_at = usage.at.start_of_day();
                let model = &usage.usage.model;
                let total = days
                    .entry((day_at, Arc::clone(model)))
                    .or_insert_with(|| UsageTotal {
                        day_at,
                        model: Arc::clone(model),
                        requests: 0,
                        prompt_tokens: 0,
                        completion_tokens: 0,
                        cost: Micros::ZERO,
                        written_off: Micros::ZERO,
                    });
                add(total, &usage);
            })?;
            Ok(days.into_values().collect())
        })
    }

    fn usage_days(
        &self,
        account: AccountId,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<UsageDay>, ReadError> {
        self.with_view("usage", |view| {
            super::usage::days(view, RecordQuery { account, from, to })
        })
    }

    fn requests(&self, wanted: &RequestsQuery) -> Result<Vec<UsageRow>, ReadError> {
        self.with_view("requests", |view| super::usage::requests(view, wanted))
    }

    fn lines(
        &self,
        account: AccountId,
        before: Timestamp,
        limit: usize,
    ) -> Result<Vec<LedgerLine>, ReadError> {
        let wanted = RecordQuery {
            account,
            from: Timestamp::MIN,
            to: before,
        };
        self.with_view("entries", |view| {
            let moves = |_, part: &_| Entry::of(part).is_some();
            let found = wanted.newest(view, limit, &moves)?;
            let line = |part: LedgerPart| {
                let usage = part.usage();
                Entry::of(&part).map(|entry| LedgerLine { entry, usage })
            };
            Ok(found.into_iter().filter_map(line).collect())
        })
    }

    fn operation(&self, id: OperationId) -> Result<OperationRows, ReadError> {
        self.with_view("an operation", |view| {
            let parts = journal::of_operation(view, id)?;
            let ends = |part: &&LedgerPart| {
                matches!(part, LedgerPart::Settle { .. } | LedgerPart::Release { .. })
            };
            Ok(OperationRows {
                id,
                entries: parts.iter().filter_map(Entry::of).collect(),
                hold: journal::open_holds(view)?.remove(&id),
                usage: parts.iter().find_map(LedgerPart::usage),
                is_duplicate: parts.len() - parts.iter().filter(ends).count() > 1,
            })
        })
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, ReadError> {
        let snapshot = SqliteSnapshot::begin(&self.connections)?;
        Ok(Box::new(snapshot))
    }
}

fn one_account(view: &Connection, id: AccountId) -> Result<Option<AccountRow>, RowError> {
    let mut found = None;
    let which = "WHERE id = ?1";
    all_accounts(view, Some(id), which, [id.as_bytes()], &mut |row| {
        found = Some(row);
    })?;
    Ok(found)
}
