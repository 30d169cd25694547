//! Rows of the carried state of removed commits.

use std::ops::ControlFlow;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, OperationId};

use super::usage_days;
use crate::carry::{KNOWN_FROM, OpeningNode, OpeningRow, OpeningSum, RecordDigest, RowDigest};
use crate::commit_id;
use crate::engine::{EachBody, EngineError, JournalRows, RowError, Select, Sql, SqlRow, values};

/// The number of the last removal of commits, 0 before the first, and the digest of the carried rows.
pub(crate) fn number(connection: &dyn Sql) -> Result<(i64, RowDigest), RowError> {
    let sql = "SELECT number, digest FROM carry WHERE id = 1";
    let found = connection.first(sql, values![], |row| {
        Ok((row.get(0)?, RowDigest::of(row.get(1)?)))
    })?;
    Ok(found.unwrap_or_default())
}

/// Sets number of the last removal of commits and digest of the carried rows.
pub(crate) fn put_number(
    connection: &dyn Sql,
    number: i64,
    digest: &RowDigest,
) -> Result<(), EngineError> {
    let sql = "INSERT INTO carry (id, number, digest) VALUES (1, ?1, ?2)
        ON CONFLICT (id) DO UPDATE SET number = excluded.number, digest = excluded.digest";
    connection.execute(sql, values![number, digest.bytes()])?;
    if number == 1 {
        // An earlier release cannot read the record of a removal.
        let sql = "INSERT INTO meta (k, v) VALUES ('compatible', ?1)
            ON CONFLICT (k) DO UPDATE SET v = excluded.v WHERE CAST(meta.v AS BIGINT) < CAST(excluded.v AS BIGINT)";
        connection.execute(sql, values![KNOWN_FROM.to_string()])?;
    }
    Ok(())
}

fn node(row: &dyn SqlRow) -> Result<OpeningNode, RowError> {
    Ok(OpeningNode {
        node: row.get(0)?,
        id: row.get(1)?,
        hash: row.get(2)?,
        commits: row.get(3)?,
        at: row.get(4)?,
    })
}

/// Visits the nodes whose journal has removed commits, in order.
pub(crate) fn nodes(
    connection: &dyn Sql,
    each: &mut dyn FnMut(OpeningNode),
) -> Result<(), RowError> {
    let sql = "SELECT node_id, id, hash, commits, at FROM carried_nodes ORDER BY node_id";
    connection.each(sql, values![], node, each)
}

fn sum(row: &dyn SqlRow) -> Result<OpeningSum, RowError> {
    Ok(OpeningSum {
        account: row.get(0)?,
        node: row.get(1)?,
        charged: row.get(2)?,
        written_off: row.get(3)?,
        allotted: row.get(4)?,
    })
}

/// The sums of the removed records of an account in the journal of a node.
pub(crate) fn sum_of(
    connection: &dyn Sql,
    account: AccountId,
    node: i64,
) -> Result<Option<OpeningSum>, RowError> {
    let sql = "SELECT account_id, node_id, charged, written_off, allotted FROM carried_sums WHERE account_id = ?1 AND node_id = ?2";
    connection.first(sql, values![account, node], sum)
}

fn record(row: &dyn SqlRow) -> Result<OpeningRow, RowError> {
    Ok(OpeningRow::Record {
        operation: row.get(0)?,
        id: row.get(1)?,
        body: row.get(2)?,
    })
}

/// Visits the bodies of carried records, in the order of their commits. No carried record is unposted.
pub(crate) fn bodies(
    connection: &dyn Sql,
    which: JournalRows,
    each: &mut EachBody<'_>,
) -> Result<(), RowError> {
    let (first, last) = match which {
        JournalRows::All | JournalRows::Posted | JournalRows::Carried => (0, i64::MAX),
        JournalRows::OfNode(node) => commit_id::range(node),
        JournalRows::Unposted | JournalRows::UnpostedOfNode(_) => return Ok(()),
    };
    let sql = "SELECT body, id FROM carried_records WHERE id BETWEEN ?1 AND ?2 ORDER BY id, op_id";
    connection.query(sql, values![first, last], &mut |row| {
        each(row.get(1)?, row.get(0)?)?;
        Ok(ControlFlow::Continue(()))
    })
}

/// Visits every row.
pub(crate) fn all(connection: &dyn Sql, each: &mut dyn FnMut(OpeningRow)) -> Result<(), RowError> {
    nodes(connection, &mut |row| each(OpeningRow::Node(row)))?;
    let sql = "SELECT op_id, id, body FROM carried_records";
    connection.each(sql, values![], record, each)?;
    let sql = "SELECT account_id, node_id, charged, written_off, allotted FROM carried_sums";
    connection.each(sql, values![], sum, &mut |row| each(OpeningRow::Sum(row)))?;
    usage_days::carried(connection, &mut |account, day| {
        each(OpeningRow::Day(account, day));
    })
}

