//! Retention: the months that the settings do not keep are exported and removed, one file at a time.

use tollgate_clock::{Clock, Entropy, Timestamp};
use tollgate_money::OperationId;
use tollgate_store::Store;
use tollgate_store::retention::{ClosedMonth, Retention, first_kept};

use super::changes::ChangeError;
use super::control::ExportedMonth;
use crate::config;

/// The start of what stays in the journal.
pub(crate) fn kept_from(settings: &config::Retention, now: Timestamp) -> Timestamp {
    first_kept(now, settings.keep_months)
}

/// Exports the next file and removes its commits. Blocks.
pub(super) fn step(
    settings: &config::Retention,
    store: &dyn Store,
    clock: &Clock,
    entropy: &Entropy,
) -> Result<Option<ExportedMonth>, ChangeError> {
    let retention = Retention {
        store,
        folder: &settings.exports,
        before: kept_from(settings, clock.now()),
        now: &|| clock.now(),
        new_operation: &|| OperationId::generate(clock.now(), entropy),
        // Two nodes would export the same commits to different folders.
        is_stopped: &|| !store.has_duties(),
    };
    let exported = retention.step(&mut |_, _| {})?;
    if let Some(month) = &exported {
        tracing::info!(
            node = month.node,
            month = month.month,
            commits = month.commits,
            bytes = month.bytes,
            file = month
                .file
                .as_ref()
                .map(|file| tracing::field::display(file.display())),
            "exported and removed old commits"
        );
    }
    Ok(exported.map(ExportedMonth::from))
}

impl From<ClosedMonth> for ExportedMonth {
    fn from(month: ClosedMonth) -> ExportedMonth {
        ExportedMonth {
            node: month.node,
            month: month.month,
            commits: month.commits,
            bytes: month.bytes,
            file: month.file,
        }
    }
}
