//! `tollgate repair`: repairs a journal that two processes have written concurrently, or a journal that has lost commits.
//!
//! The repair runs on a copy first, and the copy is audited. Without `--apply` the command ends here. With `--apply` the books stay
//! unchanged unless the audit of the copy is clean. Before the repair of the books, a copy of the books and the removed part of the journal
//! are kept in files beside the database.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;
use serde_json::value::RawValue;
use tollgate_ledger::audit::{self, Report};
use tollgate_store::entries::Body;
use tollgate_store::sqlite::{self, Action, BalanceChange, Finding, RecordState, Repair};
use tollgate_store::{LostCommits, OpenError};

use super::control_client::ControlClient;
use super::exit_code::{Exit, FAILURE, INCOMPLETE, SUCCESS};
use super::output::{self, Output};

/// The permissions that an operator gives the command.
#[derive(Clone, Copy)]
pub(super) struct Options {
    /// Repair the books.
    pub(super) apply: bool,
    /// Go on without lost commits.
    pub(super) accept_loss: bool,
}

/// Shows the effect of a repair, and applies it.
pub(super) fn run(
    client: impl FnOnce() -> anyhow::Result<ControlClient>,
    options: Options,
    out: &mut Output<'_>,
) -> anyhow::Result<u8> {
    // As with the audit: an error that prevents completion says nothing about the ledger.
    let done = client().and_then(|client| repair(&client, options));
    let done = done.context(Exit(INCOMPLETE))?;
    out.show(&Shown::of(&done), |out| print_text(&done, out))?;
    Ok(match (&done.outcome, &done.loss) {
        (
            _,
            Some(Loss {
                is_accepted: false, ..
            }),
        )
        | (Outcome::DryRun | Outcome::Refused, _) => FAILURE,
        (Outcome::Whole | Outcome::Repaired { .. }, _) => SUCCESS,
    })
}

/// Commits that the database has lost, by the record of the last commit.
struct Loss {
    lost: LostCommits,
    /// The operator accepts the database without the lost commits.
    is_accepted: bool,
}

/// The findings and the actions.
struct Done {
    repair: Repair,
    /// The audit of the repaired copy, or of the repaired books.
    audit: Report,
    outcome: Outcome,
    loss: Option<Loss>,
}

enum Outcome {
    /// The journal is intact.
    Whole,
    /// The repair ran on a copy.
    DryRun,
    /// The audit of the copy is not clean.
    Refused,
    /// The books are repaired.
    Repaired {
        /// A copy of the books before the repair.
        copy: PathBuf,
        /// The removed part of the journal.
        quarantine: Option<PathBuf>,
    },
}

fn repair(client: &ControlClient, options: Options) -> anyhow::Result<Done> {
    let Options { apply, accept_loss } = options;
    let database =
        &*client.file("restore a backup where `tollgate audit` finds a damaged journal")?;
    let lost = match client.record_state()? {
        RecordState::Behind(lost) => Some(lost),
        RecordState::Whole | RecordState::Unknown(_) => None,
    };
    if let Some(lost) = lost
        && apply
        && !accept_loss
    {
        return Err(OpenError::CommitsLost {
            path: database.to_owned(),
            record: sqlite::record_path(database),
            lost,
        }
        .into());
    }
    // From the copy to the end no other process may change the books.
    let lock = apply.then(|| client.lock(database)).transpose()?;
    let folder = database.parent().context("the database has no folder")?;
    let folder = tempfile::tempdir_in(folder).context("cannot make a folder for a copy")?;
    let copy = folder.path().join("copy.db");
    sqlite::backup(database, &copy)?;
    let trial = client.repair(&copy, None, accept_loss);
    let repair =
        trial.with_context(|| format!("cannot repair a copy of `{}`", database.display()))?;
    let audit = audit_of(&copy)?;
    let is_whole = repair.findings.is_empty();
    let mut loss = lost.map(|lost| Loss {
        lost,
        is_accepted: false,
    });
    let outcome = match lock {
        _ if is_whole && audit.clean() => Outcome::Whole,
        Some(_) if is_whole || !audit.clean() => Outcome::Refused,
        None => Outcome::DryRun,
        Some(lock) => {
            let repair_books = || client.repair(database, Some(lock), accept_loss);
            let (repair, copy, quarantine) = apply_repair(database, &repair, repair_books)?;
            if let Some(loss) = &mut loss {
                loss.is_accepted = true;
            }
            return Ok(Done {
                repair,
                audit: audit_of(database)?,
                outcome: Outcome::Repaired { copy, quarantine },
                loss,
            });
        }
    };
    if let Some(loss) = &mut loss
        && accept_loss
        && matches!(outcome, Outcome::Whole)
    {
        client.accept_loss(loss.lost)?;
        loss.is_accepted = true;
    }
    Ok(Done {
        repair,
        audit,
        outcome,
        loss,
    })
}

