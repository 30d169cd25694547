//! Retention: old commits are exported to files, and then removed from the store.
//!
//! A file has commits of one node and one month. The file is complete, durable and verified before the first of its commits is removed,
//! and each removal is a commit. After a crash, the remaining commits are in the store and also in a file: the next run exports the
//! remaining commits again.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::OperationId;

use crate::carry::CarryPart;
use crate::entries::Body;
use crate::error::{CommitError, ReadError};
use crate::export::{EXPORT_SUFFIX, ExportError, ExportReader, ExportWriter};
use crate::file_lock::LockedFile;
use crate::reader::Reader;
use crate::store::{BatchRows, Replayed, RetainedJournal, Store, commit_blocking};
use crate::unit::{Admission, Part, UnitOfWork};

/// Commits per read and per removal: other commits wait for a removal.
const COMMITS: usize = 512;

/// Bytes of bodies after which a removal has enough commits.
const BYTES: usize = 256 << 10;

/// Accounts after which a removal has enough commits. The sums, days and pages of each account are read and written in sequence, with a
/// dozen round trips to a database server. Meanwhile no node can commit changes of shared state.
const ACCOUNTS: usize = 32;

/// Bytes of bodies after which a file ends. A month of many requests has several files. Writing and removing one file takes some minutes
/// at most.
const FILE_BYTES: u64 = 64 << 20;

/// Number of young commits after which the search for old commits ends: a busy node's commits of some minutes. Each run reads this many
/// commits of each node.
const NEWER_MAX: i64 = 1 << 16;

/// Why a run of the retention has ended. Commits that were exported and not removed are still in the store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RetentionError {
    /// The store could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// An export file could not be read or written.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The removal was refused, or its outcome is unknown.
    #[error("removing exported commits failed")]
    Remove(#[from] CommitError),
    /// A file has other commits than the store.
    #[error(
        "export file `{path}` does not have the commits that were read from the store; check the disk, and run it again"
    )]
    Differs {
        /// The file.
        path: PathBuf,
    },
    /// Another run writes to the folder.
    #[error("another run exports to `{folder}`; wait for its end")]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// The run was stopped.
    #[error("the retention was stopped; the next run continues")]
    Stopped,
}

/// Old commits of one node and one month, up to the size of one export file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedMonth {
    /// The node.
    pub node: i64,
    /// `YYYY-MM`, UTC, of the first commit with a right time.
    pub month: String,
    /// The number of commits.
    pub commits: u64,
    /// The bytes of the commits' bodies.
    pub bytes: u64,
    /// The export file; `None` in a dry run.
    pub file: Option<PathBuf>,
    /// Epoch and number of the last commit.
    last: (i64, i64),
}

/// The start of the first month to keep: `months` before the current month; the current month is kept too.
pub fn first_kept(now: Timestamp, months: u32) -> Timestamp {
    month_start(now, -i64::from(months)).unwrap_or(Timestamp::MIN)
}

/// The start of the month that is `after` months after the month of `at`.
fn month_start(at: Timestamp, after: i64) -> Option<Timestamp> {
    let text = at.rfc3339();
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let month = number(0..4)? * 12 + number(5..7)? - 1 + after;
    let (year, month) = (month.div_euclid(12), month.rem_euclid(12) + 1);
    Timestamp::from_rfc3339(&format!("{year:04}-{month:02}-01T00:00:00Z"))
}

/// For how long commits have been due for removal if `months` months are kept; `None` without due commits. Blocks.
///
/// # Errors
///
/// The store cannot be read.
pub fn overdue(read: &Reader, now: Timestamp, months: u32) -> Result<Option<Duration>, ReadError> {
    let mut longest = None;
    for journal in read.retained()? {
        let after = journal.carried.map(|carried| carried.last());
        let mut first = read.commits_after(journal.node, after, 1)?;
        // The clock was wrong, and was set right soon.
        if first.first().is_some_and(|commit| commit.seal.at > now) {
            first = read.commits_after(journal.node, after, COMMITS)?;
        }
        let Some(seal) = first
            .iter()
            .map(|commit| &commit.seal)
            .min_by_key(|seal| seal.at)
        else {
            continue;
        };
        // The last posted commit stays, at any age.
        if Some((seal.epoch, seal.number)) >= journal.posted {
            continue;
        }
        let due = month_start(seal.at, i64::from(months) + 1);
        if let Some(due) = due.filter(|due| *due <= now) {
            longest = longest.max(Some(now.duration_since(due)));
        }
    }
    Ok(longest)
}

/// The export of a run, without the run itself: a dry run.
pub fn closed_months(read: &Reader, before: Timestamp) -> Result<Vec<ClosedMonth>, RetentionError> {
    let mut found = Vec::new();
    for journal in read.retained()? {
        let mut after = None;
        while let Some(month) = next_month(read, &journal, after, before)? {
            after = Some(month.last);
            found.push(month);
        }
    }
    Ok(found)
}

