//! `tollgate backup`: copies the database to a file, or to a folder of verified backups. The newest backups in the folder are kept.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::Serialize;
use tollgate_clock::Timestamp;
use tollgate_store::{OpenError, sqlite};

use super::audit::audit_with_progress;
use super::control_client::ControlClient;
use super::exit_code::SUCCESS;
use super::output::Output;
use super::progress::{Progress, percent};
use crate::admin::operations::upkeep::Complete;
use crate::admin::upkeep::Task;
use crate::args::BackupTarget;
use crate::telemetry::print_error;

/// The parts of a backup's name around its time.
const NAME: (&str, &str) = ("tollgate-", ".db");

/// The start of the name of a folder with a copy that is not verified yet.
const UNVERIFIED: &str = ".tollgate-backup-";

/// Backups in a folder unless `--keep` says otherwise.
const KEEP: usize = 7;

/// JSON form of a backup.
#[derive(Serialize)]
struct Made {
    file: PathBuf,
    database: PathBuf,
    bytes: u64,
    /// The verified part of the copy.
    verified: Option<Verified>,
    /// Earlier backups that were removed.
    removed: Vec<PathBuf>,
}

/// The verified part of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verified {
    /// Every page and index, and the ledger by an audit.
    Ledger,
    /// Every page and index; this release cannot audit the schema of an earlier release.
    Pages,
}

/// Copies the store to a file.
pub(super) fn backup(
    client: &ControlClient,
    target: &BackupTarget,
    show_progress: bool,
    out: &mut Output<'_>,
) -> anyhow::Result<u8> {
    let database = client.file("copy the database with `pg_dump` or `pg_basebackup`")?;
    let loss = client.check_record();
    let is_whole = loss.is_ok();
    if let Err(loss) = loss {
        // Earlier backups have the commits that this backup would lack, and the rotation would remove an earlier backup. A copy to a single
        // file is no backup of the rotation.
        match &target.file {
            None => return Err(loss),
            Some(_) => print_error(&format!("tollgate: warning: {loss:#}\n")),
        }
    }
    let mut progress = Progress::new(show_progress, &client.clock);
    let made = match (&target.file, &target.dir) {
        (Some(file), _) => {
            copy(&database, file, target.replace, &mut progress)?;
            Made {
                bytes: size(file)?,
                file: file.clone(),
                database,
                verified: None,
                removed: Vec::new(),
            }
        }
        (None, Some(folder)) => {
            let keep = target.keep.map_or(KEEP, |keep| keep.get().into());
            rotate(&database, folder, keep, client.clock.now(), &mut progress)?
        }
        (None, None) => bail!("name a file, or a folder with `--dir`"),
    };
    drop(progress);
    if is_whole {
        client.record_upkeep(&Complete {
            task: Task::Backup,
            violations: None,
        });
    }
    let (file, database) = (made.file.display(), made.database.display());
    let mut line = format!("{file}: backup of {database}");
    match made.verified {
        None => {}
        Some(Verified::Ledger) => line += ", verified",
        Some(Verified::Pages) => {
            line += ", every page verified; its ledger is of an earlier release, whose `tollgate audit` verifies it";
        }
    }
    if !made.removed.is_empty() {
        line += &format!("; earlier backups removed: {}", made.removed.len());
    }
    out.line(&made, line)?;
    Ok(SUCCESS)
}

fn size(file: &Path) -> anyhow::Result<u64> {
    let found = fs::metadata(file);
    Ok(found
        .with_context(|| format!("cannot read `{}`", file.display()))?
        .len())
}

fn copy(database: &Path, to: &Path, replaces: bool, progress: &mut Progress) -> anyhow::Result<()> {
    sqlite::backup_watched(database, to, replaces, &mut |pages| {
        progress.report(|| {
            let (done, total) = (pages.done, pages.total);
            format!(
                "copied {done} of {total} pages ({} %)",
                percent(done, total)
            )
        });
    })?;
    Ok(())
}

