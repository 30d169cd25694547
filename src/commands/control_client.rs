//! Client of the control socket, with direct access to the database while no gateway runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use tollgate_clock::{Clock, Entropy};
use tollgate_ledger::Ledger;
use tollgate_money::AccountId;
use tollgate_store::sqlite::{self, Lock, Repair};
use tollgate_store::{OpenError, Read, RootSecret, Store};

use crate::admin::AdminService;
use crate::admin::control::{self, Applied, Change, Changes, ControlError};
use crate::config::{Durability, Settings, StoreUrl};

/// Access to the database that the settings name.
pub(super) struct ControlClient {
    settings: Settings,
    database: PathBuf,
    pub(super) clock: Clock,
}

impl ControlClient {
    pub(super) fn new(settings: Settings) -> ControlClient {
        let StoreUrl::Sqlite(path) = &settings.store.url;
        ControlClient {
            database: sqlite::resolve(path),
            settings,
            clock: Clock::system(),
        }
    }

    /// The path of the database, with all links resolved.
    pub(super) fn database(&self) -> &Path {
        &self.database
    }

    /// The database, opened read-only, beside a gateway or without one.
    pub(super) fn read(&self) -> anyhow::Result<Arc<dyn Read>> {
        Ok(sqlite::open_read(self.database())?)
    }

    /// Makes a change through the gateway, or in the database when none runs.
    pub(super) fn change(&self, change: &Change) -> anyhow::Result<Applied> {
        match control::request(&control::path(self.database()), change) {
            Ok(applied) => Ok(applied),
            Err(ControlError::NoGateway { .. }) => self.change_directly(change.clone()),
            Err(error) => Err(error.into()),
        }
    }

    /// Requests state that only the running gateway has.
    pub(super) fn query(&self, change: &Change) -> anyhow::Result<Applied> {
        Ok(control::request(&control::path(self.database()), change)?)
    }

    fn change_directly(&self, change: Change) -> anyhow::Result<Applied> {
        let store = self.open()?;
        let (ledger, _) = Ledger::start(store.clone(), self.clock.now())?;
        let admin_service = AdminService::new(
            &self.settings,
            store.clone(),
            ledger,
            self.clock.clone(),
            Entropy::system(),
        );
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .context("cannot wait for the database")?;
        let applied = runtime.block_on(admin_service.apply(change));
        store.close();
        applied.map_err(anyhow::Error::msg)
    }

    /// Opens the database for writing; refused while a gateway has it.
    pub(super) fn open(&self) -> anyhow::Result<Arc<dyn Store>> {
        sqlite::open(self.database(), self.options()).map_err(lock_error)
    }

    /// Rebuilds the state derived from the journal; refused while a gateway has the database.
    pub(super) fn rebuild_postings(&self) -> anyhow::Result<()> {
        sqlite::rebuild_postings(self.database(), self.options()).map_err(lock_error)
    }

    /// Locks the database; refused while a gateway has it.
    pub(super) fn lock(&self) -> anyhow::Result<Lock> {
        Lock::acquire(self.database()).map_err(lock_error)
    }

    /// Repairs the journal of the database at `path`: the original, whose lock the caller passes, or a copy.
    pub(super) fn repair(&self, path: &Path, lock: Option<Lock>) -> anyhow::Result<Repair> {
        let options = sqlite::Options {
            lock,
            ..self.options()
        };
        Ok(sqlite::repair(path, options)?)
    }

    fn options(&self) -> sqlite::Options {
        let random = RootSecret(Entropy::system().bytes());
        let mut options = sqlite::Options::new(self.clock.now(), random);
        options.node_name = "command line".to_owned();
        options.durability = match self.settings.store.durability {
            Durability::Power => sqlite::Durability::Power,
            Durability::Process => sqlite::Durability::Process,
        };
        options
    }
}

fn lock_error(error: OpenError) -> anyhow::Error {
    match error {
        // The lock is held and the socket does not answer: a gateway that starts or stops.
        OpenError::InUse { .. } => anyhow::Error::new(error).context(
            "a gateway has locked the database and does not answer yet; try again in a moment",
        ),
        other => other.into(),
    }
}

/// Parses an account's id.
pub(super) fn account(text: &str) -> anyhow::Result<AccountId> {
    Ok(text.parse()?)
}
