//! The inspection of a file: its pages, and the seals of the newest commits. A start runs the inspection on a separate thread beside its
//! requests; `tollgate doctor` runs the inspection on demand. The audit has the last word, on every commit.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use rusqlite::{Connection, InterruptHandle, OptionalExtension as _};

use super::failure::row_open_error;
use super::{file, name};
use crate::commit::Shared;
use crate::commit_id;
use crate::engine::RowError;
use crate::error::OpenError;
use crate::tables;

/// Number of commits of a node whose seals are verified.
const COMMITS: usize = 1024;

/// Maximum size of a file whose pages a start reads: a few seconds from a disk. The reader keeps the log from its restart meanwhile.
const BYTES_MAX: u64 = 1 << 30;

/// The damage in the store at `path`, if any: in its pages by `PRAGMA quick_check`, and in the seals of the newest commits. Reads the
/// whole file, with or without a running gateway.
///
/// # Errors
///
/// When the file does not open, or cannot be read at all.
pub fn inspect(path: &Path) -> Result<Option<String>, OpenError> {
    let path = &name::resolve(path);
    let connection = file::connect_read(path)?;
    damage(&connection, true).map_err(|error| row_open_error(path, error))
}

fn damage(connection: &Connection, reads_pages: bool) -> Result<Option<String>, RowError> {
    let mut nodes = Vec::new();
    tables::marks::posted(connection, &mut |node, _| nodes.push(node))?;
    for node in nodes {
        if let Some(damage) = broken_seal(connection, node)? {
            return Ok(Some(damage));
        }
    }
    if !reads_pages {
        return Ok(None);
    }
    let found: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    Ok((found != "ok").then(|| format!("SQLite finds damaged pages: {found}")))
}

/// Among the newest commits of a node, the first commit that does not match its seal, or does not follow the preceding commit.
fn broken_seal(connection: &Connection, node: i64) -> Result<Option<String>, RowError> {
    let (first, last) = commit_id::range(node);
    let sql =
        "SELECT id FROM journal WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT 1 OFFSET ?3";
    let before: Option<i64> = connection
        .query_row(sql, (first, last, COMMITS as i64), |row| row.get(0))
        .optional()?;
    let mut previous = None;
    for commit in
        tables::journal::commits_after(connection, node, before.unwrap_or(first), COMMITS)?
    {
        let seal = commit.seal;
        let follows = previous.is_none_or(|hash| hash == seal.previous);
        if !follows || seal.reseal(&commit.body).as_ref() != Ok(&seal) {
            let (epoch, number) = (seal.epoch, seal.number);
            return Ok(Some(format!(
                "commit {number} of node {node}, run {epoch} does not match its seal"
            )));
        }
        previous = Some(seal.hash);
    }
    Ok(None)
}

/// The inspection of a start, under way.
pub(crate) struct Inspection {
    interrupt: InterruptHandle,
    thread: Option<JoinHandle<()>>,
}

impl Inspection {
    /// Starts the inspection. A store also serves without an inspection.
    pub(crate) fn start(path: &Path, shared: &Arc<Shared>) -> Option<Inspection> {
        let started = file::connect_read(path)
            .map_err(|error| error.to_string())
            .and_then(|connection| {
                let (path, shared) = (path.to_owned(), Arc::clone(shared));
                Inspection::run(connection, path, shared).map_err(|error| error.to_string())
            });
        started
            .inspect_err(|error| tracing::warn!(%error, "cannot inspect the database for damage"))
            .ok()
    }

    fn run(connection: Connection, path: PathBuf, shared: Arc<Shared>) -> io::Result<Inspection> {
        let interrupt = connection.get_interrupt_handle();
        let size = std::fs::metadata(&path).map_or(0, |file| file.len());
        let run = move || {
            let problem = match damage(&connection, size <= BYTES_MAX) {
                Ok(found) => found,
                Err(RowError::Engine(error)) if is_interrupted(&*error.source) => None,
                Err(error) => Some(format!("it cannot be read: {error}")),
            };
            if let Some(problem) = problem {
                tracing::error!(path = %path.display(), "database is damaged: {problem}; run `tollgate audit`");
                let _ = shared.gauges.damage.set(problem);
            }
        };
        let thread = std::thread::Builder::new()
            .name(String::from("inspection"))
            .spawn(run)?;
        Ok(Inspection {
            interrupt,
            thread: Some(thread),
        })
    }
}

fn is_interrupted(error: &(dyn std::error::Error + 'static)) -> bool {
    let error = error.downcast_ref::<rusqlite::Error>();
    let code = error.and_then(rusqlite::Error::sqlite_error_code);
    code == Some(rusqlite::ErrorCode::OperationInterrupted)
}

impl Drop for Inspection {
    /// Interrupts the inspection, and waits for its end.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        while !thread.is_finished() {
            // The interrupt reaches only a running statement, and the thread may be between two statements.
            self.interrupt.interrupt();
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
        if thread.join().is_err() {
            tracing::warn!("inspection thread panicked");
        }
    }
}