/// Saves the database and the part of the journal to remove in files beside the database, then repairs the database by `repair_books`.
/// After a failed repair the files are removed, so that the repair can be repeated.
fn apply_repair(
    database: &Path,
    trial: &Repair,
    repair_books: impl FnOnce() -> anyhow::Result<Repair>,
) -> anyhow::Result<(Repair, PathBuf, Option<PathBuf>)> {
    let copy = beside(database, "before-repair", trial.epoch);
    sqlite::backup(database, &copy)?;
    let quarantined = (trial.quarantined() > 0).then(|| quarantine(database, trial));
    let quarantine = quarantined.transpose().inspect_err(|_| remove(&copy))?;
    let repair = repair_books().inspect_err(|_| {
        remove(&copy);
        quarantine.iter().for_each(|path| remove(path));
    })?;
    Ok((repair, copy, quarantine))
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(%error, path = %path.display(), "cannot remove file of a failed repair");
    }
}

fn audit_of(database: &Path) -> anyhow::Result<Report> {
    Ok(audit::audit(&*sqlite::open_read(database)?)?)
}

/// A file beside the database for the repair of an epoch.
fn beside(database: &Path, what: &str, epoch: i64) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(format!(".{what}-{epoch}"));
    PathBuf::from(name)
}

/// Writes the removed part of the journal to a separate file, a JSON object a line, and waits until the file is durable.
fn quarantine(database: &Path, repair: &Repair) -> anyhow::Result<PathBuf> {
    let path = beside(database, "quarantine", repair.epoch);
    let mut text = Vec::new();
    for finding in &repair.findings {
        if matches!(finding.action, Action::Quarantine(_)) {
            serde_json::to_writer(&mut text, &Row::of(finding)).context("cannot write JSON")?;
            text.push(b'\n');
        }
    }
    sqlite::export(&path, &text)?;
    Ok(path)
}

