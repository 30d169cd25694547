//! Opening of a store: server, schema, lease and epoch in one transaction, then the threads.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tollgate_clock::Clock;

use super::connection::{Connection, Target};
use super::engine::PostgresEngine;
use super::failure::{open_error, row_open_error, write_open_error};
use super::feed::Feed;
use super::lease::{self, Holder, Renewal};
use super::options::{NodeRole, Options};
use super::read::{Pool, PostgresStore};
use super::schema;
use super::writer::{Writer, pause};
use crate::allotment::LEFT;
use crate::commit::{self, Settings, Shared, StartError};
use crate::commit_id;
use crate::engine::{Epochs, NewRun, RowError, Select as _, Sql as _, WriteError, values};
use crate::error::OpenError;
use crate::rows::RootSecret;
use crate::schema::SCHEMA;
use crate::store::{Read, Store};
use crate::tables::remove_caps;

/// The number of a node that is alone, whatever its name: its ledger in memory decides on all credit.
const ALONE: i64 = 1;

/// For how long the end of a lease is waited for that is not renewed.
const WAIT_MAX: Duration = lease::LENGTH.saturating_add(Duration::from_secs(1));

/// Pause between two looks at a lease that is about to end.
const LEASE_PAUSE: Duration = Duration::from_millis(200);

/// What an opening has found and taken.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) node: i64,
    pub(super) epoch: i64,
    pub(super) root_secret: RootSecret,
    /// The number of the last change of the cluster: what is read from now on includes it.
    pub(super) change: i64,
}

/// Opens the store of a database with exclusive ownership, and creates it in an empty database.
pub fn open(mut options: Options) -> Result<Arc<dyn Store>, OpenError> {
    let name = options.url.to_string();
    let target = Arc::new(target(&options)?);
    let opened = enter(&target, &options)?;
    let Opened {
        connection,
        node,
        epoch,
        root_secret,
        change,
    } = opened;
    let on_failure = std::mem::replace(&mut options.on_failure, Box::new(|_| {}));
    let shared = Arc::new(Shared::new(options.queue_max, on_failure));
    let thread = |source| OpenError::File {
        action: "start a thread for",
        path: PathBuf::from(&name),
        source,
    };
    let renewing = Connection::open(&target).map_err(|error| open_error(&name, "open", error))?;
    let renewal = Renewal::start(
        Arc::clone(&target),
        renewing,
        (node, epoch),
        Arc::clone(&shared),
        Arc::clone(&options.monotonic_us),
    )
    .map_err(thread)?;
    let writer = Writer::new(Arc::clone(&target), connection, (node, epoch))
        .map_err(|error| row_open_error(&name, error))?;
    // What is read from here on includes every change so far.
    let now = (options.monotonic_us)();
    shared.gauges.feed_read_us.store(now.max(1), Relaxed);
    let feed = match options.role {
        NodeRole::OneOfMany => {
            let feed = Feed::start(
                Arc::clone(&target),
                change,
                Arc::clone(&shared),
                Arc::clone(&options.monotonic_us),
            );
            Some(feed.map_err(thread)?)
        }
        NodeRole::Alone | NodeRole::Recovery(_) => None,
    };
    let engine = PostgresEngine {
        name: name.clone(),
        writer,
        renewal,
        feed,
    };
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
        StartError::Thread(error) => thread(error),
    })?;
    Ok(Arc::new(PostgresStore {
        connections: Pool::new(target),
        writing,
    }))
}

/// Opens the store of a database for reading, with or without a running gateway.
pub fn open_read(options: &Options) -> Result<Arc<dyn Read>, OpenError> {
    let name = options.url.to_string();
    let target = Arc::new(target(options)?);
    let connection = Connection::open(&target).map_err(|error| open_error(&name, "open", error))?;
    schema::check_readable(&connection, &name)?;
    Ok(Arc::new(PostgresStore {
        connections: Pool::new(target),
        writing: (),
    }))
}

/// The process that has a database, if there is one: it has a lease that is fresh. For a standby.
pub fn holder(options: &Options) -> Result<Option<String>, OpenError> {
    let name = options.url.to_string();
    let connection = Connection::open(&target(options)?);
    let connection = connection.map_err(|error| open_error(&name, "open", error))?;
    if schema::version(&connection, &name)?.is_none() {
        return Ok(None);
    }
    let held = fresh_lease(&connection, ALONE, &name)?;
    Ok(held.map(|held| Holder::describe(&held.holder)))
}

