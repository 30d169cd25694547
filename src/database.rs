//! The database of the settings: opened for the gateway, for commands while no gateway has the database, and for reading.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use secrecy::ExposeSecret;
use tollgate_clock::{Clock, Entropy};
use tollgate_ledger::Ledger;
use tollgate_store::postgres::{
    self, DatabaseUrl, ImportError, Imported, NodeRole, NodeState, Progress,
};
use tollgate_store::sqlite::RecordState;
use tollgate_store::{Failure, OpenError, OutageTimes, Part, Reader, RootSecret, Store, sqlite};

use crate::config::{self, Durability, StoreUrl};

/// Called once when the store stops for good.
pub(crate) type OnFailure = Box<dyn Fn(&Failure) + Send + Sync>;

/// The run of the process before this process, after the hand-over of the store.
pub(crate) struct Predecessor {
    pub(crate) epoch: i64,
    /// The open files with the locks of an SQLite file.
    pub(crate) locks: Vec<File>,
}

/// A process that opens and keeps the database.
pub(crate) struct Opener<'o> {
    /// The store's name for the process in messages to another process.
    pub(crate) name: &'o str,
    pub(crate) clock: &'o Clock,
    pub(crate) entropy: &'o Entropy,
}

/// Opens the database for writing; refused while another process has the database.
pub(crate) fn open(
    settings: &config::Store,
    opener: &Opener<'_>,
    on_failure: OnFailure,
    predecessor: Option<Predecessor>,
) -> Result<Arc<dyn Store>, OpenError> {
    let epoch = predecessor.as_ref().map(|run| run.epoch);
    let clock = opener.clock.clone();
    let monotonic_us = move || clock.elapsed().as_micros() as u64;
    match &settings.url {
        StoreUrl::Sqlite(path) => {
            let lock = predecessor.map(|run| sqlite::Lock::received(path, run.locks));
            let options = sqlite::Options {
                monotonic_us: Box::new(monotonic_us),
                on_failure,
                lock: lock.transpose()?,
                predecessor: epoch,
                ..sqlite_options(settings, opener)
            };
            sqlite::open(path, options)
        }
        StoreUrl::Postgres(url) => {
            let options = || postgres::Options {
                role: match settings.node {
                    Some(_) => NodeRole::OneOfMany,
                    None => NodeRole::Alone,
                },
                ..postgres_options(settings, url, opener)
            };
            // Nodes of the other role have ended without recovery.
            if let Err(OpenError::Unrecovered { nodes, .. }) = postgres::check_nodes(&options()) {
                for node in nodes {
                    recover(settings, url, opener, node, RecoveredBy::Operator(None))?;
                }
            }
            postgres::open(postgres::Options {
                monotonic_us: Arc::new(monotonic_us),
                on_failure,
                predecessor: epoch,
                ..options()
            })
        }
    }
}

/// Opens the file of the database despite lost commits; refused while another process has the file.
pub(crate) fn open_after_loss(
    settings: &config::Store,
    opener: &Opener<'_>,
) -> Result<Arc<dyn Store>, OpenError> {
    let StoreUrl::Sqlite(path) = &settings.url else {
        return open(settings, opener, Box::new(|_| {}), None);
    };
    let options = sqlite::Options {
        accepts_loss: true,
        ..sqlite_options(settings, opener)
    };
    sqlite::open(path, options)
}

/// The nodes of the database; empty for a file, because a file has a single node.
pub(crate) fn nodes(
    settings: &config::Store,
    opener: &Opener<'_>,
) -> Result<Vec<NodeState>, OpenError> {
    match &settings.url {
        StoreUrl::Sqlite(_) => Ok(Vec::new()),
        StoreUrl::Postgres(url) => postgres::nodes(&postgres_options(settings, url, opener)),
    }
}

/// Who recovers a node.
pub(crate) enum RecoveredBy {
    /// The leader. Refused while the node to recover may still end answers.
    Leader,
    /// An operator. With a record of the audit log, unless the caller writes the record.
    Operator(Option<Part>),
}

/// Recovers a node whose process has ended; refused while the node has its lease. A file needs no recovery of nodes.
pub(crate) fn recover_node(
    settings: &config::Store,
    opener: &Opener<'_>,
    node: i64,
    by: RecoveredBy,
) -> Result<(), OpenError> {
    match &settings.url {
        StoreUrl::Sqlite(_) => Ok(()),
        StoreUrl::Postgres(url) => recover(settings, url, opener, node, by),
    }
}

fn recover(
    settings: &config::Store,
    url: &DatabaseUrl,
    opener: &Opener<'_>,
    node: i64,
    by: RecoveredBy,
) -> Result<(), OpenError> {
    let (is_automatic, record) = match by {
        RecoveredBy::Leader => (true, None),
        RecoveredBy::Operator(record) => (false, record),
    };
    let store = postgres::open(postgres::Options {
        role: NodeRole::Recovery(node),
        is_automatic,
        ..postgres_options(settings, url, opener)
    })?;
    let recovered = Ledger::recover_node(store, opener.clock.now(), record);
    let started = recovered.map_err(|error| OpenError::Recovery {
        node,
        source: Box::new(error),
    })?;
    tracing::warn!(
        node,
        holds = started.orphans,
        "recovered a node whose process had ended"
    );
    Ok(())
}

