//! Rows of refused requests. Written every few seconds at most, so their statements are prepared on use.

use std::collections::BTreeSet;

use rusqlite::{Connection, Row, params};
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, OperationId};

use super::columns::each_row;
use super::read::SqliteStore;
use crate::engine::{RowError, WriteError};
use crate::error::ReadError;
use crate::refusals::{REFUSALS_MAX, ReadRefusals, RefusalRow};
use crate::usage::{PageCursor, RequestPosition, RequestsQuery};

pub(crate) fn write(connection: &Connection, rows: &[RefusalRow]) -> Result<(), WriteError> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO refusals (account_id, id, at, credential_id, model, status, code, total_us, requests)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
         ON CONFLICT (account_id, id) DO UPDATE SET
           at = max(at, excluded.at), total_us = excluded.total_us, requests = requests + excluded.requests",
    )?;
    for row in rows {
        insert.execute(params![
            row.account.as_bytes(),
            row.id.as_bytes(),
            row.at.as_micros(),
            row.credential.as_ref().map(CredentialId::as_bytes),
            row.model.as_deref(),
            row.status,
            &*row.code,
            row.total_us.map(|us| i64::try_from(us).unwrap_or(i64::MAX)),
            i64::try_from(row.requests).unwrap_or(i64::MAX),
        ])?;
    }
    let mut delete = connection.prepare_cached(
        "DELETE FROM refusals WHERE account_id = ?1 AND (at, id) <=
           (SELECT at, id FROM refusals WHERE account_id = ?1 ORDER BY at DESC, id DESC LIMIT 1 OFFSET ?2)",
    )?;
    let accounts: BTreeSet<AccountId> = rows.iter().map(|row| row.account).collect();
    for account in accounts {
        delete.execute(params![account.as_bytes(), REFUSALS_MAX])?;
    }
    Ok(())
}

impl<W: Send + Sync> ReadRefusals for SqliteStore<W> {
    fn refusals(&self, wanted: &RequestsQuery) -> Result<Vec<RefusalRow>, ReadError> {
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
             WHERE account_id = ?1 AND at >= ?2 AND at < ?3 AND (?4 IS NULL OR model = ?4)
               AND (?5 IS NULL OR credential_id = ?5) AND (at, id) {sql} LIMIT ?8"
        );
        self.with("refused requests", |connection| {
            let mut found = Vec::new();
            let values = params![
                wanted.account.as_bytes(),
                wanted.from.as_micros(),
                wanted.to.as_micros(),
                wanted.model.as_deref(),
                wanted.credential.as_ref().map(CredentialId::as_bytes),
                mark.at.as_micros(),
                mark.operation.as_bytes(),
                i64::try_from(wanted.limit).unwrap_or(i64::MAX),
            ];
            each_row(connection, &sql, values, refusal, &mut |row| {
                found.push(row)
            })?;
            if matches!(wanted.cursor, PageCursor::NewerThan(_)) {
                found.reverse();
            }
            Ok(found)
        })
    }

    fn refused(&self, wanted: &RequestsQuery) -> Result<u64, ReadError> {
        let sql = "SELECT coalesce(sum(requests), 0) FROM refusals
             WHERE account_id = ?1 AND at >= ?2 AND at < ?3 AND (?4 IS NULL OR model = ?4)
               AND (?5 IS NULL OR credential_id = ?5)";
        self.with("refused requests", |connection| {
            let values = params![
                wanted.account.as_bytes(),
                wanted.from.as_micros(),
                wanted.to.as_micros(),
                wanted.model.as_deref(),
                wanted.credential.as_ref().map(CredentialId::as_bytes),
            ];
            let sum = connection
                .prepare_cached(sql)?
                .query_row(values, |row| row.get::<_, i64>(0))?;
            Ok(sum.unsigned_abs())
        })
    }
}

fn refusal(row: &Row<'_>) -> Result<RefusalRow, RowError> {
    Ok(RefusalRow {
        account: AccountId::from_bytes(row.get(0)?),
        id: OperationId::from_bytes(row.get(1)?),
        at: row.get(2).map(Timestamp::from_micros)?,
        credential: row
            .get::<_, Option<[u8; 16]>>(3)?
            .map(CredentialId::from_bytes),
        model: row.get(4)?,
        status: row.get(5)?,
        code: row.get(6)?,
        total_us: row.get::<_, Option<i64>>(7)?.map(i64::unsigned_abs),
        requests: row.get::<_, i64>(8)?.unsigned_abs(),
    })
}
