//! Opening of a store: server, schema, lease and epoch in one transaction, then the threads.

mod opening;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use self::opening::Opened;
pub(super) use self::opening::enter;
use super::claim::Claim;
use super::engine::PostgresEngine;
use super::failure::{Names, PROFILE, open_error, row_open_error, write_open_error};
use super::feed::Feed;
use super::lease::{self, Holder, Lease, Renewer};
use super::options::{NodeRole, Options};
use super::read::Pool;
use super::schema;
use super::ticker::Ticker;
use super::writer::{Writer, set_idle_limit};
use crate::allotment::LEFT;
use crate::commit::{self, Settings, Shared, StartError};
use crate::commit_id;
use crate::engine::{RowError, Select as _, values};
use crate::error::OpenError;
use crate::outage::Outage;
use crate::reader::{OpenedStore, Reader};
use crate::rows::RootSecret;
use crate::schema::SCHEMA;
use crate::spool::{Owner, Spool, SpoolFile, SpooledUnit};
use crate::store::Store;
use tollgate_postgres::{Connection, Target, WAIT};

/// The number of a node that is alone, under any name: the node's ledger in memory decides on all credit.
const ALONE: i64 = 1;

/// Interval at which the outage of a database is noticed.
const OUTAGE_INTERVAL: Duration = Duration::from_millis(50);

/// The node whose threads are started, and the state that the threads share.
struct NodeThreads<'o> {
    options: &'o Options,
    target: &'o Arc<Target>,
    names: Arc<Names>,
    node: i64,
    epoch: i64,
    shared: &'o Arc<Shared>,
    outage: &'o Arc<Outage>,
}

/// Opens the store of a database with exclusive ownership, and creates the store in an empty database.
pub fn open(mut options: Options) -> Result<Arc<dyn Store>, OpenError> {
    let name = options.url.to_string();
    let target = Arc::new(target(&options)?.of_primary());
    let opened = enter(&target, &options)?;
    let Opened {
        connection,
        node,
        epoch,
        root_secret,
        change,
        spool,
        renewed,
    } = opened;
    let outage = Arc::new(Outage::new(options.outage, options.clock.clone(), renewed));
    let found = spool.read(&connection, node, &name)?;
    let shared = Arc::new(share(&mut options, found, &outage));
    let threads = NodeThreads {
        options: &options,
        target: &target,
        names: Arc::new(Names {
            database: name.clone(),
            node: (options.role == NodeRole::OneOfMany).then(|| options.node_name.clone()),
        }),
        node,
        epoch,
        shared: &shared,
        outage: &outage,
    };
    let engine = threads.start(connection, change)?;
    let settings = Settings {
        node,
        epoch,
        predecessor: options.predecessor,
        batch_max: options.batch_max,
        post_records: options.post_records,
        monotonic_us: Box::new(move || (options.monotonic_us)()),
        root_secret,
    };
    let writing = commit::start(engine, shared, settings).map_err(|error| match error {
        StartError::Row(error) => row_open_error(&name, error),
        StartError::Write(error) => write_open_error(&name, error),
        StartError::Failure(failure) => OpenError::Stopped(failure),
        StartError::Thread(error) => thread_error(&name, error),
    })?;
    Ok(Arc::new(OpenedStore {
        reader: Reader::new(Arc::new(Pool::new(target))),
        writing,
    }))
}

/// The writer's state, with the outage and the spool of the node. `found` is the spool's file with the units left by an earlier run. Takes
/// `on_failure` out of the options.
fn share(
    options: &mut Options,
    found: Option<(SpoolFile, Vec<SpooledUnit>)>,
    outage: &Arc<Outage>,
) -> Shared {
    let on_failure = std::mem::replace(&mut options.on_failure, Box::new(|_| {}));
    let mut shared = Shared::new(options.queue_max, on_failure);
    if let (Some(spool), Some(found)) = (&options.spool, found) {
        let (queue, outage) = (Arc::clone(&shared.queue), Arc::clone(outage));
        let gauges = Arc::clone(&shared.gauges);
        let spool = Spool::new(found, spool.bytes_max, queue, outage, gauges);
        shared.spool = Some(Arc::new(spool));
    }
    shared.outage = Some(Arc::clone(outage));
    shared
}

