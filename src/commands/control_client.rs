//! Client of the control socket, with direct access to the database while no gateway runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use tollgate_clock::{Clock, Entropy};
use tollgate_ledger::Ledger;
use tollgate_money::AccountId;
use tollgate_store::postgres::{Imported, Progress};
use tollgate_store::sqlite::{self, Lock, RecordState, Repair};
use tollgate_store::{
    Admission, LostCommits, OpenError, Reader, Store, UnitOfWork, commit_blocking,
};

use crate::admin::control::{self, ControlError};
use crate::admin::operations::gateway;
use crate::admin::operations::operation::Operation;
use crate::admin::operations::upkeep::Complete;
use crate::admin::{Actor, AdminService, record_of_accepted_loss};
use crate::config::{Retention, Settings};
use crate::database::{self, Opener};
use crate::telemetry;

/// The name of a command's run in the store.
const NAME: &str = "command line";

/// Why a file is not imported into the database.
const NO_DATABASE: &str = "neither `--to` nor `store.url` names a PostgreSQL database; set one of them to the one to copy into";

/// Access to the database that the settings name.
pub(super) struct ControlClient {
    settings: Settings,
    /// The control socket of the gateway.
    pub(super) socket: PathBuf,
    entropy: Entropy,
    pub(super) clock: Clock,
}

impl ControlClient {
    pub(super) fn new(settings: Settings) -> ControlClient {
        ControlClient {
            socket: database::control_socket(&settings.store),
            settings,
            entropy: Entropy::system(),
            clock: Clock::system(),
        }
    }

    /// The file of the database, with every link resolved, for operations on files only.
    pub(super) fn file(&self, instead: &str) -> anyhow::Result<PathBuf> {
        database::file(&self.settings.store).with_context(|| {
            format!("`store.url` names a PostgreSQL database, and this command works on an SQLite file; {instead}")
        })
    }

    /// Refuses a database that has lost commits. Warns where the loss cannot be determined.
    pub(super) fn check_record(&self) -> anyhow::Result<()> {
        if let Some(problem) = database::check_record(&self.settings.store)? {
            telemetry::print_error(&format!("tollgate: warning: {problem}\n"));
        }
        Ok(())
    }

    /// The database compared with the record of its last commit.
    pub(super) fn record_state(&self) -> anyhow::Result<RecordState> {
        Ok(database::record_state(&self.settings.store)?)
    }

    /// Sets the record of the last commit to the database's current state, and writes a record of the audit log. Refused while a gateway
    /// has the database.
    pub(super) fn accept_loss(&self, lost: LostCommits) -> anyhow::Result<()> {
        let store = database::open_after_loss(&self.settings.store, &self.opener());
        let store = store.map_err(lock_error)?;
        let (ledger, _) = Ledger::start(store.clone(), self.clock.now())?;
        let record = record_of_accepted_loss(lost, &self.clock, &self.entropy);
        let unit = UnitOfWork::of(record, Admission::Always);
        let recorded = commit_blocking(&*store, unit);
        ledger.return_all();
        store.close();
        recorded?;
        Ok(())
    }

    /// The database, opened read-only, beside a gateway or without one.
    pub(super) fn read(&self) -> anyhow::Result<Arc<Reader>> {
        Ok(database::open_read(&self.settings.store, &self.opener())?)
    }

    /// Another store than the store of the settings, opened read-only, by its address or the path of a file.
    pub(super) fn read_at(&self, address: &str) -> anyhow::Result<Arc<Reader>> {
        let store = database::at(&self.settings.store, address)?;
        Ok(database::open_read(&store, &self.opener())?)
    }

    /// A client with another store in place of the store of the settings.
    pub(super) fn at(mut self, address: &str) -> anyhow::Result<ControlClient> {
        self.settings.store = database::at(&self.settings.store, address)?;
        Ok(self)
    }

    /// Performs an operation through the gateway, or in the database when no gateway runs.
    pub(super) fn change<O: Operation>(&self, operation: O) -> anyhow::Result<O::Output> {
        match control::request(&self.socket, &operation) {
            Err(ControlError::NoGateway { .. }) => self.directly(|perform| perform(operation)),
            answered => Ok(answered?),
        }
    }

    /// Requests data that only the running gateway has.
    pub(super) fn query<O: Operation>(&self, operation: &O) -> anyhow::Result<O::Output> {
        Ok(control::request(&self.socket, operation)?)
    }

    /// Has the running gateway record completed upkeep. Without an answer the upkeep is done nevertheless, and a note reports the missing
    /// record.
    pub(super) fn record_upkeep(&self, completed: &Complete) {
        if let Err(error) = control::request(&self.socket, completed) {
            let cause = telemetry::chain(&error);
            telemetry::print_error(&format!(
                "tollgate: note: this run is not in the gateway's audit log and metrics: {cause}\n"
            ));
        }
    }

