//! Fencing: a commit is refused when the node has a newer epoch than this process.
//!
//! Three checks at each commit, each for a case that escapes the two other checks:
//!
//! - the row of the node, read in the commit's transaction. `BEGIN IMMEDIATE` excludes other writers of this log until the commit, so the
//!   epoch in the row is valid for the commit. This check is exact for every process that opened the file by the resolved name;
//! - the epoch in the header of the file (`user_version`), read past SQLite. A process that opened another name has a separate log, and
//!   the rows in this log are invisible. A checkpoint of the process makes its epoch visible in the file;
//! - whether the name still refers to the file. Commits to a moved or replaced file are lost with the file.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rusqlite::{Connection, OptionalExtension, Statement};

use super::descriptor::Descriptor;
use super::failure::failure;
use super::file::NewEpoch;
use super::name::FileId;
use crate::error::{Failure, FailureKind};

/// Reads the epoch for the check of a commit.
const EPOCH: &str = "SELECT epoch, name FROM nodes WHERE id = ?1";

/// The fence of one run.
pub(crate) struct Fence {
    path: PathBuf,
    file: Descriptor,
    node: i64,
    epoch: i64,
    /// The epoch in the header of the file before this run checkpointed its epoch.
    header_before: i64,
    /// The epoch in the log before this run raised the epoch. A killed run may have left this epoch in the log alone. A checkpoint of
    /// another connection may have moved this epoch into the header since the read of `header_before`.
    log_before: i64,
    /// Whether the header has been seen with the epoch of this run.
    header_seen: AtomicBool,
    linked: AtomicBool,
    enabled: bool,
}

impl Fence {
    /// The fence before a run of `node` that is about to increment its epoch in the file at `path`.
    pub(crate) fn new(path: &Path, node: i64) -> io::Result<Fence> {
        let file = Descriptor::open(path)?;
        let header_before = file.user_version()?;
        Ok(Fence {
            path: path.to_owned(),
            file,
            node,
            epoch: 0,
            header_before,
            log_before: header_before,
            header_seen: AtomicBool::new(false),
            linked: AtomicBool::new(false),
            enabled: true,
        })
    }

    /// The fence after the run has raised its epoch. Without `enabled` the fence checks nothing.
    pub(crate) fn with_epoch(self, raised: NewEpoch, enabled: bool) -> Arc<Fence> {
        Arc::new(Fence {
            epoch: raised.epoch,
            log_before: raised.before,
            enabled,
            ..self
        })
    }

    /// Prepares the statement of [`Fence::check`].
    pub(crate) fn prepare<'c>(
        &self,
        connection: &'c Connection,
    ) -> rusqlite::Result<Statement<'c>> {
        connection.prepare(EPOCH)
    }

    /// Verifies that this run still owns the file. `epoch` is prepared on the writing connection, in its transaction.
    pub(crate) fn check(&self, epoch: &mut Statement<'_>) -> Result<(), Failure> {
        if !self.enabled {
            return Ok(());
        }
        self.check_name()?;
        let found = epoch
            .query_row([self.node], |row| {
                let epoch = row.get(0)?;
                // The name is read only for a foreign epoch, so that a commit allocates no memory here.
                let name = (epoch != self.epoch).then(|| row.get::<_, String>(1));
                Ok((epoch, name.transpose()?))
            })
            .optional()
            .map_err(|error| failure(&self.path, error))?;
        match found {
            Some((_, None)) => self.check_header(),
            Some((epoch, Some(name))) => Err(self.fenced(epoch, &format!(" by the {name}"))),
            None => Err(self.fenced(0, "")),
        }
    }

    /// Whether the name still refers to the opened file.
    fn check_name(&self) -> Result<(), Failure> {
        let path = self.path.display();
        let replaced = |what: &str| Failure {
            kind: FailureKind::Replaced,
            message: Arc::from(format!(
                "`{path}` {what} while this process had it open; nothing was written since. Put the right file there with no process running, then start again"
            )),
        };
        match fs::metadata(&self.path) {
            Ok(there) if FileId::of(&there) != self.file.id() => {
                Err(replaced("was replaced by another file"))
            }
            Ok(there) => {
                if there.nlink() > 1 && !self.linked.swap(true, Relaxed) {
                    tracing::warn!(
                        path = %path,
                        names = there.nlink(),
                        "database file has more than one name (hard links): the next start is refused until the others are removed"
                    );
                }
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(replaced("was moved or removed"))
            }
            Err(error) => Err(self.unreadable(&error)),
        }
    }

    /// Whether the header has the epoch of this run, or the previous epoch.
    fn check_header(&self) -> Result<(), Failure> {
        let found = self
            .file
            .user_version()
            .map_err(|error| self.unreadable(&error))?;
        if found == self.epoch {
            self.header_seen.store(true, Relaxed);
            return Ok(());
        }
        // Until the whole log is moved into the file for the first time; a reader may delay this move.
        let is_earlier = found == self.header_before || found == self.log_before;
        if is_earlier && !self.header_seen.load(Relaxed) {
            return Ok(());
        }
        Err(self.fenced(found, " through another name of the file"))
    }

    fn fenced(&self, found: i64, by: &str) -> Failure {
        Failure {
            kind: FailureKind::Fenced,
            message: Arc::from(format!(
                "`{}` was opened{by} in epoch {found} of node {}, and this process has epoch {}: it has lost the file and writes nothing more. Leave one process on this database, run `tollgate audit`, and start again",
                self.path.display(),
                self.node,
                self.epoch
            )),
        }
    }

    fn unreadable(&self, error: &io::Error) -> Failure {
        Failure {
            kind: FailureKind::Io,
            message: Arc::from(format!(
                "could not read `{}`; check its disk, then start again ({error})",
                self.path.display()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use tollgate_clock::Timestamp;

    use super::super::checkpoint::checkpoint;
    use super::super::file;
    use super::super::options::Options;
    use super::*;
    use crate::rows::RootSecret;

    #[test]
    fn an_epoch_left_in_the_log_by_a_killed_run_may_reach_the_header_before_that_of_this_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        let options = Options::new(Timestamp::from_micros(1), RootSecret([7; 32]));
        file::create_if_missing(&path, &options).expect("a store");
        let connection = file::connect(&path, &options).expect("it opens");
        let raise = || file::raise_epoch(&connection, &path, &options).expect("a run");
        let moved = || checkpoint(&connection).expect("a checkpoint");
        raise();
        moved();
        raise();
        let fence = Fence::new(&path, options.node).expect("it is there");
        let header = || {
            let file = Descriptor::open(&path).expect("it is there");
            file.user_version().expect("it has a header")
        };
        assert_eq!(header(), 1, "the second run is in the log alone");
        moved();
        let reader = Connection::open(&path).expect("it opens");
        reader
            .execute_batch("BEGIN; SELECT count(*) FROM nodes")
            .expect("a view");
        let fence = fence.with_epoch(raise(), true);
        let mut epoch = fence.prepare(&connection).expect("a statement");
        moved();
        assert_eq!(header(), 2, "the reader keeps the third run in the log");
        fence.check(&mut epoch).expect("it has the file");

        reader.execute_batch("COMMIT").expect("the end of the view");
        moved();
        assert_eq!(header(), 3);
        fence.check(&mut epoch).expect("it has the file");
        let other = fs::OpenOptions::new().write(true).open(&path);
        let other = other.expect("it opens");
        other
            .write_all_at(&2u32.to_be_bytes(), 60)
            .expect("the header is written");
        let refused = fence.check(&mut epoch).expect_err("it was seen");
        assert_eq!(refused.kind, FailureKind::Fenced, "{refused}");
    }
}
