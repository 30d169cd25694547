//! `tollgate migrate`: moves the accounts and the ledger from an SQLite file to a PostgreSQL database.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::Serialize;
use tollgate_store::{ReadError, Reader, sqlite};

use super::audit::audit_with_progress;
use super::control_client::ControlClient;
use super::exit_code::SUCCESS;
use super::output::Output;
use super::progress::Progress;

/// The ending of the original's name after the copy.
const RENAMED: &str = "migrated";

/// Commits in a read.
const COMMITS: usize = 100;

/// The copied data.
#[derive(Serialize)]
struct Migrated {
    tables: Vec<Table>,
    accounts: u64,
    seals: u64,
    last_seals: Vec<LastSeal>,
    /// The name of the original from now on.
    original: String,
}

#[derive(Serialize)]
struct Table {
    name: String,
    rows: u64,
}

/// The last commit of a node. Its hash covers every commit of the node, including the bytes of the commits.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct LastSeal {
    node: i64,
    epoch: i64,
    number: i64,
    hash: String,
}

/// Copies the store of a file into the database of the settings, and verifies the copy. Continues an attempt that was interrupted.
pub(super) fn migrate(
    client: &ControlClient,
    from: &str,
    show_progress: bool,
    out: &mut Output<'_>,
) -> anyhow::Result<u8> {
    let path = original(from)?;
    let renamed = renamed(&path);
    if let Some(existing) = renamed.as_ref().filter(|to| to.exists()) {
        bail!(
            "`{}` exists already; move it elsewhere and migrate again",
            existing.display()
        );
    }
    let mut progress = Progress::new(show_progress, &client.clock);
    let original = sqlite::open_read(&path)?;
    let before = audit_with_progress(&original, "the original", &mut progress)?;
    drop(original);
    if !before.clean() {
        bail!(
            "the books of `{from}` do not balance; repair them first (`tollgate audit` with it as `store.url` says how)"
        );
    }
    let imported = client.import(&path, &mut |copied| {
        progress.report(|| {
            format!(
                "copied {} rows of the table `{}`",
                copied.rows, copied.table
            )
        });
    })?;
    let after = audit_with_progress(&*client.read_imported()?, "the copy", &mut progress)?;
    drop(progress);
    let last_seals = last_seals(&*client.read_imported()?)?;
    let is_same = last_seals == self::last_seals(&*sqlite::open_read(&path)?)?;
    if !is_same || before != after {
        bail!(
            "the audit or the last seals of the copy differ from those of `{from}`, which is as it was; empty the database and migrate again"
        );
    }
    // Before gateways open the copy: a gateway started on the original again would sell the credit a second time.
    if let Some(to) = &renamed {
        sqlite::rename(&path, to, &imported.lock).with_context(|| {
            format!("`{from}` is copied, but a gateway could still use it; remove the cause and migrate again")
        })?;
    }
    let original = renamed.unwrap_or(path);
    client.finish_import()?;
    drop(imported.lock);
    let migrated = Migrated {
        tables: (imported.tables.into_iter())
            .map(|table| Table {
                name: table.table,
                rows: table.rows,
            })
            .collect(),
        accounts: after.accounts,
        seals: after.seals,
        last_seals,
        original: original.display().to_string(),
    };
    let rows: u64 = migrated.tables.iter().map(|table| table.rows).sum();
    let line = format_args!(
        "{rows} rows of {} tables: {} accounts, {} seals, the books balance, the last seals are the same; the original is `{}` now",
        migrated.tables.len(),
        migrated.accounts,
        migrated.seals,
        migrated.original
    );
    out.line(&migrated, line)?;
    Ok(SUCCESS)
}

/// The file of the store to copy: `from` without `sqlite:`, with every link resolved.
fn original(from: &str) -> anyhow::Result<PathBuf> {
    let path = from
        .strip_prefix("sqlite:")
        .context("`--from` is not `sqlite:` and the path of a file")?;
    let path = sqlite::resolve(Path::new(path));
    if path.exists() {
        return Ok(path);
    }
    let migrated = sqlite::migrated(&path);
    match migrated.exists() {
        true => bail!(
            "there is no `{}`, but `{1}`, which it became by a migration; use `--from sqlite:{1}` to continue one that was interrupted",
            path.display(),
            migrated.display()
        ),
        false => bail!("there is no file `{}`; correct `--from`", path.display()),
    }
}

/// The name of the original after the copy; `None` where an interrupted attempt has renamed the original.
fn renamed(path: &Path) -> Option<PathBuf> {
    path.extension()
        .is_none_or(|ending| ending != RENAMED)
        .then(|| sqlite::migrated(path))
}

/// The last commits of every node.
fn last_seals(store: &Reader) -> Result<Vec<LastSeal>, ReadError> {
    let mut seals = Vec::new();
    for journal in store.retained()? {
        // From the last posted commit on.
        let mut after = journal.posted.map(|(epoch, number)| (epoch, number - 1));
        let mut last = None;
        while let Some(commit) = store.commits_after(journal.node, after, COMMITS)?.pop() {
            after = Some((commit.seal.epoch, commit.seal.number));
            last = Some(commit.seal);
        }
        seals.extend(last.map(|seal| LastSeal {
            node: seal.node,
            epoch: seal.epoch,
            number: seal.number,
            hash: base16ct::lower::encode_string(&seal.hash),
        }));
    }
    seals.sort_unstable_by_key(|seal| seal.node);
    Ok(seals)
}
