//! What happened on an account, read in one transaction so that it adds up.

use rusqlite::{Connection, OptionalExtension, params};
use tollgate_money::{AccountId, Micros};

use super::SqliteStore;
use super::columns::{CREDITS, each_row, entry};
use super::failure::RowError;
use super::read::{DAY_US, Reader};
use crate::error::ReadError;
use crate::rows::CredentialId;
use crate::statement::{DaySpending, ReadStatement, Statement};

impl ReadStatement for Reader {
    fn statement(
        &self,
        account: AccountId,
        from: i64,
        to: i64,
    ) -> Result<Option<Statement>, ReadError> {
        self.with("a statement", |connection| {
            let view = connection.unchecked_transaction()?;
            read(&view, account, from, to)
        })
    }
}

impl ReadStatement for SqliteStore {
    fn statement(
        &self,
        account: AccountId,
        from: i64,
        to: i64,
    ) -> Result<Option<Statement>, ReadError> {
        self.reader.statement(account, from, to)
    }
}

fn read(
    connection: &Connection,
    account: AccountId,
    from: i64,
    to: i64,
) -> Result<Option<Statement>, RowError> {
    let id = account.as_bytes();
    let balance = connection
        .prepare_cached("SELECT available, held FROM accounts WHERE id = ?1")?
        .query_row([id], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((available, held)) = balance else {
        return Ok(None);
    };
    let one = |sql: &str, at: i64| -> Result<Option<i64>, RowError> {
        Ok(connection
            .prepare_cached(sql)?
            .query_row(params![id, at], |row| row.get(0))?)
    };
    let credited = one(
        "SELECT sum(d_avail + d_held) FROM entries WHERE account_id = ?1 AND ref IS NOT NULL AND at >= ?2",
        to,
    )?;
    let charged = one(
        "SELECT sum(cost) FROM usage WHERE account_id = ?1 AND at >= ?2",
        to,
    )?;
    let last_credit = one(
        "SELECT max(at) FROM entries WHERE account_id = ?1 AND ref IS NOT NULL AND at < ?2",
        from,
    )?;
    // The newest record that cost something; those that cost nothing leave no line.
    let last_charge: Option<i64> = connection
        .prepare_cached(
            "SELECT at FROM usage WHERE account_id = ?1 AND at < ?2 AND cost > 0 ORDER BY at DESC LIMIT 1",
        )?
        .query_row(params![id, from], |row| row.get(0))
        .optional()?;
    let mut statement = Statement {
        available: Micros::new(available),
        held: Micros::new(held),
        changed_since: Micros::new(credited.unwrap_or(0) - charged.unwrap_or(0)),
        credits: Vec::new(),
        spending: Vec::new(),
        older: last_credit.max(last_charge),
    };
    each_row(
        connection,
        CREDITS,
        params![id, from, to],
        entry,
        &mut |entry| statement.credits.push(entry),
    )?;
    each_row(
        connection,
        "SELECT at / ?4 AS day, credential_id, count(*), sum(cost) FROM usage
         WHERE account_id = ?1 AND at >= ?2 AND at < ?3 AND cost > 0 GROUP BY day, credential_id ORDER BY day DESC, credential_id",
        params![id, from, to, DAY_US],
        |row| {
            let credential: Option<[u8; 16]> = row.get(1)?;
            Ok(DaySpending {
                day_at: row.get::<_, i64>(0)? * DAY_US,
                credential: credential.map(CredentialId::from_bytes),
                requests: row.get::<_, i64>(2)?.unsigned_abs(),
                cost: Micros::new(row.get(3)?),
            })
        },
        &mut |spending| statement.spending.push(spending),
    )?;
    Ok(Some(statement))
}