fn print_text(done: &Done, out: &mut dyn Write) -> anyhow::Result<()> {
    for finding in &done.repair.findings {
        let (node, epoch, number) = finding.commit;
        write!(out, "commit {number} of node {node}, run {epoch}").context("cannot print")?;
        if let (Some(operation), Some(account)) = (finding.operation, finding.account) {
            write!(out, ": {operation} of {account}").context("cannot print")?;
        }
        writeln!(out, ": {}: {}", finding.what, action(&finding.action)).context("cannot print")?;
        for line in contents(&finding.action) {
            writeln!(out, "    {line}").context("cannot print")?;
        }
    }
    for change in &done.repair.accounts {
        let BalanceChange {
            account,
            available_before,
            available_after,
            held_before,
            held_after,
        } = change;
        writeln!(
            out,
            "{account}: {available_before} available and {held_before} held become {available_after} and {held_after}"
        )
        .context("cannot print")?;
    }
    if let Some(Loss { lost, is_accepted }) = &done.loss {
        let remedy = match is_accepted {
            true => "accepted, it goes on without them",
            false => {
                "put back its log or a newer copy, or go on without them by `tollgate repair --accept-loss`"
            }
        };
        writeln!(out, "the database has lost {lost}: {remedy}").context("cannot print")?;
    }
    if !matches!(done.outcome, Outcome::Whole) {
        for violation in &done.audit.violations {
            writeln!(out, "after the repair: {violation}").context("cannot print")?;
        }
    }
    let verdict = match &done.outcome {
        Outcome::Whole => "nothing to repair: the journal is intact".to_owned(),
        Outcome::DryRun if done.audit.clean() => {
            "nothing was changed; the books balance after `tollgate repair --apply`".to_owned()
        }
        Outcome::DryRun | Outcome::Refused => format!(
            "nothing was changed: {} violations would remain; run `tollgate audit --fix-derived` if only balances are wrong, else restore a backup",
            done.audit.violations_count
        ),
        Outcome::Repaired { copy, quarantine } => {
            let kept = quarantine.as_ref().map_or_else(String::new, |path| {
                format!(", the removed part of the journal in {}", path.display())
            });
            let verdict = match done.audit.clean() {
                true => "the books balance",
                false => "the books do not balance",
            };
            format!(
                "repaired; the copy made before is {}{kept}: {verdict}",
                copy.display()
            )
        }
    };
    writeln!(
        out,
        "{} commits, {} findings, {} quarantined, {} resealed, {} accounts changed: {verdict}",
        done.repair.commits,
        done.repair.findings.len(),
        done.repair.quarantined(),
        done.repair.resealed,
        done.repair.accounts.len()
    )
    .context("cannot print")
}

fn action(action: &Action) -> String {
    match action {
        Action::Reseal => "kept and resealed".to_owned(),
        Action::Fill(count) => format!("replaced by {count} empty commits"),
        Action::Quarantine(_) => "removed from the journal".to_owned(),
        Action::Charge(charged) => format!("kept as a charge of {charged}"),
        Action::Release(amount) => format!("{amount} released"),
        Action::Correct(amount) => format!("corrected by {amount}, up to its credit limit"),
    }
}

/// The content of a removed body, as far as it can be decoded.
fn contents(action: &Action) -> Vec<String> {
    let Action::Quarantine(bytes) = action else {
        return Vec::new();
    };
    let Ok(body) = Body::read(bytes) else {
        return vec!["cannot be read".to_owned()];
    };
    body.records()
        .map(|record| match record.and_then(|record| record.part()) {
            Ok(part) => part.to_string(),
            Err(broken) => format!("a record that cannot be read: it {broken}"),
        })
        .collect()
}

/// JSON form of a repair.
#[derive(Serialize)]
struct Shown<'a> {
    outcome: &'a str,
    clean_after: bool,
    epoch: i64,
    commits: u64,
    resealed: u64,
    quarantined: usize,
    copy: Option<&'a Path>,
    quarantine: Option<&'a Path>,
    findings: Vec<Row<'a>>,
    accounts: Vec<Change>,
    violations_count: u64,
    violations: Vec<String>,
    lost_commits: i64,
    lost_entries: i64,
    is_loss_accepted: bool,
}

#[derive(Serialize)]
struct Row<'a> {
    node: i64,
    run: i64,
    commit: i64,
    operation: Option<String>,
    account: Option<String>,
    what: &'a str,
    action: String,
    contents: Vec<String>,
    /// The removed bytes, in hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
}

impl Row<'_> {
    fn of(finding: &Finding) -> Row<'_> {
        let (node, run, commit) = finding.commit;
        let body = match &finding.action {
            Action::Quarantine(body) => Some(base16ct::lower::encode_string(body)),
            _ => None,
        };
        Row {
            node,
            run,
            commit,
            operation: finding.operation.map(|id| id.to_string()),
            account: finding.account.map(|id| id.to_string()),
            what: &finding.what,
            action: action(&finding.action),
            contents: contents(&finding.action),
            body,
        }
    }
}