impl NodeThreads<'_> {
    /// Starts the threads of the node, and prepares its writer on `connection`. `change` is the number of the cluster's last change.
    fn start(self, connection: Connection, change: i64) -> Result<PostgresEngine, OpenError> {
        let name = &self.names.database;
        let thread = |source| thread_error(name, source);
        let (shared, outage) = (self.shared, self.outage);
        let renewal = self.start_renewal()?;
        let run = (self.node, self.epoch);
        let writer = Writer::new(Arc::clone(self.target), connection, run, Arc::clone(outage))
            .map_err(|error| row_open_error(name, error))?;
        let watch = watch_outage(shared, outage).map_err(thread)?;
        let writes = |spool| write_spool(shared, outage, spool);
        let spooling = shared.spool.as_ref().map(writes);
        let spooling = spooling.transpose().map_err(thread)?;
        // Every later read includes all changes so far.
        let now = (self.options.monotonic_us)();
        shared.gauges.feed_read_us.store(now.max(1), Relaxed);
        let feed = self.start_feed(change)?;
        Ok(PostgresEngine {
            writer,
            renewal,
            outage: watch,
            spooling,
            spool: shared.spool.clone(),
            feed,
            names: self.names,
        })
    }

    /// Starts the renewal of the lease, on a separate connection.
    fn start_renewal(&self) -> Result<Ticker, OpenError> {
        let name = &self.names.database;
        let renewing = Connection::open(self.target).and_then(lease::limited);
        let renewing = renewing.map_err(|error| open_error(name, "open", error))?;
        let renewer = Renewer {
            target: Arc::clone(self.target),
            names: Arc::clone(&self.names),
            connection: Some(renewing),
            node: self.node,
            epoch: self.epoch,
            shared: Arc::clone(self.shared),
            outage: Arc::clone(self.outage),
            monotonic_us: Arc::clone(&self.options.monotonic_us),
            is_leader: false,
            is_late: false,
            recorded: None,
            is_comparing_late: false,
        };
        renewer.start().map_err(|source| thread_error(name, source))
    }

    /// Starts the feed of the changes after `change`, for one of several nodes.
    fn start_feed(&self, change: i64) -> Result<Option<Ticker>, OpenError> {
        match self.options.role {
            NodeRole::OneOfMany => {
                let feed = Feed {
                    target: Arc::clone(self.target),
                    names: Arc::clone(&self.names),
                    connection: None,
                    number: change,
                    shared: Arc::clone(self.shared),
                    monotonic_us: Arc::clone(&self.options.monotonic_us),
                    is_late: false,
                };
                let started = feed.start();
                let started = started.map_err(|source| thread_error(&self.names.database, source));
                started.map(Some)
            }
            NodeRole::Alone | NodeRole::Recovery(_) => Ok(None),
        }
    }
}

/// A thread of the store that was not started.
fn thread_error(name: &str, source: std::io::Error) -> OpenError {
    OpenError::File {
        action: "start a thread for",
        path: PathBuf::from(name),
        source,
    }
}

/// Starts the thread that refuses new operations while the database does not answer.
fn watch_outage(shared: &Arc<Shared>, outage: &Arc<Outage>) -> std::io::Result<Ticker> {
    let interval = OUTAGE_INTERVAL.min(outage.times.spool_after / 4);
    let (refreshed, outage) = (Arc::clone(shared), Arc::clone(outage));
    Ticker::start("outage", interval, shared, move || {
        refresh(&refreshed, &outage);
        ControlFlow::Continue(())
    })
}

/// Starts the thread that writes the spool, separate from the outage's thread: the disk of the spool must not stop the outage's thread.
fn write_spool(
    shared: &Arc<Shared>,
    outage: &Arc<Outage>,
    spool: &Arc<Spool>,
) -> std::io::Result<Ticker> {
    let interval = OUTAGE_INTERVAL.min(outage.times.spool_after / 4);
    let (refreshed, outage, spool) = (Arc::clone(shared), Arc::clone(outage), Arc::clone(spool));
    Ticker::start("spool", interval, shared, move || {
        // The refusal comes first: a client with a spooled answer may ask again at once.
        refresh(&refreshed, &outage);
        spool.write();
        ControlFlow::Continue(())
    })
}

