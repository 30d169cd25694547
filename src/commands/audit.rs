//! `tollgate audit`: verifies the ledger and rebuilds derived state.

use std::io::Write;
use std::path::Path;

use anyhow::{Context as _, bail};
use tollgate_ledger::audit::{self, Paid, Report, Sums};
use tollgate_store::retention::{RetentionError, verify_exports};
use tollgate_store::{ExportError, ReadError, Reader};

use super::control_client::ControlClient;
use super::exit_code::{Exit, FAILURE, INCOMPLETE, SUCCESS};
use super::output::Output;
use super::progress::Progress;
use crate::admin::operations::upkeep::Complete;
use crate::admin::upkeep::Task;
use crate::admin::views::AuditReportView;

/// The options of `tollgate audit`.
pub(super) struct AuditOptions<'o> {
    pub(super) fix_derived: bool,
    /// The folder of export files to verify.
    pub(super) exports: Option<&'o Path>,
    pub(super) show_progress: bool,
}

/// Verifies the ledger and prints the violations.
pub(super) fn audit(
    client: impl FnOnce() -> anyhow::Result<ControlClient>,
    options: &AuditOptions<'_>,
    out: &mut Output<'_>,
) -> anyhow::Result<u8> {
    // An error that prevents a complete audit has a separate exit code: the error says nothing about the ledger.
    run_audit(client, options, out).context(Exit(INCOMPLETE))
}

fn run_audit(
    client: impl FnOnce() -> anyhow::Result<ControlClient>,
    options: &AuditOptions<'_>,
    out: &mut Output<'_>,
) -> anyhow::Result<u8> {
    let client = client()?;
    if let Some(folder) = options.exports.filter(|folder| !folder.is_dir()) {
        bail!(
            "`{}` is no folder; name the one with the files of `store.exports`",
            folder.display()
        );
    }
    client.check_record()?;
    let mut progress = Progress::new(options.show_progress, &client.clock);
    if options.fix_derived {
        let before = audit_with_progress(&*client.read()?, "the books", &mut progress)?;
        client.rebuild_postings()?;
        for one in before.derived_differences {
            tracing::warn!(
                account = %one.account,
                was = %one.available_stored,
                is = %one.available_summed,
                was_held = %one.held_stored,
                is_held = %one.held_summed,
                "rebuilt balance"
            );
        }
    }
    let read = client.read()?;
    let mut report = audit_with_progress(&read, "the books", &mut progress)?;
    let do_books_balance = report.clean();
    if let Some(folder) = options.exports {
        progress.report(|| "replaying the export files".to_owned());
        verify_files(&read, folder, &mut report)?;
    }
    drop(progress);
    client.record_upkeep(&Complete {
        task: Task::Audit,
        violations: Some(report.violations_count),
    });
    out.show(&AuditReportView::of(&report), |out| {
        print_text(&report, do_books_balance, options.exports, out)
    })?;
    Ok(if report.clean() { SUCCESS } else { FAILURE })
}

/// An audit of `what`, with its progress.
pub(super) fn audit_with_progress(
    read: &Reader,
    what: &str,
    progress: &mut Progress,
) -> Result<Report, ReadError> {
    audit::audit_watched(read, &mut |rows, count| {
        progress.report(|| format!("auditing {what}: {count} {rows}"));
    })
}

/// Replays the export files of a folder; a file that is damaged or missing is a violation.
fn verify_files(read: &Reader, folder: &Path, report: &mut Report) -> anyhow::Result<()> {
    let problem = match verify_exports(read, folder) {
        Ok(replayed) if replayed.is_carried => return Ok(()),
        Ok(replayed) => format!(
            "the {} commits in the export files are not those that were removed: a file is missing, or of another store",
            replayed.commits
        ),
        Err(error @ RetentionError::Export(ExportError::Damaged { .. })) => error.to_string(),
        Err(RetentionError::Read(error @ ReadError::Damaged { .. })) => {
            format!("a commit in the export files does not follow the one before it: {error}")
        }
        Err(error) => return Err(error.into()),
    };
    report.add(audit::Violation {
        operation: None,
        account: None,
        what: problem,
    });
    Ok(())
}

fn print_text(
    report: &Report,
    do_books_balance: bool,
    exports: Option<&Path>,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    for violation in &report.violations {
        writeln!(out, "{violation}").context("cannot print")?;
    }
    print_sums(&report.sums, out)?;
    let paid = &report.paid;
    if *paid != Paid::default() {
        writeln!(
            out,
            "paid for the plan: {} by x402 ({} USD), {} by PayPal ({} USD), {} returned",
            paid.x402, paid.x402_amount, paid.paypal, paid.paypal_amount, paid.returned
        )
        .context("cannot print")?;
    }
    if report.removed_commits > 0 {
        print_removed_commits(report, exports, out)?;
    }
    for repair in &report.repairs {
        writeln!(out, "{repair}").context("cannot print")?;
    }
    let verdict = if report.clean() {
        "the books balance".to_owned()
    } else {
        format!("{} violations", report.violations_count)
    };
    writeln!(
        out,
        "{} accounts, {} operations, {} entries, {} open holds, {} seals, {} costs recalculated, {} records of the audit log: {verdict}",
        report.accounts,
        report.operations,
        report.entries,
        report.open_holds,
        report.seals,
        report.priced,
        report.audit_records
    )
    .context("cannot print")?;
    if report.clean() {
        return Ok(());
    }
    if do_books_balance {
        return writeln!(
            out,
            "the database is as it should be; name the folder that has all export files, or put back the one that is damaged or missing"
        )
        .context("cannot print");
    }
    writeln!(
        out,
        "if the journal is intact, `tollgate audit --fix-derived` rebuilds the balances; if not, restore a backup, or see what `tollgate repair` can keep of a file"
    )
    .context("cannot print")
}

fn print_sums(sums: &Sums, out: &mut dyn Write) -> anyhow::Result<()> {
    let rows = [
        ("sold", sums.sold),
        ("granted", sums.granted),
        ("spent", sums.spent),
        ("written off", sums.written_off),
        ("expired", sums.expired),
        ("corrected", sums.corrected),
        ("held", sums.held),
        ("available", sums.available),
        ("sum", sums.total()),
    ];
    for (name, amount) in rows {
        writeln!(out, "{name:<12}{amount:>24}").context("cannot print")?;
    }
    Ok(())
}

/// Prints the number of exported and removed commits, and whether their files are complete.
fn print_removed_commits(
    report: &Report,
    exports: Option<&Path>,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let removed = report.removed_commits;
    match exports {
        None => writeln!(
            out,
            "{removed} earlier commits are removed; `--exports FOLDER` verifies their files"
        ),
        Some(_) if !report.clean() => Ok(()),
        Some(folder) => writeln!(
            out,
            "{removed} earlier commits are removed, and are all in the files of `{}`",
            folder.display()
        ),
    }
    .context("cannot print")
}