/// Makes a backup with the time in its name, and removes old backups except the newest.
///
/// The copy gets its name once the copy is durable and verified. Only after this step earlier backups are removed: a damaged copy or an
/// interrupted run costs no backup.
fn rotate(
    database: &Path,
    folder: &Path,
    keep: usize,
    now: Timestamp,
    progress: &mut Progress,
) -> anyhow::Result<Made> {
    let failed = || format!("cannot use the folder `{}`", folder.display());
    let own = File::open(folder).with_context(failed)?;
    // Locked to the end: another run would mistake the copy under way for the rest of an interrupted run.
    match own.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => bail!(
            "another backup into `{}` is under way; wait for its end",
            folder.display()
        ),
        Err(TryLockError::Error(error)) => return Err(error).with_context(failed),
    }
    remove_unverified(folder).with_context(failed)?;
    let work = tempfile::Builder::new()
        .prefix(UNVERIFIED)
        .tempdir_in(folder);
    let work = work.with_context(failed)?;
    let name = name_at(now);
    let part = work.path().join(&name);
    copy(database, &part, false, progress)?;
    let verified = verify(&part, progress)?;
    let file = folder.join(&name);
    if file.exists() {
        bail!("`{}` exists already; try again", file.display());
    }
    fs::rename(&part, &file).with_context(failed)?;
    own.sync_all().with_context(failed)?;
    let mut found = backups(folder).with_context(failed)?;
    // Keeps the backup of this run. Other backups have later names when the clock was ahead for a time.
    found.retain(|earlier| *earlier != file);
    found.sort_unstable();
    let kept = keep.saturating_sub(1);
    let removed: Vec<PathBuf> = found.drain(..found.len().saturating_sub(kept)).collect();
    for path in &removed {
        // Files beside the backup come from its readers, such as `tollgate compare`.
        for ending in ["-wal", "-shm", ""] {
            let mut removed = path.clone().into_os_string();
            removed.push(ending);
            let gone = fs::remove_file(removed);
            let is_gone = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
            if let Err(error) = gone
                && (ending.is_empty() || !is_gone(&error))
            {
                return Err(error).with_context(|| {
                    format!(
                        "`{}` is made, but the earlier backup `{}` cannot be removed",
                        file.display(),
                        path.display()
                    )
                });
            }
        }
    }
    own.sync_all().with_context(failed)?;
    Ok(Made {
        bytes: size(&file)?,
        file,
        database: database.to_owned(),
        verified: Some(verified),
        removed,
    })
}

/// Reads the whole copy again, and audits its ledger.
fn verify(copy: &Path, progress: &mut Progress) -> anyhow::Result<Verified> {
    progress.report(|| "verifying the pages of the copy".to_owned());
    sqlite::verify_pages(copy)?;
    let read = match sqlite::open_read(copy) {
        Err(OpenError::Older { .. }) => return Ok(Verified::Pages),
        opened => opened?,
    };
    let report = audit_with_progress(&read, "the copy", progress)?;
    if report.clean() {
        return Ok(Verified::Ledger);
    }
    bail!(
        "the books of the copy do not balance ({} violations), so it was removed and every earlier backup kept; `tollgate audit` says what is \
         wrong with the database, and `tollgate backup FILE` copies it as it is",
        report.violations_count
    )
}

/// `tollgate-20260131T031000.000Z.db`: in the order of their names backups are in the order of time.
fn name_at(now: Timestamp) -> String {
    let micros = now.as_micros();
    // To the second and without separators: RFC 3339 has `2026-01-31T03:10:00`.
    let text = now.rfc3339();
    let second: String = text
        .chars()
        .take(19)
        .filter(|c| !matches!(c, '-' | ':'))
        .collect();
    let ms = micros.rem_euclid(1_000_000) / 1000;
    format!("{}{second}.{ms:03}Z{}", NAME.0, NAME.1)
}

/// Whether a file was named by [`name_at`].
fn is_backup(name: &str) -> bool {
    let time = name
        .strip_prefix(NAME.0)
        .and_then(|rest| rest.strip_suffix(NAME.1));
    let shape = b"00000000T000000.000Z";
    time.is_some_and(|time| {
        time.len() == shape.len()
            && time.bytes().zip(shape).all(|(found, wanted)| match wanted {
                b'0' => found.is_ascii_digit(),
                wanted => found == *wanted,
            })
    })
}

fn backups(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_backup) && entry.file_type()?.is_file() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Removes the rest of an interrupted run.
fn remove_unverified(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name
            .to_str()
            .is_some_and(|name| name.starts_with(UNVERIFIED))
            && entry.file_type()?.is_dir()
        {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_time_and_sort_by_it() {
        let name = name_at(Timestamp::from_micros(1_769_829_000_012_345));
        assert_eq!(name, "tollgate-20260131T031000.012Z.db");
        assert!(is_backup(&name));
        assert!(name < name_at(Timestamp::from_micros(1_769_829_000_013_000)));
        assert_eq!(
            name_at(Timestamp::from_secs(1_769_829_000)),
            "tollgate-20260131T031000.000Z.db"
        );
        for other in [
            "tollgate-Mon.db",
            "tollgate-20260131T031000.012Z.db-wal",
            "tollgate-20260131T031000Z.db",
            "tollgate-2026013xT031000.012Z.db",
            "other-20260131T031000.012Z.db",
            "tollgate.db",
        ] {
            assert!(!is_backup(other), "{other}");
        }
    }
}