fn refresh(shared: &Shared, outage: &Outage) {
    outage.refresh(|is_cut_off| {
        shared.queue.set_cut_off(is_cut_off);
        match is_cut_off {
            true => tracing::warn!("database does not answer, refusing new requests"),
            false => tracing::info!("database answers again, admitting new requests"),
        }
    });
}

/// Opens the store of a database for reading, with or without a running gateway.
pub fn open_read(options: &Options) -> Result<Arc<Reader>, OpenError> {
    let name = options.url.to_string();
    let target = Arc::new(target(options)?);
    let connection = Connection::open(&target).map_err(|error| open_error(&name, "open", error))?;
    schema::check_readable(&connection, &name)?;
    Ok(Arc::new(Reader::new(Arc::new(Pool::new(target)))))
}

/// Brings the schema up to this release, beside the gateways of the database: gateways of an earlier release run on the new schema too.
pub fn migrate(options: &Options) -> Result<(), OpenError> {
    let name = options.url.to_string();
    let connection = connect_primary(options)?;
    prepare(&connection, &name)?;
    begin(&connection, &name, options)?;
    let ended = connection.run_all("COMMIT");
    ended.map_err(|error| open_error(&name, "migrate", error))
}

/// Verifies the server, and sets the limits that protect other gateways from this process.
fn prepare(connection: &Connection, name: &str) -> Result<(), OpenError> {
    schema::check_server(connection, name)?;
    // A start that is paused while it has the lock of all nodes must not stop the other nodes.
    set_idle_limit(connection).map_err(|error| open_error(name, "open", error))
}

/// Begins a transaction with the lock of the schema, and migrates the schema to this release.
fn begin(connection: &Connection, name: &str, options: &Options) -> Result<(), OpenError> {
    let limit = |time| {
        let limited = connection.limit(time);
        limited.map_err(|error| open_error(name, "open", error))
    };
    limit(schema::MIGRATION_MAX)?;
    schema::lock(connection).map_err(|error| open_error(name, "lock", error))?;
    schema::migrate(connection, name, &options.clock)?;
    limit(WAIT)
}

/// Whether a first start can use an empty database. Leaves the database empty.
pub fn check_empty(options: &Options) -> Result<(), OpenError> {
    let name = options.url.to_string();
    let connection = connect_primary(options)?;
    prepare(&connection, &name)?;
    schema::try_create(&connection).map_err(|error| open_error(&name, "make the tables of", error))
}

/// Connects to the server as a gateway does, and disconnects.
pub fn reach(options: &Options) -> Result<(), OpenError> {
    connect_primary(options).map(|_| ())
}

fn connect_primary(options: &Options) -> Result<Connection, OpenError> {
    let target = target(options)?.of_primary();
    Connection::open(&target).map_err(|error| open_error(&options.url.to_string(), "open", error))
}

/// The process that has a database by a fresh lease, if any. For a standby.
pub fn holder(options: &Options) -> Result<Option<String>, OpenError> {
    let name = options.url.to_string();
    let connection = connect_primary(options)?;
    if schema::version(&connection, &name)?.is_none() {
        return Ok(None);
    }
    let claim = Claim::open(options, true)?;
    Ok(match find_lease(&connection, ALONE, options, &claim)? {
        Lease::Held(held) => Some(Holder::describe(&held.holder)),
        Lease::Free(_) => None,
    })
}

/// Checks that nodes of the other kind have left no state; such state has to be recovered before the store is opened. A database without
/// a store has no nodes.
pub fn check_nodes(options: &Options) -> Result<(), OpenError> {
    let name = options.url.to_string();
    let connection = Connection::open(&target(options)?);
    let connection = connection.map_err(|error| open_error(&name, "open", error))?;
    match schema::version(&connection, &name)? {
        // The tables of nodes are of this schema.
        Some(found) if found >= SCHEMA => {
            let claim = Claim::open(options, true)?;
            choose(&connection, options, &claim).map(|_| ())
        }
        _ => Ok(()),
    }
}

