//! The columns of each table, and the values they are read as.

use std::sync::Arc;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Params, Row};
use tollgate_money::{AccountId, Micros, OperationId, Price, TokenPrice};

use super::failure::RowError;
use crate::books;
use crate::codes::{
    AccountStatus, CacheScope, CapPeriod, Contra, CredentialKind, Endpoint, EntryKind, LoginKind,
};
use crate::rows::{
    AccountRow, CredentialId, CredentialRow, LoginId, LoginRow, NewCredential, OpenHold, PriceRow,
    SpendingCap, UsageFlags, UsageRecord, UsageRow, UsageTotal,
};

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
pub(crate) const ENTRY_COLUMNS: usize = 13;

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
pub(crate) const OPERATION_ENTRIES: &str = concat!(
    "SELECT ",
    entry_columns!(),
    " FROM entries e WHERE op_id = ?1 ORDER BY phase"
);
pub(crate) const OPERATION_HOLD: &str = "SELECT id, account_id, amount, node_id, epoch, created_at, expires_at FROM holds WHERE id = ?1";
pub(crate) const OPERATION_USAGE: &str = concat!(
    "SELECT ",
    usage_columns!(),
    " FROM usage u WHERE op_id = ?1"
);
pub(crate) const CREDIT_LINES: &str = concat!(
    "SELECT ",
    entry_columns!(),
    " FROM entries e WHERE account_id = ?1 AND ref IS NOT NULL AND at < ?2 ORDER BY at DESC LIMIT ?3"
);
pub(crate) const CREDITS: &str = concat!(
    "SELECT ",
    entry_columns!(),
    " FROM entries e WHERE account_id = ?1 AND ref IS NOT NULL AND at >= ?2 AND at < ?3 ORDER BY at DESC, op_id DESC"
);
/// A usage record's entry is its settlement, or the charge that stands alone; a usage record that cost nothing may have none.
pub(crate) const USAGE_LINES: &str = concat!(
    "SELECT ",
    entry_columns!(),
    ", ",
    usage_columns!(),
    " FROM usage u JOIN entries e ON e.op_id = u.op_id AND e.kind IN (2, 4)
     WHERE u.account_id = ?1 AND u.at < ?2 ORDER BY u.at DESC LIMIT ?3"
);

/// Newest first, from a mark on into the past. The mark's instant bounds the walk of the index by itself.
pub(crate) const OLDER_REQUESTS: &str = concat!(
    "SELECT ",
    usage_columns!(),
    " FROM usage u WHERE account_id = ?1 AND at >= ?2 AND at < ?3 AND at <= ?4 AND (at, op_id) < (?4, ?5)
     AND (?6 IS NULL OR model = ?6) AND (?7 IS NULL OR credential_id = ?7) ORDER BY at DESC, op_id DESC LIMIT ?8"
);
/// Oldest first, from a mark on towards now.
pub(crate) const NEWER_REQUESTS: &str = concat!(
    "SELECT ",
    usage_columns!(),
    " FROM usage u WHERE account_id = ?1 AND at >= ?2 AND at < ?3 AND at >= ?4 AND (at, op_id) > (?4, ?5)
     AND (?6 IS NULL OR model = ?6) AND (?7 IS NULL OR credential_id = ?7) ORDER BY at, op_id LIMIT ?8"
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
        "SELECT id, status, rate_class, cache_scope, available, held, credit_limit, created_at, updated_at, plan_class, plan_until FROM accounts {which}"
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
                revoked_at, cap_period, used_at FROM credentials {which}"
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
        valid_from: row.get(5)?,
    })
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
        plan: match (row.get_ref(9)?.as_str_or_null()?, row.get(10)?) {
            (Some(class), Some(until)) => Some((classes.get(class), until)),
            _ => None,
        },
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
            spending_cap: match row.get::<_, Option<i64>>(11)? {
                None => None,
                Some(max) => Some(SpendingCap {
                    max: Micros::new(max),
                    // What was written before there were periods counts over all time.
                    period: match row.get_ref(15)? {
                        ValueRef::Null => CapPeriod::Total,
                        _ => word(row, 15, "a cap's period", CapPeriod::from_code)?,
                    },
                }),
            },
            created_at: row.get(12)?,
            expires_at: (expires_at != super::parts::NEVER).then_some(expires_at),
        },
        revoked_at: row.get(14)?,
        used_at: row.get(16)?,
    })
}

pub(crate) fn login(row: &Row<'_>) -> Result<LoginRow, RowError> {
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

pub(crate) fn usage_total(row: &Row<'_>) -> Result<UsageTotal, RowError> {
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

pub(crate) fn add(total: &mut UsageTotal, more: &UsageTotal) {
    total.requests += more.requests;
    total.prompt_tokens = total.prompt_tokens.saturating_add(more.prompt_tokens);
    total.completion_tokens = total
        .completion_tokens
        .saturating_add(more.completion_tokens);
    total.cost = total.cost.saturating_add(more.cost);
    total.written_off = total.written_off.saturating_add(more.written_off);
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

pub(crate) fn count(row: &Row<'_>, column: usize) -> Result<u64, RowError> {
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
pub(crate) fn rows_max(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