#[derive(Serialize)]
struct Change {
    account: String,
    available_before: Box<RawValue>,
    held_before: Box<RawValue>,
    available_after: Box<RawValue>,
    held_after: Box<RawValue>,
}

impl Shown<'_> {
    fn of(done: &Done) -> Shown<'_> {
        let (outcome, copy, quarantine) = match &done.outcome {
            Outcome::Whole => ("whole", None, None),
            Outcome::DryRun => ("tried", None, None),
            Outcome::Refused => ("refused", None, None),
            Outcome::Repaired { copy, quarantine } => {
                ("repaired", Some(&**copy), quarantine.as_deref())
            }
        };
        let change = |change: &BalanceChange| Change {
            account: change.account.to_string(),
            available_before: output::credits(change.available_before),
            held_before: output::credits(change.held_before),
            available_after: output::credits(change.available_after),
            held_after: output::credits(change.held_after),
        };
        Shown {
            outcome,
            clean_after: done.audit.clean(),
            epoch: done.repair.epoch,
            commits: done.repair.commits,
            resealed: done.repair.resealed,
            quarantined: done.repair.quarantined(),
            copy,
            quarantine,
            findings: done.repair.findings.iter().map(Row::of).collect(),
            accounts: done.repair.accounts.iter().map(change).collect(),
            violations_count: done.audit.violations_count,
            violations: done
                .audit
                .violations
                .iter()
                .map(ToString::to_string)
                .collect(),
            lost_commits: done.loss.as_ref().map_or(0, |loss| loss.lost.commits),
            lost_entries: done.loss.as_ref().map_or(0, |loss| loss.lost.entries),
            is_loss_accepted: done.loss.as_ref().is_some_and(|loss| loss.is_accepted),
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_clock::Timestamp;
    use tollgate_store::RootSecret;

    use super::*;

    /// A failed repair, as on a full disk, leaves no file that blocks the next repair. Existing files of earlier repairs stay.
    #[test]
    fn a_failed_repair_removes_its_files_and_can_be_repeated() {
        let folder = tempfile::tempdir().expect("a folder");
        let database = folder.path().join("t.db");
        let options = sqlite::Options::new(Timestamp::from_micros(1), RootSecret([7; 32]));
        sqlite::open(&database, options)
            .expect("a new store")
            .close();
        let trial = Repair {
            epoch: 5,
            findings: vec![Finding {
                commit: (1, 1, 1),
                operation: None,
                account: None,
                what: "does not match its seal".to_owned(),
                action: Action::Quarantine(vec![1, 2]),
            }],
            ..Repair::default()
        };
        let copy = beside(&database, "before-repair", 5);
        let rows = beside(&database, "quarantine", 5);
        let failed = apply_repair(&database, &trial, || {
            assert!(copy.exists() && rows.exists(), "they are there before");
            anyhow::bail!("the disk is full")
        });
        let error = failed.expect_err("it fails").to_string();
        assert_eq!(error, "the disk is full");
        assert!(!copy.exists() && !rows.exists());

        fs::write(&rows, "existing").expect("written");
        let refused = apply_repair(&database, &trial, || panic!("it is not run"));
        let refused = refused.expect_err("it is refused").to_string();
        assert!(refused.contains("exists already"), "{refused}");
        assert!(!copy.exists());
        let left = fs::read_to_string(&rows).expect("it is there");
        assert_eq!(left, "existing");
        fs::rename(&rows, &copy).expect("renamed");
        let refused = apply_repair(&database, &trial, || panic!("it is not run"));
        assert!(refused.is_err() && copy.exists() && !rows.exists());
        fs::remove_file(&copy).expect("removed");

        let (_, kept, quarantine) =
            apply_repair(&database, &trial, || Ok(Repair::default())).expect("it is made");
        assert_eq!((kept, quarantine), (copy.clone(), Some(rows.clone())));
        assert!(copy.exists() && rows.exists());
    }
}