/// The lease of a node: `Held` if a process with the lease may still renew the lease, or may still end answers by its spool.
fn find_lease(
    connection: &Connection,
    node: i64,
    options: &Options,
    claim: &Claim,
) -> Result<Lease, OpenError> {
    let name = &options.url.to_string();
    let failed = |error| row_open_error(name, error);
    let Some(held) = lease::find(connection, node).map_err(failed)? else {
        return Ok(Lease::Free(None));
    };
    let free = Lease::Free(Some(held.held_until));
    if let Some(owner) = claim.owner()
        && owner.node == node
    {
        let sql = "SELECT epoch FROM nodes WHERE id = ?1";
        let epoch = connection.number(sql, values![node]).map_err(failed)?;
        let secret = find_secret(connection).map_err(failed)?;
        // The lock of the node's spool ends with the process.
        if epoch == owner.epoch && secret.is_some_and(|it| Owner::database(&it) == owner.database) {
            return Ok(free);
        }
    }
    let is_gone = Holder::is_gone(&held.holder);
    let may_renew = !held.is_over && !is_gone;
    let may_end_answers = held.spooling().is_some()
        && match options.role {
            // An operator has decided, or the waiting time is over.
            NodeRole::Recovery(_) => false,
            NodeRole::Alone | NodeRole::OneOfMany => !is_gone,
        };
    Ok(match may_renew || may_end_answers {
        true => Lease::Held(held),
        false => free,
    })
}

/// The number of the node to open, and the node's lease. If a node that must not run beside this node has a held lease, returns the held
/// lease.
pub(super) fn choose(
    connection: &Connection,
    options: &Options,
    claim: &Claim,
) -> Result<(i64, Lease), OpenError> {
    let name = &options.url.to_string();
    let nodes = nodes(connection).map_err(|error| row_open_error(name, error))?;
    let node = match options.role {
        NodeRole::Alone => ALONE,
        NodeRole::Recovery(node) => node,
        NodeRole::OneOfMany => slot(connection, &nodes, &options.node_name)
            .map_err(|error| row_open_error(name, error))?
            .ok_or_else(|| OpenError::UnfitServer {
                database: name.clone(),
                problem: "has no number left for another node; recover those that are not used any more (`tollgate nodes`)".to_owned(),
            })?,
    };
    let lease = find_lease(connection, node, options, claim)?;
    if let Lease::Held(_) = lease {
        return Ok((node, lease));
    }
    let is_many = commit_id::has_allotments(node);
    let is_other_kind = |id: &i64| commit_id::has_allotments(*id) != is_many;
    if options.role != NodeRole::Recovery(node) {
        for (other, _) in nodes.iter().filter(|(id, _)| is_other_kind(id)) {
            let of_other = find_lease(connection, *other, options, claim)?;
            if let Lease::Held(_) = of_other {
                return Ok((node, of_other));
            }
        }
        let left = nodes.iter().map(|(id, _)| *id).filter(is_other_kind);
        let left: Vec<_> =
            unrecovered(connection, left).map_err(|error| row_open_error(name, error))?;
        if !left.is_empty() {
            return Err(OpenError::Unrecovered {
                database: name.clone(),
                nodes: left,
            });
        }
    }
    Ok((node, lease))
}

/// Every node: number and name.
fn nodes(connection: &Connection) -> Result<Vec<(i64, String)>, RowError> {
    let sql = "SELECT id, name FROM nodes ORDER BY id";
    connection.all(sql, values![], |row| Ok((row.get(0)?, row.get(1)?)))
}

/// The number of the node with a name, or a new number, or the number of a node without any state left.
fn slot(
    connection: &Connection,
    nodes: &[(i64, String)],
    name: &str,
) -> Result<Option<i64>, RowError> {
    let many = nodes
        .iter()
        .filter(|(id, _)| commit_id::has_allotments(*id));
    if let Some((id, _)) = many.clone().find(|(_, known)| known == name) {
        return Ok(Some(*id));
    }
    let next = many
        .clone()
        .map(|(id, _)| id + 1)
        .max()
        .unwrap_or(commit_id::FIRST_OF_MANY);
    if next <= commit_id::NODE_MAX {
        return Ok(Some(next));
    }
    for (id, _) in many {
        let is_left = lease::find(connection, *id)?.is_some_and(|held| !held.is_over);
        if !is_left && unrecovered(connection, std::iter::once(*id))?.is_empty() {
            return Ok(Some(*id));
        }
    }
    Ok(None)
}

