//! Opening of a node: the lease, the epoch and the spool in one transaction, and the wait for the lease of another process.

use std::path::PathBuf;
use std::time::Duration;

use super::{begin, choose, find_secret, nodes, prepare};
use crate::commit_id;
use crate::engine::{Epochs, NewRun, RowError, Select as _, Sql as _, WriteError, values};
use crate::error::{OpenError, STOP_THE_OTHER};
use crate::postgres::claim::Claim;
use crate::postgres::failure::{open_error, row_open_error, write_open_error};
use crate::postgres::lease::{self, Holder, Lease, LeaseRow};
use crate::postgres::nodes::NodeLease;
use crate::postgres::options::{NodeRole, Options};
use crate::postgres::schema;
use crate::rows::RootSecret;
use crate::spool::Owner;
use crate::tables::allotment::remove_caps;
use crate::threads;
use tollgate_postgres::{Connection, Target};

/// Pause between two reads of a lease that is about to end.
const LEASE_PAUSE: Duration = Duration::from_millis(200);

/// The state found and taken by an opening.
pub(in crate::postgres) struct Opened {
    pub(in crate::postgres) connection: Connection,
    pub(in crate::postgres) node: i64,
    pub(in crate::postgres) epoch: i64,
    pub(in crate::postgres) root_secret: RootSecret,
    /// The number of the last change of the cluster: every later read includes this change.
    pub(in crate::postgres) change: i64,
    pub(in crate::postgres) spool: Claim,
    /// When the lease was taken, since the boot.
    pub(in crate::postgres) renewed: Duration,
}

/// A connection that opens a node.
struct Opening<'o> {
    claim: Claim,
    connection: Connection,
    options: &'o Options,
    /// The database, for errors.
    name: String,
}

/// A node that was taken for this process.
struct TakenNode {
    owner: Owner,
    change: i64,
    renewed: Duration,
}

/// A wait for the lease of another process.
struct LeaseWait<'o> {
    options: &'o Options,
    /// Maximum wait for the end of an unrenewed lease.
    max: Duration,
    /// The end of the wait, since the start of the clock.
    give_up: Duration,
    /// The end of the lease as first read.
    first: Option<i64>,
    /// The holder of the last logged recovery.
    recovery: Option<String>,
}

/// Takes the lease of the node and raises its epoch. Waits for the end of an unrenewed lease, and for the end of a recovery.
pub(in crate::postgres) fn enter(target: &Target, options: &Options) -> Result<Opened, OpenError> {
    let name = options.url.to_string();
    let connection = Connection::open(target).map_err(|error| open_error(&name, "open", error))?;
    prepare(&connection, &name)?;
    let mut wait = LeaseWait::new(options);
    let claim = Claim::open(options, matches!(options.role, NodeRole::Recovery(_)))?;
    let mut opening = Opening {
        claim,
        connection,
        options,
        name,
    };
    loop {
        let Opening {
            connection, name, ..
        } = &opening;
        begin(connection, name, options)?;
        let root_secret = root_secret(connection, &options.random)
            .map_err(|error| write_open_error(name, error))?;
        let (node, lease) = choose(connection, options, &opening.claim)?;
        if options.is_automatic {
            refuse_running(connection, node, name)?;
        }
        match lease {
            Lease::Held(held) => {
                opening.end("COMMIT")?;
                match held.is_recovery {
                    true => wait.extend_for_recovery(held.holder),
                    false => {
                        opening.refuse_spooling(&held)?;
                        wait.refuse_renewed(&held, node, &opening.name)?;
                    }
                }
                threads::sleep(LEASE_PAUSE);
            }
            Lease::Free(until) => match opening.take_node(node, until, &root_secret)? {
                Some(taken) => {
                    opening.end("COMMIT")?;
                    return opening.opened(taken, root_secret);
                }
                None => opening.end("ROLLBACK")?,
            },
        }
    }
}