/// The commits of the next file of a node, after the commit `after` or after the removed commits.
///
/// A wrong clock gives a commit a later time than its successors, or an earlier time than its predecessors. The minority is taken to be
/// wrong: the search passes young commits if more old commits follow.
fn next_month(
    read: &Reader,
    journal: &RetainedJournal,
    after: Option<(i64, i64)>,
    before: Timestamp,
) -> Result<Option<ClosedMonth>, ReadError> {
    let mut after = after.or(journal.carried.map(|carried| carried.last()));
    let mut found: Option<ClosedMonth> = None;
    // Counts since the last commit of the file: young commits less old commits, commits, and bytes.
    let (mut newer, mut commits, mut bytes) = (0, 0, 0);
    loop {
        let next = read.commits_after(journal.node, after, COMMITS)?;
        for commit in &next {
            let seal = &commit.seal;
            let place = (seal.epoch, seal.number);
            let month = month_of(seal.at);
            let is_old = seal.at < before;
            let is_next = (found.as_ref())
                .is_some_and(|found| (is_old && month > found.month) || found.bytes >= FILE_BYTES);
            // The last posted commit stays: the next commit follows it in the chain.
            if newer > NEWER_MAX || Some(place) >= journal.posted || is_next {
                return Ok(found);
            }
            newer += if is_old { -1 } else { 1 };
            commits += 1;
            bytes += commit.body.len() as u64;
            after = Some(place);
            if newer >= 0 {
                continue;
            }
            let found = found.get_or_insert(ClosedMonth {
                node: journal.node,
                month,
                commits: 0,
                bytes: 0,
                file: None,
                last: place,
            });
            newer = 0;
            found.commits += std::mem::take(&mut commits);
            found.bytes += std::mem::take(&mut bytes);
            found.last = place;
        }
        if next.len() < COMMITS {
            return Ok(found);
        }
    }
}

fn month_of(at: Timestamp) -> String {
    at.rfc3339().chars().take(7).collect()
}

/// A run of the retention.
pub struct Retention<'r> {
    /// The store.
    pub store: &'r dyn Store,
    /// The folder of the export files.
    pub folder: &'r Path,
    /// Commits before this time are exported.
    pub before: Timestamp,
    /// The current time.
    pub now: &'r dyn Fn() -> Timestamp,
    /// Makes a new id.
    pub new_operation: &'r dyn Fn() -> OperationId,
    /// Whether the run is to end: asked for each exported commit and before each removal.
    pub is_stopped: &'r dyn Fn() -> bool,
}