/// Inserts a row, or replaces the row with its key.
pub(crate) fn put(connection: &dyn Sql, row: &OpeningRow) -> Result<(), EngineError> {
    match row {
        OpeningRow::Node(row) => {
            let sql = "INSERT INTO carried_nodes (node_id, id, hash, commits, at) VALUES (?1, ?2, ?3, ?4, ?5)
                ON CONFLICT (node_id) DO UPDATE SET id = excluded.id, hash = excluded.hash, commits = excluded.commits, at = excluded.at";
            let values = values![row.node, row.id, row.hash, row.commits, row.at];
            connection.execute(sql, values).map(|_| ())
        }
        OpeningRow::Record {
            operation,
            id,
            body,
        } => {
            let sql = "INSERT INTO carried_records (op_id, id, body) VALUES (?1, ?2, ?3)";
            connection
                .execute(sql, values![operation, *id, body])
                .map(|_| ())
        }
        OpeningRow::Sum(row) => {
            let sql = "INSERT INTO carried_sums (account_id, node_id, charged, written_off, allotted) VALUES (?1, ?2, ?3, ?4, ?5)
                ON CONFLICT (account_id, node_id) DO UPDATE SET charged = excluded.charged, written_off = excluded.written_off,
                  allotted = excluded.allotted";
            let values = values![
                row.account,
                row.node,
                row.charged,
                row.written_off,
                row.allotted
            ];
            connection.execute(sql, values).map(|_| ())
        }
        OpeningRow::Day(account, day) => usage_days::put_carried(connection, *account, day),
    }
}

/// Removes a record and returns the record, if found.
pub(crate) fn remove_record(
    connection: &dyn Sql,
    operation: OperationId,
) -> Result<Option<OpeningRow>, RowError> {
    let sql = "SELECT op_id, id, body FROM carried_records WHERE op_id = ?1";
    let found = connection.first(sql, values![operation], record)?;
    if found.is_some() {
        let sql = "DELETE FROM carried_records WHERE op_id = ?1";
        connection.execute(sql, values![operation])?;
    }
    Ok(found)
}

/// Visits the digests of removed records in the pages of accounts.
pub(crate) fn pages(
    connection: &dyn Sql,
    each: &mut dyn FnMut(AccountId, RecordDigest),
) -> Result<(), RowError> {
    let sql = "SELECT account_id, records, digest FROM carried_pages";
    let read = |row: &dyn SqlRow| {
        let digest = RecordDigest {
            records: row.get(1)?,
            sum: row.get(2)?,
        };
        Ok((row.get(0)?, digest))
    };
    connection.each(sql, values![], read, &mut |(account, digest)| {
        each(account, digest);
    })
}

/// Adds to the digest of removed records in the pages of an account.
pub(crate) fn add_pages(
    connection: &dyn Sql,
    account: AccountId,
    more: RecordDigest,
) -> Result<(), RowError> {
    let sql = "SELECT records, digest FROM carried_pages WHERE account_id = ?1";
    let found = connection.first(sql, values![account], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (records, sum): (i64, i64) = found.unwrap_or_default();
    // Wraps, unlike an engine's sum.
    let (records, sum) = (
        records.wrapping_add(more.records),
        sum.wrapping_add(more.sum),
    );
    let sql = "INSERT INTO carried_pages (account_id, records, digest) VALUES (?1, ?2, ?3)
        ON CONFLICT (account_id) DO UPDATE SET records = excluded.records, digest = excluded.digest";
    connection.execute(sql, values![account, records, sum])?;
    Ok(())
}

/// Removes the pages of an account that end in a commit of a range and no later than `until`, and visits their bodies.
pub(crate) fn remove_pages(
    connection: &dyn Sql,
    account: AccountId,
    (first, last): (i64, i64),
    until: Timestamp,
    each: &mut dyn FnMut(&[u8]),
) -> Result<(), RowError> {
    let values = values![account, first, last, until];
    let sql =
        "SELECT body FROM postings WHERE account_id = ?1 AND at_max <= ?4 AND id BETWEEN ?2 AND ?3";
    connection.query(sql, values, &mut |row| {
        each(row.get(0)?);
        Ok(ControlFlow::Continue(()))
    })?;
    let sql =
        "DELETE FROM postings WHERE account_id = ?1 AND at_max <= ?4 AND id BETWEEN ?2 AND ?3";
    connection.execute(sql, values)?;
    Ok(())
}