impl Opening<'_> {
    /// Ends the transaction.
    fn end(&self, end: &str) -> Result<(), OpenError> {
        let ended = self.connection.run_all(end);
        ended.map_err(|error| open_error(&self.name, "open", error))
    }

    /// Takes a free node in the open transaction. `until` is the end of the node's last lease. `None` if a paused process has renewed the
    /// lease meanwhile.
    fn take_node(
        &mut self,
        node: i64,
        until: Option<i64>,
        root_secret: &RootSecret,
    ) -> Result<Option<TakenNode>, OpenError> {
        let options = self.options;
        let (node_name, epoch) = self.raise_epoch(node)?;
        let renewed = options.clock.since_boot();
        let owner = Owner {
            database: Owner::database(root_secret),
            node,
            name: node_name,
            epoch,
        };
        self.claim.check(&owner, options.role)?;
        let grace = match self.claim.is_some() {
            true => options.outage.grace,
            false => Duration::ZERO,
        };
        let (connection, name) = (&self.connection, &self.name);
        let failed = |error| open_error(name, "open", error);
        let run = (node, epoch);
        let is_recovery = matches!(options.role, NodeRole::Recovery(_));
        if !lease::take(connection, run, until, options.outage.lease, is_recovery)
            .map_err(failed)?
        {
            return Ok(None);
        }
        lease::record_spool(connection, run, grace).map_err(failed)?;
        // Locked until the end of the transaction, as by each commit that changes shared state: the next removal of changes sees the lease.
        let sql = "SELECT number FROM cluster WHERE id = 1 FOR UPDATE";
        let change = connection
            .number(sql, values![])
            .map_err(|error| row_open_error(name, error))?;
        Ok(Some(TakenNode {
            owner,
            change,
            renewed,
        }))
    }

    /// Raises the epoch of a node. Returns the name of the node, and the new epoch.
    fn raise_epoch(&self, node: i64) -> Result<(String, i64), OpenError> {
        let (connection, options, name) = (&self.connection, self.options, &self.name);
        let known = nodes(connection).map_err(|error| row_open_error(name, error))?;
        let known = known.iter().find(|(id, _)| *id == node);
        let node_name = match (options.role, known) {
            (NodeRole::Recovery(_), Some((_, known))) => known,
            _ => &options.node_name,
        };
        if commit_id::has_allotments(node) {
            schema::record_several_nodes(connection)
                .map_err(|error| open_error(name, "open", error))?;
        } else {
            remove_caps(connection).map_err(|error| open_error(name, "open", error))?;
        }
        let run = NewRun {
            node,
            name: node_name,
            now: options.now,
        };
        let epoch = connection
            .raise_epoch(&run)
            .map_err(|error| write_open_error(name, error))?;
        Ok((run.name.to_owned(), epoch))
    }

    /// The opened node, after the commit of the transaction. Names this run in the folder of the spool.
    fn opened(mut self, taken: TakenNode, root_secret: RootSecret) -> Result<Opened, OpenError> {
        let (node, epoch) = (taken.owner.node, taken.owner.epoch);
        self.claim.take_over(taken.owner)?;
        schema::leave_room(&self.connection);
        Ok(Opened {
            connection: self.connection,
            node,
            epoch,
            root_secret,
            change: taken.change,
            spool: self.claim,
            renewed: taken.renewed,
        })
    }

    /// Refuses a node whose lease is over and whose process may still end answers by its spool.
    fn refuse_spooling(&self, held: &LeaseRow) -> Result<(), OpenError> {
        let (true, Some(left)) = (held.is_over, held.spooling()) else {
            return Ok(());
        };
        let name = &self.name;
        let known = nodes(&self.connection).map_err(|error| row_open_error(name, error))?;
        let known = known.into_iter().find(|(id, _)| *id == held.node);
        Err(OpenError::Spooling {
            database: name.clone(),
            name: known.map(|(_, name)| name).unwrap_or_default(),
            seconds: left.as_secs() + 1,
        })
    }
}

impl<'o> LeaseWait<'o> {
    fn new(options: &'o Options) -> LeaseWait<'o> {
        let max = options.outage.lease + Duration::from_secs(1);
        LeaseWait {
            options,
            max,
            give_up: options.clock.elapsed() + max,
            first: None,
            recovery: None,
        }
    }

    /// Begins the wait again, for the recovery of a node by another process. The recovery ends without help: several processes start at
    /// once after an earlier process has left state. A recovery that hangs loses its lease.
    fn extend_for_recovery(&mut self, holder: String) {
        if self.recovery.as_ref() != Some(&holder) {
            let described = Holder::describe(&holder);
            tracing::info!(holder = %described, "waiting for the recovery of a node");
            self.recovery = Some(holder);
        }
        (self.first, self.give_up) = (None, self.options.clock.elapsed() + self.max);
    }

    /// Refuses the lease of a process that renews the lease, and any lease at the end of the wait.
    fn refuse_renewed(&mut self, held: &LeaseRow, node: i64, name: &str) -> Result<(), OpenError> {
        let options = self.options;
        let is_renewed = self.first.get_or_insert(held.held_until) != &held.held_until;
        if !is_renewed && options.clock.elapsed() < self.give_up {
            return Ok(());
        }
        let holder = Holder::describe(&held.holder);
        Err(
            match held.node == node && options.role == NodeRole::OneOfMany {
                true => OpenError::NodeInUse {
                    database: name.to_owned(),
                    name: options.node_name.clone(),
                    holder,
                },
                false => OpenError::InUse {
                    path: PathBuf::from(name),
                    holder,
                    remedy: in_use_remedy(options.role, held.node),
                },
            },
        )
    }
}

/// Refuses the recovery of a node whose process may still end answers. The process may have renewed its lease after the node was found to
/// have ended.
fn refuse_running(connection: &Connection, node: i64, name: &str) -> Result<(), OpenError> {
    let found = lease::find(connection, node).map_err(|error| row_open_error(name, error))?;
    let lease = found.map(|found| NodeLease::of(&found));
    match lease.filter(|lease| !lease.may_be_recovered()) {
        None => Ok(()),
        Some(lease) => Err(OpenError::InUse {
            path: PathBuf::from(name),
            holder: lease.holder,
            remedy: in_use_remedy(NodeRole::Recovery(node), node),
        }),
    }
}

/// The remedy against another process that has the database as the node `held`.
fn in_use_remedy(role: NodeRole, held: i64) -> &'static str {
    match (role, commit_id::has_allotments(held)) {
        (NodeRole::Recovery(_), _) => "the node runs: stop it first, or leave it",
        (NodeRole::Alone, true) => {
            "several gateways work on it: set `store.node` here too, or give this one another database"
        }
        (NodeRole::OneOfMany, false) => {
            "that gateway has no `store.node`: stop it and set one there too, or give this one another database"
        }
        _ => STOP_THE_OTHER,
    }
}

/// The root secret of the store, made by the store's first run.
fn root_secret(connection: &Connection, random: &RootSecret) -> Result<RootSecret, WriteError> {
    let text = base16ct::lower::encode_string(&random.0);
    let sql = "INSERT INTO meta (k, v) VALUES ('secret', ?1) ON CONFLICT (k) DO NOTHING";
    connection.execute(sql, values![text])?;
    find_secret(connection)?
        .ok_or_else(|| RowError::Damaged("it has no root secret".to_owned()).into())
}

impl Epochs for Connection {
    /// Waits for commits of the node that are under way: these commits have locked the node's row.
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
