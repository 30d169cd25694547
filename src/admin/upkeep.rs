//! Upkeep: the last backup and the last audit of the ledger. The audit log keeps the records of upkeep, for a restarted process and for
//! other nodes.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tollgate_clock::Timestamp;
use tollgate_counters::Source;
use tollgate_store::{AuditLogQuery, AuditOutcome, ReadError, Reader, Store, reading};

use crate::telemetry::names;

/// The action of upkeep records in the audit log.
pub(super) const ACTION: &str = "upkeep";

/// Interval of reads of the audit log. A read finds the records of other nodes.
const READ_INTERVAL: Duration = Duration::from_secs(600);

/// Upkeep by a command in a separate process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Task {
    /// A backup was made.
    #[serde(rename = "tollgate backup")]
    Backup,
    /// An audit of the ledger was completed.
    #[serde(rename = "tollgate audit")]
    Audit,
}

impl Task {
    /// The subject of the task's records. The names of nodes have no space.
    const fn subject(self) -> &'static str {
        match self {
            Task::Backup => "tollgate backup",
            Task::Audit => "tollgate audit",
        }
    }
}

/// The last completed upkeep known to the process.
#[derive(Debug, Default)]
pub(crate) struct Upkeep(Mutex<Last>);

#[derive(Clone, Copy, Debug, Default)]
struct Last {
    backup: Option<Timestamp>,
    audit: Option<Timestamp>,
    violations: u64,
}

impl Upkeep {
    /// Notes a completed task. `violations` counts for an audit only.
    pub(super) fn set(&self, task: Task, at: Timestamp, violations: u64) {
        let mut last = self.0.lock();
        let known = match task {
            Task::Backup => &mut last.backup,
            Task::Audit => &mut last.audit,
        };
        // A read of the audit log may have begun before the newest record.
        if known.is_none_or(|known| known <= at) {
            *known = Some(at);
            if task == Task::Audit {
                last.violations = violations;
            }
        }
    }

    /// Reads the audit log at once and every ten minutes; does not end.
    pub(crate) async fn follow(self: Arc<Upkeep>, store: Arc<dyn Store>) {
        loop {
            for task in [Task::Backup, Task::Audit] {
                match reading(&store, move |store| newest(store, task)).await {
                    Ok(Some((at, violations))) => self.set(task, at, violations),
                    Ok(None) => {}
                    Err(error) => tracing::debug!(%error, "reading the last upkeep failed"),
                }
            }
            tokio::time::sleep(READ_INTERVAL).await;
        }
    }

    /// The metrics of upkeep.
    pub(crate) fn source(self: Arc<Upkeep>) -> Source {
        Box::new(move |samples| {
            let Last {
                backup,
                audit,
                violations,
            } = *self.0.lock();
            let times = [("backup", backup), ("audit", audit)];
            let known = times
                .into_iter()
                .filter_map(|(task, at)| Some((task, at?.as_secs())));
            samples.numbers(names::UPKEEP, known);
            samples.number(names::AUDIT_VIOLATIONS, violations);
        })
    }
}

/// The time of the newest record of a task, with the violations in the record. Blocks.
fn newest(store: &Reader, task: Task) -> Result<Option<(Timestamp, u64)>, ReadError> {
    let records = store.audit_log(&AuditLogQuery {
        subject: Some(task.subject().into()),
        limit: 1,
        ..AuditLogQuery::default()
    })?;
    let events = records.into_iter().map(|record| record.event);
    let mut completed =
        events.filter(|event| &*event.action == ACTION && event.outcome == AuditOutcome::Done);
    Ok(completed.next().map(|event| {
        let detail = serde_json::from_str(&event.detail);
        let detail: serde_json::Value = detail.unwrap_or_default();
        (event.at, detail["violations"].as_u64().unwrap_or_default())
    }))
}
