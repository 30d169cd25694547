//! The nodes of a database: the rest of each node's state, and whether its process runs.

use std::time::Duration;

use tollgate_clock::Timestamp;

use super::failure::{open_error, row_open_error};
use super::lease::{self, Holder};
use super::open::{target, unrecovered};
use super::options::Options;
use super::schema;
use crate::commit_id;
use crate::engine::{RowError, Select as _, values};
use crate::error::OpenError;
use crate::node_settings::RecordedSettings;
use tollgate_postgres::Connection;

/// How long after the end of its lease a node without a spool is left alone: the node's answers wait this long for the database.
const RECOVERED_AFTER: Duration = Duration::from_secs(60);

/// A node of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// The node's number.
    pub node: i64,
    /// The node's name.
    pub name: String,
    /// The number of the node's last run.
    pub epoch: i64,
    /// Begin of the last run.
    pub started_at: Timestamp,
    /// Whether the node is one of several.
    pub is_one_of_many: bool,
    /// The node's lease, if a process has the lease.
    pub lease: Option<NodeLease>,
    /// The settings recorded by the last run; `None` by a release that does not record settings.
    pub settings: Option<RecordedSettings>,
    /// Whether the node has no state left: no open hold, no credit, no unposted record, no missing answer to a recall. May also be `true`
    /// for a running node.
    pub has_nothing_left: bool,
}

impl NodeState {
    /// Whether `name` is the node's name or number.
    pub fn is_named(&self, name: &str) -> bool {
        self.name == name || self.node.to_string() == name
    }

    /// Whether recovery has no work: the node has ended or was recovered, and has no state left. An expired lease is work: the lease
    /// keeps feed changes that the node has not read.
    pub fn has_ended_cleanly(&self) -> bool {
        self.has_nothing_left && self.lease.is_none()
    }
}

/// The lease of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLease {
    /// The process that took the lease.
    pub holder: String,
    /// End of the lease, by the clock of the database.
    pub until: Timestamp,
    /// Current time, by the clock of the database.
    pub now: Timestamp,
    /// How long after the end of the lease the process may still end answers, by its spool.
    pub grace: Duration,
}

impl NodeLease {
    pub(super) fn of(found: &lease::LeaseRow) -> NodeLease {
        NodeLease {
            holder: Holder::describe(&found.holder),
            until: Timestamp::from_micros(found.held_until),
            now: Timestamp::from_micros(found.now),
            grace: Duration::from_micros(found.grace as u64),
        }
    }

    /// Whether the lease has ended.
    pub fn is_over(&self) -> bool {
        self.until <= self.now
    }

    /// Whether other nodes may recover the node without an operator: the node's process, if it still runs, ends no more answers.
    pub fn may_be_recovered(&self) -> bool {
        self.now >= self.until + self.grace.max(RECOVERED_AFTER)
    }
}

/// The nodes of a database, in the order of their numbers. Reads only.
pub fn nodes(options: &Options) -> Result<Vec<NodeState>, OpenError> {
    let name = options.url.to_string();
    let connection = Connection::open(&target(options)?);
    let connection = connection.map_err(|error| open_error(&name, "open", error))?;
    schema::check_readable(&connection, &name)?;
    read(&connection).map_err(|error| row_open_error(&name, error))
}

fn read(connection: &Connection) -> Result<Vec<NodeState>, RowError> {
    let sql = "SELECT id, name, epoch, started_at FROM nodes ORDER BY id";
    let rows: Vec<(i64, String, i64, Timestamp)> = connection.all(sql, values![], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
    })?;
    let mut found = Vec::new();
    for (node, name, epoch, started_at) in rows {
        let lease = lease::find(connection, node)?.map(|found| NodeLease::of(&found));
        found.push(NodeState {
            node,
            name,
            epoch,
            started_at,
            is_one_of_many: commit_id::has_allotments(node),
            lease,
            settings: lease::find_settings(connection, (node, epoch))?,
            has_nothing_left: unrecovered(connection, std::iter::once(node))?.is_empty(),
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_recover_a_node_when_it_ends_no_answers_any_more() {
        //   grace of its spool, since the end of its lease, recovered
        for (grace, since, may) in [
            (0, 0, false),
            (0, 59, false),
            (0, 60, true),
            (900, 60, false),
            (900, 899, false),
            (900, 900, true),
        ] {
            let lease = NodeLease {
                holder: String::from("process 1"),
                until: Timestamp::from_secs(1_000),
                now: Timestamp::from_secs(1_000 + since),
                grace: Duration::from_secs(grace),
            };
            assert_eq!(lease.may_be_recovered(), may, "{grace} {since}");
        }
    }
}