/// Connects to the server like a gateway, and disconnects: the result says whether the server can be reached. A file needs no server.
pub(crate) fn reach(settings: &config::Store, opener: &Opener<'_>) -> Result<(), OpenError> {
    match &settings.url {
        StoreUrl::Sqlite(_) => Ok(()),
        StoreUrl::Postgres(url) => postgres::reach(&postgres_options(settings, url, opener)),
    }
}

/// The process with the database, for a standby that waits for the process. `None` for a file, because the file's lock names the process.
pub(crate) fn holder(
    settings: &config::Store,
    opener: &Opener<'_>,
) -> Result<Option<String>, OpenError> {
    match &settings.url {
        StoreUrl::Sqlite(_) => Ok(None),
        StoreUrl::Postgres(url) => postgres::holder(&postgres_options(settings, url, opener)),
    }
}

/// Opens the database read-only, beside a gateway or without a gateway.
pub(crate) fn open_read(
    settings: &config::Store,
    opener: &Opener<'_>,
) -> Result<Arc<Reader>, OpenError> {
    match &settings.url {
        StoreUrl::Sqlite(path) => sqlite::open_read(path),
        StoreUrl::Postgres(url) => postgres::open_read(&postgres_options(settings, url, opener)),
    }
}

/// The settings of a store at another address: `postgres://` and so on, `sqlite:` and the path of a file, or a bare path. The password
/// stays.
pub(crate) fn at(settings: &config::Store, address: &str) -> anyhow::Result<config::Store> {
    let url = match address.split_once("://") {
        Some((scheme, _)) if scheme.starts_with("postgres") => {
            let parsed = DatabaseUrl::parse(address);
            StoreUrl::Postgres(
                parsed.map_err(|error| anyhow::anyhow!("the address of the database {error}"))?,
            )
        }
        _ => StoreUrl::Sqlite(address.strip_prefix("sqlite:").unwrap_or(address).into()),
    };
    Ok(config::Store {
        url,
        ..settings.clone()
    })
}

/// Rebuilds the state derived from the journal; refused while a gateway has the database.
pub(crate) fn rebuild_postings(
    settings: &config::Store,
    opener: &Opener<'_>,
) -> Result<(), OpenError> {
    match &settings.url {
        StoreUrl::Sqlite(path) => sqlite::rebuild_postings(path, sqlite_options(settings, opener)),
        StoreUrl::Postgres(url) => {
            postgres::rebuild_postings(&postgres_options(settings, url, opener))
        }
    }
}

/// Copies the store of an SQLite file into the database, or continues an earlier copy; `None` where the settings name a file, too.
pub(crate) fn import(
    settings: &config::Store,
    from: &Path,
    opener: &Opener<'_>,
    report: &mut dyn FnMut(&Progress),
) -> Option<Result<Imported, ImportError>> {
    with_postgres(settings, opener, |options| {
        postgres::import(from, options, report)
    })
}

/// Opens the copy for reading before the copy is finished.
pub(crate) fn open_imported(
    settings: &config::Store,
    opener: &Opener<'_>,
) -> Option<Result<Arc<Reader>, OpenError>> {
    with_postgres(settings, opener, postgres::open_imported)
}

/// Makes the copy a store for gateways.
pub(crate) fn finish_import(
    settings: &config::Store,
    opener: &Opener<'_>,
) -> Option<Result<(), ImportError>> {
    with_postgres(settings, opener, postgres::finish_import)
}

fn with_postgres<T>(
    settings: &config::Store,
    opener: &Opener<'_>,
    act: impl FnOnce(&postgres::Options) -> T,
) -> Option<T> {
    match &settings.url {
        StoreUrl::Sqlite(_) => None,
        StoreUrl::Postgres(url) => Some(act(&postgres_options(settings, url, opener))),
    }
}

/// Whether a first start can create the tables in an empty database. A missing file is created.
pub(crate) fn check_empty(settings: &config::Store, opener: &Opener<'_>) -> Result<(), OpenError> {
    match &settings.url {
        StoreUrl::Sqlite(_) => Ok(()),
        StoreUrl::Postgres(url) => postgres::check_empty(&postgres_options(settings, url, opener)),
    }
}

/// The times of the server; `None` where the settings name a file.
pub(crate) fn measure(
    settings: &config::Store,
    clock: &Clock,
) -> Option<Result<postgres::Measured, OpenError>> {
    let entropy = Entropy::system();
    let opener = Opener {
        name: "doctor",
        clock,
        entropy: &entropy,
    };
    match &settings.url {
        StoreUrl::Sqlite(_) => None,
        StoreUrl::Postgres(url) => {
            let options = postgres_options(settings, url, &opener);
            Some(postgres::measure(&options, clock))
        }
    }
}

