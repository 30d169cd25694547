//! Rebuilding of everything derived from the journal: balances, open holds, postings and references.

use std::path::Path;

use rusqlite::{Connection, params};

use super::columns::each_row;
use super::failure::{row_open_error, write_open_error};
use super::journal_tail::JournalTail;
use super::{Options, acquire_lock, file, journal, resolve};
use crate::engine::{RowError, WriteError};
use crate::entries::{Body, LedgerPart};
use crate::error::OpenError;
use crate::store::BatchRows;

/// Rebuilds everything derived from the journal of the store at `path`, in one transaction; the journal stays unchanged. Refused while a
/// gateway has the store, and where a commit of the journal differs from what was sealed: its changes would be lost permanently.
pub fn rebuild_postings(path: &Path, mut options: Options) -> Result<(), OpenError> {
    let path = &resolve(path);
    let _lock = acquire_lock(path, &mut options)?;
    let connection = file::connect(path, &options)?;
    file::in_transaction(&connection, path, || {
        verify_seals(&connection).map_err(|error| row_open_error(path, error))?;
        // A process that has the store in spite of the lock must not continue with its cached balances.
        file::raise_epoch_within(&connection, path, &options)?;
        rebuild(&connection, options.post_records).map_err(|error| write_open_error(path, error))
    })
}

/// Verifies that every commit matches its seal, follows the previous one, and exists if it was posted.
fn verify_seals(connection: &Connection) -> Result<(), RowError> {
    let lost = "SELECT 1 FROM nodes WHERE posted <> 0 AND posted NOT IN (SELECT id FROM journal)
                UNION ALL SELECT 1 FROM journal WHERE id >> 56 NOT IN (SELECT id FROM nodes)";
    if connection.prepare(lost)?.exists([])? {
        return Err(RowError::Damaged(String::from(
            "its journal differs from its seals: the last commit or its node is missing, so nothing can be rebuilt from it (`tollgate repair` shows what can be kept)",
        )));
    }
    let mut previous: Option<(i64, [u8; 32])> = None;
    let mut wrong = None;
    each_row(
        connection,
        journal::ALL,
        [],
        BatchRows::read,
        &mut |rows: BatchRows| {
            let seal = &rows.seal;
            let before = previous.filter(|(node, _)| *node == seal.node);
            let follows = seal.previous == before.map_or([0; 32], |(_, hash)| hash);
            if !follows || seal.reseal(&rows.body).as_ref() != Ok(seal) {
                wrong.get_or_insert((seal.node, seal.epoch, seal.number));
            }
            previous = Some((seal.node, seal.hash));
        },
    )?;
    match wrong {
        None => Ok(()),
        Some((node, epoch, number)) => Err(RowError::Damaged(format!(
            "commit {number} of node {node}, run {epoch} differs from its seal, so nothing can be rebuilt from it (`tollgate repair` shows what can be kept)"
        ))),
    }
}

/// Rebuilds everything derived from the journal, in the open transaction.
pub(super) fn rebuild(connection: &Connection, records_max: usize) -> Result<(), WriteError> {
    connection.execute_batch(
        "UPDATE accounts SET available = 0, held = 0;
         DELETE FROM holds; DELETE FROM postings; DELETE FROM credit_references;
         UPDATE nodes SET posted = 0",
    )?;
    let nodes = connection
        .prepare("SELECT id FROM nodes ORDER BY id")?
        .query_map([], |row| row.get(0))?
        .collect::<Result<Vec<i64>, _>>()?;
    for node in nodes {
        JournalTail::rebuild(connection, node, records_max)?;
    }
    references(connection)
}

fn references(connection: &Connection) -> Result<(), WriteError> {
    let mut insert = connection.prepare(
        "INSERT INTO credit_references (account_id, reference, op_id, kind, amount) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    let mut bodies = connection.prepare("SELECT body FROM journal ORDER BY id")?;
    let mut rows = bodies.query([])?;
    while let Some(row) = rows.next()? {
        // Verified to be readable.
        let Ok(body) = Body::read(row.get_ref(0)?.as_blob().unwrap_or_default()) else {
            continue;
        };
        for part in body.records().flatten().flat_map(|record| record.part()) {
            if let LedgerPart::Credit {
                operation,
                account,
                kind,
                amount,
                reference,
                ..
            } = part
            {
                insert.execute(params![
                    account.as_bytes(),
                    &*reference,
                    operation.as_bytes(),
                    kind.code(),
                    amount.get()
                ])?;
            }
        }
    }
    Ok(())
}
