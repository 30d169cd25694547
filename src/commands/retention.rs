//! `tollgate retention`: exports the months that the settings do not keep, and removes the exported months.

use std::io::Write;

use anyhow::Context as _;
use tollgate_store::retention::closed_months;

use super::control_client::ControlClient;
use super::exit_code::SUCCESS;
use super::output::{self, Output};
use super::progress::Progress;
use crate::admin::operations::retention::{ExportedMonth, Retain, kept_from};

/// Exports and removes months that are old enough, file by file; or shows the months.
pub(super) fn run(
    client: &ControlClient,
    is_dry: bool,
    show_progress: bool,
    out: &mut Output<'_>,
) -> anyhow::Result<u8> {
    let settings = client.retention()?;
    let mut progress = Progress::new(show_progress, &client.clock);
    if is_dry {
        let before = kept_from(settings, client.clock.now());
        progress.report(|| "reading old commits".to_owned());
        let months = closed_months(&*client.read()?, before)?;
        let months: Vec<_> = months.into_iter().map(ExportedMonth::from).collect();
        drop(progress);
        show(&months, false, out)?;
        return Ok(SUCCESS);
    }
    let mut months: Vec<ExportedMonth> = Vec::new();
    let mut elsewhere = false;
    client.change_while(&Retain {}, &mut |retained| {
        elsewhere |= retained.is_elsewhere;
        let exported = retained.exported;
        let is_done = exported.is_none();
        months.extend(exported);
        progress.report(|| {
            let commits: u64 = months.iter().map(|month| month.commits).sum();
            format!(
                "exported and removed {commits} commits in {} files",
                months.len()
            )
        });
        Ok(!is_done)
    })?;
    drop(progress);
    show(&months, elsewhere, out)?;
    Ok(SUCCESS)
}

fn show(months: &[ExportedMonth], is_elsewhere: bool, out: &mut Output<'_>) -> anyhow::Result<()> {
    let value = serde_json::json!({ "exported": months, "is_elsewhere": is_elsewhere });
    out.show(&value, |out| print_text(months, is_elsewhere, out))
}

fn print_text(
    months: &[ExportedMonth],
    is_elsewhere: bool,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    if is_elsewhere {
        let line = "another node is the leader of the cluster, which exports and removes";
        writeln!(out, "{line}").context("cannot print")?;
    } else if months.is_empty() {
        writeln!(out, "no month is old enough").context("cannot print")?;
    }
    if months.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = months
        .iter()
        .map(|month| {
            let file = month.file.as_ref();
            [
                month.month.clone(),
                month.node.to_string(),
                month.commits.to_string(),
                month.bytes.to_string(),
                file.map_or_else(|| "-".to_owned(), |file| file.display().to_string()),
            ]
        })
        .collect();
    output::table(out, ["MONTH", "NODE", "COMMITS", "BYTES", "FILE"], &rows)
}