/// The database compared with the record of the last commit. A server keeps no record. A file with unsynced commits keeps no record; a
/// record left from an earlier setting counts.
pub(crate) fn record_state(settings: &config::Store) -> Result<RecordState, OpenError> {
    let StoreUrl::Sqlite(path) = &settings.url else {
        return Ok(RecordState::Whole);
    };
    match sqlite::record_state(path)? {
        RecordState::Unknown(_) if settings.durability == Durability::Process => {
            Ok(RecordState::Whole)
        }
        state => Ok(state),
    }
}

/// The damage in the file of the database, by the file's pages and newest commits. A server is not checked for damage.
pub(crate) fn inspect(settings: &config::Store) -> Result<Option<String>, OpenError> {
    match &settings.url {
        StoreUrl::Sqlite(path) => sqlite::inspect(path),
        StoreUrl::Postgres(_) => Ok(None),
    }
}

/// Refuses a database with lost commits, by its record. Returns why no comparison was possible, as a sentence.
pub(crate) fn check_record(settings: &config::Store) -> Result<Option<String>, OpenError> {
    let Some(path) = file(settings) else {
        return Ok(None);
    };
    let record = sqlite::record_path(&path);
    match record_state(settings)? {
        RecordState::Whole => Ok(None),
        RecordState::Unknown(problem) => Ok(Some(format!(
            "the record of the last commit `{}` {problem}, so a loss of the newest commits would not be noticed; the next start makes it",
            record.display()
        ))),
        RecordState::Behind(lost) => Err(OpenError::CommitsLost { path, record, lost }),
    }
}

/// The file of the database, with every link resolved; `None` where a server has the database.
pub(crate) fn file(settings: &config::Store) -> Option<PathBuf> {
    match &settings.url {
        StoreUrl::Sqlite(path) => Some(sqlite::resolve(path)),
        StoreUrl::Postgres(_) => None,
    }
}

/// The name of the database, equal for every process on the database.
pub(crate) fn name(settings: &config::Store) -> String {
    match &settings.url {
        StoreUrl::Sqlite(path) => sqlite::resolve(path).display().to_string(),
        StoreUrl::Postgres(url) => url.to_string(),
    }
}

/// Verifies a later open of the database by this process, after the current process: the database exists, this release can use the schema,
/// and the spool can be written. A server's schema is updated: the other process, of an earlier release, also runs on the new schema.
pub(crate) fn prepare(settings: &config::Store, opener: &Opener<'_>) -> Result<(), OpenError> {
    if let Some(spool) = &settings.spool {
        check_spool(&spool.folder)?;
    }
    // A log removed beneath the other process is lost with the process.
    if let Err(error @ OpenError::CommitsLost { .. }) = check_record(settings) {
        return Err(error);
    }
    match (open_read(settings, opener), &settings.url) {
        (Err(OpenError::Older { .. }), StoreUrl::Postgres(url)) => {
            postgres::migrate(&postgres_options(settings, url, opener))
        }
        // The schema will be updated.
        (Err(OpenError::Older { .. }), StoreUrl::Sqlite(_)) => Ok(()),
        (read, _) => read.map(|_| ()),
    }
}

/// Verifies that a gateway can create or write the folder of the spool.
pub(crate) fn check_spool(folder: &Path) -> Result<(), OpenError> {
    let parent = folder.parent().filter(|_| !folder.exists());
    let made = tempfile::tempfile_in(parent.unwrap_or(folder));
    made.map(|_| ()).map_err(|source| OpenError::File {
        action: "write to",
        path: folder.to_owned(),
        source,
    })
}

/// The control socket of the gateway with the database.
pub(crate) fn control_socket(settings: &config::Store) -> PathBuf {
    match (&settings.control_socket, &settings.url) {
        (Some(path), _) => path.clone(),
        (None, StoreUrl::Sqlite(path)) => beside(&sqlite::resolve(path)),
        (None, StoreUrl::Postgres(_)) => PathBuf::from("tollgate.sock"),
    }
}

/// The control socket beside a database file.
fn beside(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".sock");
    PathBuf::from(name)
}

pub(crate) fn sqlite_options(settings: &config::Store, opener: &Opener<'_>) -> sqlite::Options {
    sqlite::Options {
        node_name: opener.name.to_owned(),
        durability: match settings.durability {
            Durability::Power => sqlite::Durability::Power,
            Durability::Process => sqlite::Durability::Process,
        },
        ..sqlite::Options::new(opener.clock.now(), RootSecret(opener.entropy.bytes()))
    }
}

fn postgres_options(
    settings: &config::Store,
    url: &DatabaseUrl,
    opener: &Opener<'_>,
) -> postgres::Options {
    let random = RootSecret(opener.entropy.bytes());
    let password = settings.password.as_ref();
    postgres::Options {
        node_name: settings.node.as_deref().unwrap_or(opener.name).to_owned(),
        spool: settings.spool.clone(),
        outage: OutageTimes {
            grace: settings.orphan_grace,
            ..OutageTimes::default()
        },
        password: password.map(|password| password.expose_secret().as_bytes().into()),
        ..postgres::Options::new(url.clone(), opener.clock.now(), random)
    }
}
