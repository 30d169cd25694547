//! Retention: months older than the kept months of the settings are exported and removed, a file at a time.

use std::path::PathBuf;
use std::time::Duration;

use http::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tollgate_clock::{Clock, Entropy, Timestamp};
use tollgate_filter::ApiError;
use tollgate_money::OperationId;
use tollgate_store::Store;
use tollgate_store::retention::{ClosedMonth, Retention, first_kept};

use super::operation::{Operation, Run};
use crate::admin::api::call::Call;
use crate::admin::api::endpoint::{Endpoint, Route};
use crate::admin::api::state::ApiState;
use crate::admin::changes::{ChangeError, panicked};
use crate::config;

/// Exports old commits of the journal to a file, and removes the commits.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Retain {}

/// Commits were exported and removed, or no commit was old enough.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Retained {
    /// The file; `None` when no commit is old enough.
    pub(crate) exported: Option<ExportedMonth>,
    /// Whether another node is the leader of the cluster. Only the leader exports and removes.
    pub(crate) is_elsewhere: bool,
}

/// Commits of one node and one month that were exported to a file and removed from the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ExportedMonth {
    /// The number of the node whose journal it is.
    pub(crate) node: i64,
    /// The month, such as `2026-01`.
    pub(crate) month: String,
    /// The number of commits.
    pub(crate) commits: u64,
    /// Their size in bytes.
    pub(crate) bytes: u64,
    /// The file; none for what a run would export.
    pub(crate) file: Option<PathBuf>,
}

impl Operation for Retain {
    type Output = Retained;
    const NAME: &'static str = "retention_run";
    const RESULT: &'static str = "retained";
    /// A run writes a single file and removes the file's commits.
    const TIMEOUT: Duration = Duration::from_secs(1800);

    async fn run(self, run: &Run<'_>) -> Result<Retained, ChangeError> {
        let is_elsewhere = !run.service.store.is_leader();
        let exported = match is_elsewhere {
            true => None,
            false => export(run).await?,
        };
        if exported.is_none() {
            // A run without effect is not an act.
            run.recorder.set_recorded();
        }
        Ok(Retained {
            exported,
            is_elsewhere,
        })
    }

    fn detail(output: &Retained) -> Value {
        let exported = output.exported.as_ref();
        exported.map_or(Value::Null, |month| serde_json::json!(month))
    }
}

/// Exports a file of old commits, and removes the commits.
async fn export(run: &Run<'_>) -> Result<Option<ExportedMonth>, ChangeError> {
    let service = run.service;
    let Some(retention) = service.retention.clone() else {
        return Err(ChangeError::conflict(
            "the settings keep everything; set `store.keep_months` and `store.exports`",
        ));
    };
    let (store, clock, entropy) = (&service.store, &service.clock, &service.entropy);
    let (store, clock, entropy) = (store.clone(), clock.clone(), entropy.clone());
    let step = tokio::task::spawn_blocking(move || step(&retention, &*store, &clock, &entropy));
    step.await.map_err(panicked)?
}

/// Commits that were exported and removed.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Retained")]
pub(in crate::admin) struct RetainedView {
    /// The file; missing when nothing is old enough, and where another node does it.
    #[serde(skip_serializing_if = "Option::is_none")]
    exported: Option<ExportedMonth>,
    /// Whether another node is the leader of the cluster, which exports and removes.
    is_elsewhere: bool,
}

impl Endpoint for Retain {
    type Answer = RetainedView;
    const ROUTE: Route = Route::change(
        "runRetention",
        Method::POST,
        "/retention",
        "Export old commits of the journal to one file, and remove them; repeat it until `exported` is missing. Which are old enough says \
         `store.keep_months`. It may take some minutes.",
    );

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<RetainedView, ApiError> {
        let Retained {
            exported,
            is_elsewhere,
        } = api.perform(Retain {}, call).await?;
        Ok(RetainedView {
            exported,
            is_elsewhere,
        })
    }
}

/// The start of the kept part of the journal.
pub(crate) fn kept_from(settings: &config::Retention, now: Timestamp) -> Timestamp {
    first_kept(now, settings.keep_months)
}

/// Exports the next file and removes the file's commits. Blocks.
fn step(
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
        // Two nodes would export a commit twice, to different folders.
        is_stopped: &|| !store.is_leader(),
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate_money::{AccountId, Micros};
    use tollgate_store::entries::LedgerPart;
    use tollgate_store::postgres::{self, DatabaseUrl, NodeRole};
    use tollgate_store::{
        Admission, CacheScope, EntryKind, NewAccount, Part, RootSecret, UnitOfWork, commit_blocking,
    };
    use tollgate_testing::Postgres;

    use super::*;

    const OLD: Timestamp = Timestamp::from_secs(1_700_000_000);
    const ACCOUNT: AccountId = AccountId::from_bytes([1; 16]);

    fn node(url: &str, name: &str) -> Arc<dyn Store> {
        let url = DatabaseUrl::parse(url).expect("an address");
        let store = postgres::open(postgres::Options {
            node_name: name.to_owned(),
            role: NodeRole::OneOfMany,
            post_records: 1,
            ..postgres::Options::new(url, OLD, RootSecret([7; 32]))
        });
        store.expect("the store opens")
    }

    fn grant(number: u8) -> Part {
        Part::Ledger(LedgerPart::Credit {
            operation: OperationId::from_bytes([number; 16]),
            account: ACCOUNT,
            kind: EntryKind::Grant,
            amount: Micros::new(1),
            reference: Arc::from(format!("grant {number}")),
            at: OLD,
        })
    }

    #[test]
    fn a_node_that_is_no_longer_the_leader_exports_and_removes_nothing() {
        let url = Postgres::shared().database();
        let clock = Clock::system();
        let first = node(&url, "a");
        let limit = clock.elapsed() + std::time::Duration::from_secs(30);
        while !first.is_leader() {
            assert!(clock.elapsed() < limit, "it is the only node");
            std::thread::yield_now();
        }
        let second = node(&url, "b");
        let account = Part::CreateAccount(Box::new(NewAccount {
            id: ACCOUNT,
            class: Arc::from("free"),
            cache_scope: CacheScope::Shared,
            credit_limit: Micros::ZERO,
            created_at: OLD,
        }));
        for part in [account].into_iter().chain((1..10).map(grant)) {
            let unit = UnitOfWork::of(part, Admission::Always);
            commit_blocking(&*first, unit).expect("it is committed");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let settings = config::Retention {
            keep_months: 1,
            exports: folder.path().to_owned(),
        };
        let entropy = Entropy::system();
        let step = |store: &dyn Store| step(&settings, store, &clock, &entropy);
        assert!(!second.is_leader());
        let stopped = step(&*second).expect_err("the other is the leader");
        let cause = stopped.message;
        assert!(cause.contains("was stopped"), "{cause}");
        let journal = first.retained().expect("the nodes");
        assert!(
            journal.iter().all(|one| one.carried.is_none()),
            "{journal:?}"
        );
        let month = step(&*first).expect("it is the leader");
        let month = month.expect("its commits are old");
        assert!(month.commits > 0 && month.file.is_some());
    }
}
