//! Records of the audit log. Rare: the statements are prepared on use.

use crate::audit_log::{AuditEvent, AuditLogQuery, AuditOutcome, AuditRecord};
use crate::engine::{EngineError, RowError, Select, Sql, SqlRow, values};
use crate::error::ReadError;
use crate::reader::Reader;

/// Adds a record to the audit log.
pub(crate) fn insert(connection: &dyn Sql, record: &AuditRecord) -> Result<(), EngineError> {
    let event = &record.event;
    let outcome = event.outcome.word();
    let sql = "INSERT INTO audit_log (node, number, at, actor, action, subject, request, outcome, detail, prev, hash)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
    let values = values![
        record.node,
        record.number,
        event.at,
        event.actor,
        event.action,
        event.subject,
        event.request,
        outcome,
        event.detail,
        record.previous,
        record.hash,
    ];
    connection.write(sql, values)
}

/// Number and hash of the last record of a node.
pub(crate) fn last(connection: &dyn Sql, node: i64) -> Result<Option<(i64, [u8; 32])>, RowError> {
    let sql = "SELECT number, hash FROM audit_log WHERE node = ?1 ORDER BY number DESC LIMIT 1";
    connection.first(sql, values![node], |row| Ok((row.get(0)?, row.get(1)?)))
}

/// Visits every record, by node and number.
pub(crate) fn all(connection: &dyn Sql, each: &mut dyn FnMut(AuditRecord)) -> Result<(), RowError> {
    let sql = "SELECT node, number, at, actor, action, subject, request, outcome, detail, prev, hash FROM audit_log
             ORDER BY node, number";
    connection.each(sql, values![], record, each)
}

impl Reader {
    /// Records, newest first.
    pub fn audit_log(&self, wanted: &AuditLogQuery) -> Result<Vec<AuditRecord>, ReadError> {
        const COLUMNS: &str =
            "node, number, at, actor, action, subject, request, outcome, detail, prev, hash";
        let place = match wanted.before {
            Some(_) => "AND (at, node, number) < (?4, ?5, ?6)",
            None => "",
        };
        let sql = format!(
            "SELECT {COLUMNS} FROM audit_log WHERE (actor = ?1 OR ?1 IS NULL) AND (subject = ?2 OR ?2 IS NULL) {place}
             ORDER BY at DESC, node DESC, number DESC LIMIT ?3"
        );
        self.with("the audit log", |connection| match wanted.before {
            None => {
                let values = values![wanted.actor, wanted.subject, wanted.limit];
                connection.all(&sql, values, record)
            }
            Some(before) => {
                let values = values![
                    wanted.actor,
                    wanted.subject,
                    wanted.limit,
                    before.at,
                    before.node,
                    before.number,
                ];
                connection.all(&sql, values, record)
            }
        })
    }
}

fn record(row: &dyn SqlRow) -> Result<AuditRecord, RowError> {
    let outcome: &str = row.get(7)?;
    Ok(AuditRecord {
        node: row.get(0)?,
        number: row.get(1)?,
        event: AuditEvent {
            at: row.get(2)?,
            actor: row.get(3)?,
            action: row.get(4)?,
            subject: row.get(5)?,
            request: row.get(6)?,
            outcome: AuditOutcome::of_word(outcome).ok_or_else(|| RowError::Unknown {
                what: "the outcome of an act",
                value: outcome.to_owned(),
            })?,
            detail: row.get(8)?,
        },
        previous: row.get(9)?,
        hash: row.get(10)?,
    })
}
