//! Rows of refused requests. Written every few seconds at most: the statements are prepared on use.

use std::collections::BTreeSet;

use tollgate_money::{AccountId, OperationId};

use crate::engine::{RowError, Select, Sql, SqlRow, WriteError, values};
use crate::error::ReadError;
use crate::reader::Reader;
use crate::refusals::{REFUSALS_MAX, RefusalRow};
use crate::usage::{PageCursor, RequestPosition, RequestsQuery};

pub(crate) fn write(connection: &dyn Sql, rows: &[RefusalRow]) -> Result<(), WriteError> {
    let insert = "INSERT INTO refusals (account_id, id, at, credential_id, model, status, code, total_us, requests)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
         ON CONFLICT (account_id, id) DO UPDATE SET
           at = CASE WHEN refusals.at > excluded.at THEN refusals.at ELSE excluded.at END, total_us = excluded.total_us,
           requests = refusals.requests + excluded.requests";
    connection.execute_each(insert, &mut |run| {
        rows.iter().try_for_each(|row| {
            run(values![
                row.account,
                row.id,
                row.at,
                row.credential,
                row.model,
                row.status,
                row.code,
                row.total_us,
                row.requests,
            ])
        })
    })?;
    let delete = "DELETE FROM refusals WHERE account_id = ?1 AND (at, id) <=
           (SELECT at, id FROM refusals WHERE account_id = ?1 ORDER BY at DESC, id DESC LIMIT 1 OFFSET ?2)";
    let accounts: BTreeSet<AccountId> = rows.iter().map(|row| row.account).collect();
    connection.execute_each(delete, &mut |run| {
        (accounts.iter()).try_for_each(|account| run(values![account, REFUSALS_MAX]))
    })?;
    Ok(())
}

impl Reader {
    /// Rows of an account, newest first.
    pub fn refusals(&self, wanted: &RequestsQuery) -> Result<Vec<RefusalRow>, ReadError> {
        let first = OperationId::from_bytes([0; 16]);
        let newest = RequestPosition {
            at: wanted.to,
            operation: first,
        };
        let (sql, mark) = match wanted.cursor {
            PageCursor::NewerThan(mark) => ("> (?6, ?7) ORDER BY at, id", mark),
            PageCursor::OlderThan(mark) => {
                ("< (?6, ?7) ORDER BY at DESC, id DESC", mark.min(newest))
            }
            PageCursor::Newest => ("< (?6, ?7) ORDER BY at DESC, id DESC", newest),
        };
        let sql = format!(
            "SELECT account_id, id, at, credential_id, model, status, code, total_us, requests FROM refusals
             WHERE account_id = ?1 AND at >= ?2 AND at < ?3 AND (model = ?4 OR ?4 IS NULL)
               AND (credential_id = ?5 OR ?5 IS NULL) AND (at, id) {sql} LIMIT ?8"
        );
        self.with("refused requests", |connection| {
            let values = values![
                wanted.account,
                wanted.from,
                wanted.to,
                wanted.model,
                wanted.credential,
                mark.at,
                mark.operation,
                wanted.limit,
            ];
            let mut found = connection.all(&sql, values, refusal)?;
            if matches!(wanted.cursor, PageCursor::NewerThan(_)) {
                found.reverse();
            }
            Ok(found)
        })
    }

    /// The number of requests behind all rows of the query, wherever the query's cursor is.
    pub fn refused(&self, wanted: &RequestsQuery) -> Result<u64, ReadError> {
        let sql = "SELECT CAST(coalesce(sum(requests), 0) AS BIGINT) FROM refusals
             WHERE account_id = ?1 AND at >= ?2 AND at < ?3 AND (model = ?4 OR ?4 IS NULL)
               AND (credential_id = ?5 OR ?5 IS NULL)";
        self.with("refused requests", |connection| {
            let values = values![
                wanted.account,
                wanted.from,
                wanted.to,
                wanted.model,
                wanted.credential,
            ];
            Ok(connection.number(sql, values)?.unsigned_abs())
        })
    }
}

fn refusal(row: &dyn SqlRow) -> Result<RefusalRow, RowError> {
    Ok(RefusalRow {
        account: row.get(0)?,
        id: row.get(1)?,
        at: row.get(2)?,
        credential: row.get(3)?,
        model: row.get(4)?,
        status: row.get(5)?,
        code: row.get(6)?,
        total_us: row.get(7)?,
        requests: row.get(8)?,
    })
}
