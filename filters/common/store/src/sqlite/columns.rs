//! The columns of each table, and the conversion of their values.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Params, Row};
use tollgate_clock::Timestamp;
use tollgate_money::{
    AccountId, CapPeriod, CredentialId, LoginId, Micros, OperationId, Price, SpendingCap,
    TokenPrice,
};

use crate::codes::{AccountStatus, CacheScope, CredentialKind, EntryKind, LoginKind, cap_period};
use crate::engine::RowError;
use crate::rows::{AccountRow, CredentialRow, LoginRow, NewCredential, OpenHold, PriceRow};

/// Stored for an expiry that never comes; the column is not nullable.
pub(crate) const NEVER: Timestamp = Timestamp::MAX;

/// Visits the rows of a query.
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

/// Visits accounts as they were last posted.
pub(crate) fn posted_accounts(
    connection: &Connection,
    which: &str,
    params: impl Params,
    each: &mut dyn FnMut(AccountRow),
) -> Result<(), RowError> {
    let sql = format!(
        "SELECT id, status, rate_class, cache_scope, available, held, credit_limit, created_at, updated_at, plan_class, plan_until,
                EXISTS (SELECT 1 FROM credit_references r WHERE r.account_id = accounts.id AND r.kind = {top_up})
                OR EXISTS (SELECT 1 FROM payments p WHERE p.account_id = accounts.id) FROM accounts {which}",
        top_up = EntryKind::TopUp.code(),
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

pub(crate) fn all_credentials(
    connection: &Connection,
    which: &str,
    params: impl Params,
    each: &mut dyn FnMut(CredentialRow),
) -> Result<(), RowError> {
    let sql = format!(
        "SELECT hash, id, kind, account_id, client_id, grant_id, resource, scopes, label, hint, models, cap, created_at, expires_at,
                revoked_at, cap_period, used_at, version FROM credentials {which}"
    );
    each_row(connection, &sql, params, credential, each)
}

pub(crate) fn all_prices(
    connection: &Connection,
    each: &mut dyn FnMut(PriceRow),
) -> Result<(), RowError> {
    let sql = "SELECT ver, model, in_per_mtok, out_per_mtok, per_request, valid_from FROM prices ORDER BY valid_from, model";
    each_row(connection, sql, [], price, each)
}

fn price(row: &Row<'_>) -> Result<PriceRow, RowError> {
    let tokens = |at| -> Result<TokenPrice, RowError> {
        let amount: i64 = row.get(at)?;
        TokenPrice::new(Micros::new(amount)).ok_or_else(|| RowError::Unknown {
            what: "a price",
            value: amount.to_string(),
        })
    };
    Ok(PriceRow {
        version: row.get(0)?,
        model: row.get(1)?,
        price: Price {
            input: tokens(2)?,
            output: tokens(3)?,
            request: Micros::new(row.get(4)?),
        },
        valid_from: row.get(5).map(Timestamp::from_micros)?,
    })
}

/// The few distinct words of a column with many rows, each allocated once.
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
        created_at: row.get(7).map(Timestamp::from_micros)?,
        updated_at: row.get(8).map(Timestamp::from_micros)?,
        plan: match (row.get_ref(9)?.as_str_or_null()?, optional_time(row, 10)?) {
            (Some(class), Some(until)) => Some((classes.get(class), until)),
            _ => None,
        },
        has_paid: row.get(11)?,
    })
}

fn credential(row: &Row<'_>) -> Result<CredentialRow, RowError> {
    let models = row.get_ref(10)?.as_str_or_null()?;
    let expires_at = row.get(13).map(Timestamp::from_micros)?;
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
            // An empty list of models is stored as an empty text, which has no line.
            models: models.map(|models| models.lines().map(Arc::from).collect()),
            spending_cap: match row.get::<_, Option<i64>>(11)? {
                None => None,
                Some(max) => Some(SpendingCap {
                    max: Micros::new(max),
                    // Rows from before periods existed count over all time.
                    period: match row.get_ref(15)? {
                        ValueRef::Null => CapPeriod::Total,
                        _ => word(row, 15, "a cap's period", cap_period)?,
                    },
                }),
            },
            created_at: row.get(12).map(Timestamp::from_micros)?,
            expires_at: (expires_at != NEVER).then_some(expires_at),
        },
        revoked_at: optional_time(row, 14)?,
        used_at: optional_time(row, 16)?,
        version: row.get(17)?,
    })
}

pub(crate) fn login(row: &Row<'_>) -> Result<LoginRow, RowError> {
    Ok(LoginRow {
        id: LoginId::from_bytes(row.get(0)?),
        account: AccountId::from_bytes(row.get(1)?),
        kind: word(row, 2, "a login's kind", LoginKind::from_code)?,
        address: row.get(3)?,
        verified_at: optional_time(row, 4)?,
        created_at: row.get(5).map(Timestamp::from_micros)?,
    })
}

pub(crate) fn hold(row: &Row<'_>) -> Result<OpenHold, RowError> {
    Ok(OpenHold {
        operation: OperationId::from_bytes(row.get(0)?),
        account: AccountId::from_bytes(row.get(1)?),
        amount: Micros::new(row.get(2)?),
        node: row.get(3)?,
        epoch: row.get(4)?,
        created_at: row.get(5).map(Timestamp::from_micros)?,
        expires_at: row.get(6).map(Timestamp::from_micros)?,
    })
}

pub(super) fn word<T>(
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

/// A time that may be null.
pub(crate) fn optional_time(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Timestamp>> {
    let micros: Option<i64> = row.get(column)?;
    Ok(micros.map(Timestamp::from_micros))
}

/// A duration from its column, in microseconds.
pub(crate) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// A duration as its column takes it.
pub(crate) fn duration_micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// A row limit as SQLite takes it.
pub(crate) fn rows_max(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