/// The nodes with state left: an unposted journal, open holds, credit, a part of a cap, or a missing answer that other nodes would wait
/// for.
pub(super) fn unrecovered(
    connection: &Connection,
    nodes: impl Iterator<Item = i64>,
) -> Result<Vec<i64>, RowError> {
    let sql = "SELECT 1 WHERE EXISTS (SELECT 1 FROM journal j WHERE j.id BETWEEN ?1 AND ?2
            AND j.id > (SELECT posted FROM node_marks WHERE id = ?3))
        OR EXISTS (SELECT 1 FROM holds WHERE node_id = ?3)
        OR EXISTS (SELECT 1 FROM allotments WHERE node_id = ?3 AND (available <> 0 OR held <> 0 OR recall < ?4))
        OR EXISTS (SELECT 1 FROM cap_allotments WHERE node_id = ?3 AND (granted <> spent OR recall < ?4))";
    let mut found = Vec::new();
    for node in nodes {
        let (first, last) = commit_id::range(node);
        if connection.exists(sql, values![first, last, node, LEFT])? {
            found.push(node);
        }
    }
    Ok(found)
}

pub(super) fn target(options: &Options) -> Result<Target, OpenError> {
    let password = options.password.as_deref();
    Target::new(options.url.clone(), password, &PROFILE).map_err(|error| OpenError::Unreachable {
        database: options.url.to_string(),
        is_transient: false,
        source: error.into(),
    })
}

fn find_secret(connection: &Connection) -> Result<Option<RootSecret>, RowError> {
    let sql = "SELECT v FROM meta WHERE k = 'secret'";
    let text = connection.first(sql, values![], |row| row.get::<String>(0))?;
    let mut secret = [0; 32];
    let decoded = base16ct::mixed::decode(text.unwrap_or_default(), &mut secret);
    Ok(decoded
        .is_ok_and(|bytes| bytes.len() == 32)
        .then_some(RootSecret(secret)))
}

#[cfg(test)]
mod tests {
    use tollgate_clock::{Clock, Timestamp};

    use super::*;
    use crate::outage::OutageTimes;
    use crate::threads;

    /// One thread did both, and a stalled disk kept the node from noticing the outage.
    #[test]
    fn an_outage_is_noticed_while_the_disk_of_the_spool_does_not_answer() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, _) = SpoolFile::open(folder.path()).expect("a file");
        let (clock, hand) = Clock::manual(Timestamp::from_secs(1));
        let outage = Outage::new(OutageTimes::default(), clock.clone(), clock.since_boot());
        let outage = Arc::new(outage);
        let mut shared = Shared::new(8, Box::new(|_| {}));
        let (queue, gauges) = (Arc::clone(&shared.queue), Arc::clone(&shared.gauges));
        let found = (file, Vec::new());
        let spool = Arc::new(Spool::new(found, 1 << 20, queue, outage.clone(), gauges));
        shared.spool = Some(Arc::clone(&spool));
        let shared = Arc::new(shared);
        let (_spooling, _watch);
        let _disk = spool.stall_disk();
        _spooling = write_spool(&shared, &outage, &spool).expect("a thread");
        _watch = watch_outage(&shared, &outage).expect("a thread");
        // The end of the outage too: the thread that waits for the disk has noticed at most one of both changes, before its wait began.
        for is_cut_off in [true, false] {
            match is_cut_off {
                true => hand.advance(Duration::from_secs(8)),
                false => outage.renewed(clock.since_boot()),
            }
            let noticed = async {
                while outage.is_cut_off() != is_cut_off {
                    tokio::task::yield_now().await;
                }
            };
            let noticed = async { tokio::time::timeout(Duration::from_secs(60), noticed).await };
            let noticed = threads::block_on(noticed).expect("it runs");
            assert!(noticed.is_ok(), "{is_cut_off}");
            assert_eq!(shared.queue.admit().is_err(), is_cut_off);
        }
    }
}