    /// The settings file of this command. Refused where the running gateway has another settings file, because the gateway reads its file.
    pub(super) fn gateways_file(&self) -> anyhow::Result<PathBuf> {
        let own = self.settings.source.real_file();
        let own = own.context("the settings file is gone")?;
        match self.query(&gateway::Show {})?.settings {
            Some(of_gateway) if of_gateway != own => bail!(
                "the gateway reads its settings from `{0}`, and this command was given `{1}`; copy it to `{0}`, or name that one",
                of_gateway.display(),
                own.display()
            ),
            _ => Ok(own),
        }
    }

    /// Repeats an operation while `each` returns `true`. When no gateway runs, the database is opened once.
    pub(super) fn change_while<O: Operation + Clone>(
        &self,
        operation: &O,
        each: &mut dyn FnMut(O::Output) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        loop {
            match control::request(&self.socket, operation) {
                Ok(output) => {
                    if !each(output)? {
                        return Ok(());
                    }
                }
                Err(ControlError::NoGateway { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.directly(|perform| {
            while each(perform(operation.clone())?)? {}
            Ok(())
        })
    }

    /// The months that the settings keep.
    pub(super) fn retention(&self) -> anyhow::Result<&Retention> {
        let settings = self.settings.store.retention.as_ref();
        settings
            .context("the settings keep everything; set `store.keep_months` and `store.exports`")
    }

    /// Performs operations in the database while no gateway has the database.
    fn directly<O: Operation, T>(
        &self,
        act: impl FnOnce(&dyn Fn(O) -> anyhow::Result<O::Output>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let store = self.open()?;
        let (ledger, _) = Ledger::start(store.clone(), self.clock.now())?;
        let admin_service = AdminService::new(
            &self.settings,
            store.clone(),
            ledger.clone(),
            self.clock.clone(),
            Entropy::system(),
        );
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .context("cannot wait for the database")?;
        let changed = act(&|operation| {
            let output = admin_service.perform(operation, Actor::of_process().into());
            runtime.block_on(output).map_err(anyhow::Error::msg)
        });
        // Returns the allotments of the operation: no other node can request credit of this process later.
        ledger.return_all();
        store.close();
        changed
    }

    /// Opens the database for writing; refused while a gateway has it.
    pub(super) fn open(&self) -> anyhow::Result<Arc<dyn Store>> {
        let on_failure = Box::new(|_: &_| {});
        database::open(&self.settings.store, &self.opener(), on_failure, None).map_err(lock_error)
    }

    /// Rebuilds the state derived from the journal; refused while a gateway has the database.
    pub(super) fn rebuild_postings(&self) -> anyhow::Result<()> {
        match database::rebuild_postings(&self.settings.store, &self.opener()) {
            Err(OpenError::InUse { path, holder, .. }) => bail!(
                "`{}` is in use by {holder}; stop every gateway of the database, and repeat this",
                path.display()
            ),
            rebuilt => Ok(rebuilt?),
        }
    }

    /// Copies the store of an SQLite file into the database of the settings, or continues to.
    pub(super) fn import(
        &self,
        from: &Path,
        report: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<Imported> {
        let imported = database::import(&self.settings.store, from, &self.opener(), report);
        Ok(imported.context(NO_DATABASE)??)
    }

    /// The copy, before it is finished.
    pub(super) fn read_imported(&self) -> anyhow::Result<Arc<Reader>> {
        let opened = database::open_imported(&self.settings.store, &self.opener());
        Ok(opened.context(NO_DATABASE)??)
    }

    /// Makes the copy a store that gateways open.
    pub(super) fn finish_import(&self) -> anyhow::Result<()> {
        let finished = database::finish_import(&self.settings.store, &self.opener());
        Ok(finished.context(NO_DATABASE)??)
    }

    /// Locks the database file; refused while a gateway has it.
    pub(super) fn lock(&self, file: &Path) -> anyhow::Result<Lock> {
        Lock::acquire(file).map_err(lock_error)
    }

    /// Repairs the journal of the database at `path`: the original, whose lock the caller passes, or a copy.
    pub(super) fn repair(
        &self,
        path: &Path,
        lock: Option<Lock>,
        accepts_loss: bool,
    ) -> anyhow::Result<Repair> {
        let options = sqlite::Options {
            lock,
            accepts_loss,
            ..database::sqlite_options(&self.settings.store, &self.opener())
        };
        Ok(sqlite::repair(path, options)?)
    }

    fn opener(&self) -> Opener<'_> {
        Opener {
            name: NAME,
            clock: &self.clock,
            entropy: &self.entropy,
        }
    }
}

fn lock_error(error: OpenError) -> anyhow::Error {
    match error {
        // The lock is held and the socket does not answer: a gateway starts or stops, or runs on another machine.
        OpenError::InUse { .. } | OpenError::NodeInUse { .. } => anyhow::Error::new(error).context(
            "a gateway has locked the database and does not answer yet; try again in a moment, on the machine where it runs",
        ),
        other => other.into(),
    }
}

/// Parses an account's id.
pub(super) fn account(text: &str) -> anyhow::Result<AccountId> {
    Ok(text.parse()?)
}
