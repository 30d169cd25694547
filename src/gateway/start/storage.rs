//! Second phase: the store and the ledger.

use std::sync::Arc;

use tokio::sync::watch;
use tollgate_identity::{Credentials, RefusedRequests};
use tollgate_ledger::Ledger;
use tollgate_store::{Failure, Store, sqlite};

use super::inputs::Inputs;
use super::sockets::Sockets;
use crate::config::Durability;
use crate::database::{self, Opener};
use crate::gateway::StartError;
use crate::gateway::classes::warn_about_classes;
use crate::gateway::prices::{ledger_error, record_new_prices};

/// The durable state and its copy in memory.
pub(super) struct Storage {
    pub(super) store: Arc<dyn Store>,
    pub(super) ledger: Ledger,
    pub(super) credentials: Arc<Credentials>,
    pub(super) refused: Arc<RefusedRequests>,
    failure: watch::Receiver<Option<Failure>>,
    pub(super) sockets: Sockets,
}

impl Storage {
    /// Takes the store over or opens the store, recovers the ledger, and records new prices.
    pub(super) fn open(inputs: &Inputs, mut sockets: Sockets) -> Result<Storage, StartError> {
        let predecessor = sockets.take_over(inputs)?;
        let (fail, failure) = watch::channel(None);
        let store = open_store(inputs, fail, predecessor)?;
        let now = inputs.clock.now();
        let (ledger, recovered) = Ledger::start(store.clone(), now).map_err(ledger_error)?;
        if recovered.spooled > 0 {
            tracing::warn!(
                units = recovered.spooled,
                late = recovered.late,
                "committed what an earlier run had left in its spool"
            );
        }
        if recovered.orphans > 0 {
            tracing::warn!(
                holds = recovered.orphans,
                "released holds of requests interrupted by an earlier stop"
            );
        }
        record_new_prices(&inputs.settings, &*store, now)?;
        let credentials = Credentials::open(&store);
        credentials.follow(&store, &inputs.clock);
        warn_about_classes(&store, &inputs.settings);
        Ok(Storage {
            store,
            ledger,
            credentials,
            refused: Arc::default(),
            failure,
            sockets,
        })
    }

    /// The failure of the store, once it has failed.
    pub(super) fn failure(&self) -> watch::Receiver<Option<Failure>> {
        self.failure.clone()
    }
}

fn open_store(
    inputs: &Inputs,
    fail: watch::Sender<Option<Failure>>,
    predecessor: Option<database::Predecessor>,
) -> Result<Arc<dyn Store>, StartError> {
    if !sqlite::has_compile_options() {
        tracing::warn!(
            "SQLite was built without the options of tollgate, so that commits wait longer; copy `.cargo/config.toml` of tollgate into the program's folder and build again"
        );
    }
    let settings = &inputs.settings;
    if settings.store.durability == Durability::Process {
        tracing::warn!("`store.durability` is `process`: a power failure may lose charges");
    }
    let opener = Opener {
        name: "gateway",
        clock: &inputs.clock,
        entropy: &inputs.entropy,
    };
    let on_failure = Box::new(move |failure: &Failure| {
        tracing::error!(kind = ?failure.kind, cause = %failure.message, "store failed");
        fail.send_replace(Some(failure.clone()));
    });
    Ok(database::open(
        &settings.store,
        &opener,
        on_failure,
        predecessor,
    )?)
}