/// Whether nodes of the other kind have left something, which has to be recovered before the store is opened. A database without a store has
/// none.
pub fn check_nodes(options: &Options) -> Result<(), OpenError> {
    let name = options.url.to_string();
    let connection = Connection::open(&target(options)?);
    let connection = connection.map_err(|error| open_error(&name, "open", error))?;
    match schema::version(&connection, &name)? {
        // The tables of nodes are of this schema.
        Some(found) if found >= SCHEMA => choose(&connection, options, &name).map(|_| ()),
        _ => Ok(()),
    }
}

/// The lease of another process that may still renew it.
fn fresh_lease(
    connection: &Connection,
    node: i64,
    name: &str,
) -> Result<Option<lease::Found>, OpenError> {
    let held = lease::find(connection, node).map_err(|error| row_open_error(name, error))?;
    Ok(held.filter(|held| !held.is_over && !Holder::is_gone(&held.holder)))
}

/// The number of the node to open, and a lease that another process has of it, or of a node that must not run beside it.
pub(super) fn choose(
    connection: &Connection,
    options: &Options,
    name: &str,
) -> Result<(i64, Option<lease::Found>), OpenError> {
    let nodes = nodes(connection).map_err(|error| row_open_error(name, error))?;
    let node = match options.role {
        NodeRole::Alone => ALONE,
        NodeRole::Recovery(node) => node,
        NodeRole::OneOfMany => slot(connection, &nodes, &options.node_name)
            .map_err(|error| row_open_error(name, error))?
            .ok_or_else(|| OpenError::UnfitServer {
                database: name.to_owned(),
                problem: "has no number left for another node; recover those that are not used any more (`tollgate nodes`)".to_owned(),
            })?,
    };
    if let Some(held) = fresh_lease(connection, node, name)? {
        return Ok((node, Some(held)));
    }
    let is_many = commit_id::has_allotments(node);
    let is_other_kind = |id: &i64| commit_id::has_allotments(*id) != is_many;
    if options.role != NodeRole::Recovery(node) {
        for (other, _) in nodes.iter().filter(|(id, _)| is_other_kind(id)) {
            if let Some(held) = fresh_lease(connection, *other, name)? {
                return Ok((node, Some(held)));
            }
        }
        let left = nodes.iter().map(|(id, _)| *id).filter(is_other_kind);
        let left: Vec<_> =
            unrecovered(connection, left).map_err(|error| row_open_error(name, error))?;
        if !left.is_empty() {
            return Err(OpenError::Unrecovered {
                database: name.to_owned(),
                nodes: left,
            });
        }
    }
    Ok((node, None))
}

/// Every node: number and name.
fn nodes(connection: &Connection) -> Result<Vec<(i64, String)>, RowError> {
    let sql = "SELECT id, name FROM nodes ORDER BY id";
    connection.all(sql, values![], |row| Ok((row.get(0)?, row.get(1)?)))
}

/// The number of the node with a name, or a new one, or that of a node that has nothing left.
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

/// Those of these nodes that have not posted their journal, that have open holds, credit or a part of a cap, or that would still be asked for one.
pub(super) fn unrecovered(
    connection: &Connection,
    nodes: impl Iterator<Item = i64>,
) -> Result<Vec<i64>, RowError> {
    let sql = "SELECT 1 WHERE EXISTS (SELECT 1 FROM journal j WHERE j.id BETWEEN ?1 AND ?2
            AND j.id > (SELECT posted FROM node_marks WHERE id = ?3))
        OR EXISTS (SELECT 1 FROM holds WHERE node_id = ?3)
        OR EXISTS (SELECT 1 FROM allotments WHERE node_id = ?3 AND (available <> 0 OR held <> 0))
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
    Target::new(options.url.clone(), password).map_err(|error| OpenError::Unreachable {
        database: options.url.to_string(),
        source: error.into(),
    })
}

