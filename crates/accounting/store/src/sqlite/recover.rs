//! Recovery of the ledger in a file that no gateway uses: rebuilds the derived data, and repairs the journal.

use std::path::Path;

use rusqlite::Connection;

use super::failure::{open_error, row_open_error, write_open_error};
use super::file;
use super::last_commit::{self, Recorder};
use super::name::resolve;
use super::open::acquire_lock;
use super::options::{Durability, Options};
use crate::engine::Epochs;
use crate::error::OpenError;
use crate::recovery::{self, Repair, RepairRun};

/// Rebuilds all data derived from the journal of the store at `path`, in one transaction; the journal stays unchanged. Refused while a
/// gateway has the store. Also refused if a commit of the journal differs from its seal: the commit's changes would be lost permanently.
pub fn rebuild_postings(path: &Path, mut options: Options) -> Result<(), OpenError> {
    let path = &resolve(path);
    let _lock = acquire_lock(path, &mut options)?;
    let connection = file::connect(path, &options)?;
    file::in_transaction(&connection, path, || {
        recovery::verify_seals(&connection).map_err(|error| row_open_error(path, error))?;
        // A process that has the store in spite of the lock must not continue with its cached balances.
        connection
            .raise_epoch(&options.run())
            .and_then(|_| recovery::rebuild(&connection, options.post_records))
            .map_err(|error| write_open_error(path, error))
    })
}

/// Repairs the journal of the store at `path` and rebuilds all derived data, in one transaction. A journal without findings is not
/// changed. Refused while a gateway has the store, and if the file itself is damaged.
pub fn repair(path: &Path, mut options: Options) -> Result<Repair, OpenError> {
    let path = &resolve(path);
    let _lock = acquire_lock(path, &mut options)?;
    let connection = file::connect(path, &options)?;
    let failed = |error| open_error(path, "write", error);
    // Intermediate balances may be below a limit. The final balances are not, and the repair verifies the final balances.
    connection
        .pragma_update(None, "ignore_check_constraints", true)
        .map_err(failed)?;
    check_pages(&connection, path)?;
    connection
        .execute_batch("BEGIN IMMEDIATE")
        .map_err(failed)?;
    let run = RepairRun {
        run: options.run(),
        post_records: options.post_records,
    };
    let done = recovery::repair(&connection, &run).map_err(|error| write_open_error(path, error));
    let is_needed = done
        .as_ref()
        .is_ok_and(|repair| !repair.findings.is_empty());
    // The seals change, so the record names no commit of the repaired journal.
    let removed = match is_needed {
        true => last_commit::remove(path).map_err(|source| OpenError::File {
            action: "remove the record beside",
            path: path.to_owned(),
            source,
        }),
        false => Ok(()),
    };
    let end = if is_needed && removed.is_ok() {
        "COMMIT"
    } else {
        "ROLLBACK"
    };
    let ended = connection.execute_batch(end).map_err(failed);
    let done = done?;
    removed?;
    ended?;
    if is_needed && options.durability == Durability::Power {
        let root_secret = super::root_secret::root_secret(&connection, path)?;
        Recorder::start(path, &connection, options.node, &root_secret)?;
    }
    Ok(done)
}

/// Verifies that the engine can read the file: unreadable pages are out of scope for this repair.
fn check_pages(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let reported: String = connection
        .query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
        .map_err(|error| open_error(path, "read", error))?;
    if reported == "ok" {
        return Ok(());
    }
    Err(OpenError::Damaged {
        path: path.to_owned(),
        problem: format!(
            "has pages that the engine cannot read ({reported}), which no repair of the journal can restore"
        ),
    })
}