impl Retention<'_> {
    /// Exports and removes all old commits. `report` gets each file with the number of its removed commits. Blocks.
    ///
    /// # Errors
    ///
    /// The remaining commits stay in the store, and the next run continues.
    pub fn run(
        &self,
        report: &mut dyn FnMut(&ClosedMonth, u64),
    ) -> Result<Vec<ClosedMonth>, RetentionError> {
        let mut done = Vec::new();
        while let Some(month) = self.step(report)? {
            done.push(month);
        }
        Ok(done)
    }

    /// Exports and removes the commits of one file; `None` without old commits.
    ///
    /// # Errors
    ///
    /// As for [`Retention::run`].
    pub fn step(
        &self,
        report: &mut dyn FnMut(&ClosedMonth, u64),
    ) -> Result<Option<ClosedMonth>, RetentionError> {
        let _locked = self.lock()?;
        for journal in self.store.retained()? {
            if let Some(month) = self.export(&journal)? {
                report(&month, 0);
                self.remove(&month, report)?;
                return Ok(Some(month));
            }
        }
        Ok(None)
    }

    /// Locks the folder: another run would write the same file.
    fn lock(&self) -> Result<LockedFile, RetentionError> {
        let failed = |source| ExportError::File {
            path: self.folder.to_owned(),
            source,
        };
        let folder = File::open(self.folder).map_err(failed)?;
        LockedFile::of(folder).map_err(|error| match error {
            TryLockError::WouldBlock => RetentionError::InUse {
                folder: self.folder.to_owned(),
            },
            TryLockError::Error(error) => failed(error).into(),
        })
    }

    /// Writes the next file.
    fn export(&self, journal: &RetainedJournal) -> Result<Option<ClosedMonth>, RetentionError> {
        let Some(month) = next_month(self.store, journal, None, self.before)? else {
            return Ok(None);
        };
        let mut after = journal.carried.map(|carried| carried.last());
        let mut writer: Option<ExportWriter> = None;
        while after < Some(month.last) {
            let commits = self.store.commits_after(month.node, after, COMMITS)?;
            if commits.is_empty() {
                break;
            }
            for commit in commits {
                let seal = &commit.seal;
                let place = (seal.epoch, seal.number);
                if place > month.last {
                    break;
                }
                after = Some(place);
                if (self.is_stopped)() {
                    return Err(RetentionError::Stopped);
                }
                let writer = match &mut writer {
                    Some(writer) => writer,
                    None => {
                        let name = format!(
                            "node-{}-{}-run-{}-commit-{}{EXPORT_SUFFIX}",
                            seal.node, month.month, seal.epoch, seal.number
                        );
                        writer.insert(ExportWriter::create(self.folder.join(name), seal)?)
                    }
                };
                writer.add(&commit)?;
            }
        }
        let file = writer.map(ExportWriter::finish).transpose()?;
        Ok(Some(ClosedMonth { file, ..month }))
    }

    /// Reads the file, and then removes its commits.
    fn remove(
        &self,
        month: &ClosedMonth,
        report: &mut dyn FnMut(&ClosedMonth, u64),
    ) -> Result<(), RetentionError> {
        let Some(path) = &month.file else {
            return Ok(());
        };
        // The last commit of each removal, and the number of commits up to there.
        let mut removals = Vec::new();
        let (mut commits, mut since, mut bytes) = (0, 0, 0);
        let mut accounts = HashSet::new();
        let mut last = None;
        let mut file = ExportReader::open(path)?;
        while let Some(commit) = file.next()? {
            commits += 1;
            since += 1;
            bytes += commit.body.len();
            // The removal refuses an unreadable body.
            if let Ok(body) = Body::read(&commit.body) {
                let records = body.records().flatten();
                accounts.extend(records.map(|record| record.account()));
            }
            let place = (commit.seal.epoch, commit.seal.number);
            last = Some((place, commit.seal.hash, commits));
            if since >= COMMITS || bytes >= BYTES || accounts.len() >= ACCOUNTS {
                removals.extend(last.take());
                (since, bytes) = (0, 0);
                accounts.clear();
            }
        }
        removals.extend(last);
        let end = removals
            .last()
            .map(|(place, _, commits)| (*place, *commits));
        if end != Some((month.last, month.commits)) {
            return Err(RetentionError::Differs { path: path.clone() });
        }
        for ((epoch, number), hash, commits) in removals {
            if (self.is_stopped)() {
                return Err(RetentionError::Stopped);
            }
            let part = CarryPart {
                operation: (self.new_operation)(),
                last: (month.node, epoch, number),
                hash,
                at: (self.now)(),
            };
            let unit = UnitOfWork::of(Part::Carry(Box::new(part)), Admission::Normal);
            commit_blocking(self.store, unit)?;
            report(month, commits);
        }
        Ok(())
    }
}

/// Replays the export files of a folder from the first commit of each node on, and compares the result with the carried state. Blocks.
///
/// # Errors
///
/// A file that cannot be read or is damaged, and commits that are in no file.
pub fn verify_exports(read: &Reader, folder: &Path) -> Result<Replayed, RetentionError> {
    // By node and place of the first commit: files of an interrupted run overlap.
    let mut files = BTreeMap::new();
    let listed = fs::read_dir(folder).map_err(|source| ExportError::File {
        path: folder.to_owned(),
        source,
    })?;
    for entry in listed {
        let path = entry
            .map_err(|source| ExportError::File {
                path: folder.to_owned(),
                source,
            })?
            .path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.ends_with(EXPORT_SUFFIX) {
            continue;
        }
        let mut file = ExportReader::open(&path)?;
        if let Some(first) = file.next()? {
            let place = (file.node, first.seal.epoch, first.seal.number);
            files.insert((place, path.clone()), path);
        }
    }
    let snapshot = read.snapshot()?;
    let mut waiting = files.into_values();
    let mut file: Option<ExportReader> = None;
    let mut last = None;
    let mut failed = None;
    let replayed = snapshot.replayed(&mut || {
        loop {
            let next = match &mut file {
                Some(file) => file.next(),
                None => Ok(None),
            };
            match next {
                Ok(Some(commit)) => {
                    let place = (commit.seal.node, commit.seal.epoch, commit.seal.number);
                    if last.is_none_or(|last| place > last) {
                        last = Some(place);
                        return Ok(Some(commit));
                    }
                }
                Ok(None) => match waiting.next().map(|path| ExportReader::open(&path)) {
                    Some(Ok(opened)) => file = Some(opened),
                    Some(Err(error)) => return end(&mut failed, error),
                    None => return Ok(None),
                },
                Err(error) => return end(&mut failed, error),
            }
        }
    });
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(replayed?),
    }
}

/// Ends a replay whose next file cannot be read.
fn end(
    failed: &mut Option<ExportError>,
    error: ExportError,
) -> Result<Option<BatchRows>, ReadError> {
    *failed = Some(error);
    Ok(None)
}