/// Takes the lease of the node and raises its epoch. Waits for the end of a lease that is not renewed any more, and of a recovery.
pub(super) fn enter(target: &Target, options: &Options) -> Result<Opened, OpenError> {
    let name = options.url.to_string();
    let connection = Connection::open(target).map_err(|error| open_error(&name, "open", error))?;
    schema::check_server(&connection, &name)?;
    let clock = Clock::system();
    let mut give_up = clock.elapsed() + WAIT_MAX;
    let mut first = None;
    let mut waits_for = None;
    loop {
        schema::lock(&connection).map_err(|error| open_error(&name, "lock", error))?;
        schema::migrate(&connection, &name)?;
        let root_secret = root_secret(&connection, &options.random)
            .map_err(|error| write_open_error(&name, error))?;
        let (node, held) = choose(&connection, options, &name)?;
        let end = |end: &str| {
            let ended = connection.run_all(end);
            ended.map_err(|error| open_error(&name, "open", error))
        };
        let Some(held) = held else {
            let known = nodes(&connection).map_err(|error| row_open_error(&name, error))?;
            let known = known.iter().find(|(id, _)| *id == node);
            let node_name = match (options.role, known) {
                (NodeRole::Recovery(_), Some((_, known))) => known,
                _ => &options.node_name,
            };
            if commit_id::has_allotments(node) {
                schema::record_several_nodes(&connection)
                    .map_err(|error| open_error(&name, "open", error))?;
            } else {
                remove_caps(&connection).map_err(|error| open_error(&name, "open", error))?;
            }
            let run = NewRun {
                node,
                name: node_name,
                now: options.now,
            };
            let epoch = connection
                .raise_epoch(&run)
                .map_err(|error| write_open_error(&name, error))?;
            let is_recovery = matches!(options.role, NodeRole::Recovery(_));
            lease::take(&connection, node, epoch, is_recovery)
                .map_err(|error| open_error(&name, "open", error))?;
            // Locked to the end, as by each commit that changes what nodes share: the next removal of changes sees the lease.
            let sql = "SELECT number FROM cluster WHERE id = 1 FOR UPDATE";
            let change = connection
                .number(sql, values![])
                .map_err(|error| row_open_error(&name, error))?;
            end("COMMIT")?;
            return Ok(Opened {
                connection,
                node,
                epoch,
                root_secret,
                change,
            });
        };
        end("COMMIT")?;
        if held.is_recovery {
            // It ends by itself: several processes start at once on what an earlier one has left. One that hangs loses its lease.
            if waits_for.as_ref() != Some(&held.holder) {
                let holder = Holder::describe(&held.holder);
                tracing::info!(%holder, "waiting for the recovery of a node");
                waits_for = Some(held.holder);
            }
            (first, give_up) = (None, clock.elapsed() + WAIT_MAX);
            pause(LEASE_PAUSE);
            continue;
        }
        let is_renewed = first.get_or_insert(held.held_until) != &held.held_until;
        if is_renewed || clock.elapsed() >= give_up {
            let holder = Holder::describe(&held.holder);
            return Err(
                match held.node == node && options.role == NodeRole::OneOfMany {
                    true => OpenError::NodeInUse {
                        database: name,
                        name: options.node_name.clone(),
                        holder,
                    },
                    false => OpenError::InUse {
                        path: PathBuf::from(name),
                        holder,
                    },
                },
            );
        }
        pause(LEASE_PAUSE);
    }
}

/// The root secret of the store, which its first run has made.
fn root_secret(connection: &Connection, random: &RootSecret) -> Result<RootSecret, WriteError> {
    let text = base16ct::lower::encode_string(&random.0);
    let sql = "INSERT INTO meta (k, v) VALUES ('secret', ?1) ON CONFLICT (k) DO NOTHING";
    connection.execute(sql, values![text])?;
    let sql = "SELECT v FROM meta WHERE k = 'secret'";
    let text = connection.first(sql, values![], |row| row.get::<String>(0))?;
    let mut secret = [0; 32];
    let decoded = base16ct::mixed::decode(text.unwrap_or_default(), &mut secret);
    match decoded.is_ok_and(|bytes| bytes.len() == 32) {
        true => Ok(RootSecret(secret)),
        false => Err(RowError::Damaged("it has no root secret".to_owned()).into()),
    }
}

impl Epochs for Connection {
    /// Waits for commits of the node that are under way: they have locked its row.
    fn raise_epoch(&self, run: &NewRun<'_>) -> Result<i64, WriteError> {
        let (first, last) = commit_id::range(run.node);
        let sql = "SELECT id FROM journal WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT 1";
        let journal = self.number(sql, values![first, last])?;
        let (_, journal, _) = commit_id::numbers(journal);
        let sql = "INSERT INTO nodes (id, epoch, name, lease_until, started_at) VALUES (?1, CAST(?4 AS BIGINT) + 1, ?2, 0, ?3)
            ON CONFLICT (id) DO UPDATE SET epoch = greatest(nodes.epoch, CAST(?4 AS BIGINT)) + 1,
                name = excluded.name, started_at = excluded.started_at
            RETURNING epoch";
        let epoch = self.number(sql, values![run.node, run.name, run.now, journal])?;
        if epoch > commit_id::EPOCH_MAX {
            return Err(WriteError::Row(RowError::Damaged(format!(
                "its epoch {epoch} is greater than its journal can store"
            ))));
        }
        let sql =
            "INSERT INTO node_marks (id) VALUES (?1) ON CONFLICT (id) DO UPDATE SET commits = 0";
        self.execute(sql, values![run.node])?;
        Ok(epoch)
    }
}
