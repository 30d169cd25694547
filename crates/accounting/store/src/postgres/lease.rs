//! The lease of a node: which process may run under the node's name, by the clock of the database.
//!
//! A lease is no part of the fence: a process with an expired lease continues in its epoch until another process has raised the epoch.

use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::failure::{Names, failure};
use super::ticker::Ticker;
use crate::commit::Shared;
use crate::commit_id;
use crate::engine::{EngineError, RowError, Select as _, Sql as _, values};
use crate::node_settings::{OtherSettings, RecordedSettings};
use crate::outage::Outage;
use tollgate_postgres::{Connection, Target};

/// For how long a node is the leader after the node sent the renewal of the leader's lease. Shorter than the lease, so two nodes are
/// leaders only after a jump of the database's clock.
const LEADER_FOR: Duration = Duration::from_secs(7);

/// The length of the leader's lease.
const LEADER_LEASE: Duration = Duration::from_secs(10);

/// The number of renewals per length of a lease, and the time limit of a renewal.
const RENEWALS: u32 = 5;
const WAIT: Duration = Duration::from_secs(4);

/// The number of the leader's lease; no node has this number.
const LEADER_ID: i64 = 0;

/// Prefix of a holder that recovers a node.
const RECOVERS: &str = "recovers: ";

/// The database's time in microseconds.
macro_rules! now_us {
    () => {
        "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)"
    };
}

/// A lease as found in the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeaseRow {
    pub(super) node: i64,
    pub(super) holder: String,
    pub(super) held_until: i64,
    pub(super) is_over: bool,
    /// The holder recovers the rest of the node, and then ends.
    pub(super) is_recovery: bool,
    /// The time of the database.
    pub(super) now: i64,
    /// The grace of a node with a spool, in microseconds: for this time after the end of the lease the node's process may end answers. 0
    /// without a spool.
    pub(super) grace: i64,
}

/// Whether a process may take a node.
pub(super) enum Lease {
    /// Another process may still renew the lease, or end answers.
    Held(LeaseRow),
    /// No process has the node. The field is the end of the last lease, if any.
    Free(Option<i64>),
}

impl LeaseRow {
    /// How long the process may still end answers while cut off from the database.
    pub(super) fn spooling(&self) -> Option<Duration> {
        let left = self.held_until.saturating_add(self.grace) - self.now;
        (self.grace > 0 && left > 0).then(|| Duration::from_micros(left as u64))
    }
}

/// The lease of a node, if any.
pub(super) fn find(connection: &Connection, node: i64) -> Result<Option<LeaseRow>, RowError> {
    let sql = concat!(
        "SELECT l.holder, l.held_until, ",
        now_us!(),
        ", COALESCE(s.grace, 0) FROM leases l LEFT JOIN spools s ON s.node_id = l.node AND s.epoch = l.epoch WHERE l.node = ?1"
    );
    connection.first(sql, values![node], |row| {
        let (held_until, now) = (row.get(1)?, row.get(2)?);
        let holder: String = row.get(0)?;
        Ok(LeaseRow {
            node,
            is_recovery: holder.starts_with(RECOVERS),
            holder,
            held_until,
            is_over: held_until <= now,
            now,
            grace: row.get(3)?,
        })
    })
}

/// Takes the lease of a node for this process, to run as the node or to recover the node. `false` when the end of the lease is no longer
/// `until`. Raising the epoch waits for commits of the node: meanwhile, a paused process may have resumed and renewed its lease.
pub(super) fn take(
    connection: &Connection,
    (node, epoch): (i64, i64),
    until: Option<i64>,
    length: Duration,
    is_recovery: bool,
) -> Result<bool, EngineError> {
    let sql = concat!(
        "INSERT INTO leases (node, epoch, held_until, holder) VALUES (?1, ?2, ",
        now_us!(),
        " + CAST(?3 AS BIGINT), ?4)
         ON CONFLICT (node) DO UPDATE SET epoch = excluded.epoch, held_until = excluded.held_until, holder = excluded.holder, feed = 0
         WHERE leases.held_until = ?5"
    );
    let holder = Holder::of_this_process();
    let holder = match is_recovery {
        true => format!("{RECOVERS}{holder}"),
        false => holder.to_string(),
    };
    let taken = connection.execute(sql, values![node, epoch, length, holder, until])?;
    Ok(taken > 0)
}

/// Records the grace of a node's spool: for how long after the end of its lease the node ends answers. Zero for a node without a spool.
pub(super) fn record_spool(
    connection: &Connection,
    (node, epoch): (i64, i64),
    grace: Duration,
) -> Result<(), EngineError> {
    connection.execute("DELETE FROM spools WHERE node_id = ?1", values![node])?;
    if grace.is_zero() {
        return Ok(());
    }
    let sql = "INSERT INTO spools (node_id, epoch, grace) VALUES (?1, ?2, ?3)";
    connection
        .execute(sql, values![node, epoch, grace])
        .map(|_| ())
}

/// Removes the lease of a run that has ended.
pub(super) fn release(connection: &Connection, node: i64, epoch: i64) -> Result<(), EngineError> {
    let sql = "DELETE FROM leases WHERE node = ?1 AND epoch = ?2";
    connection.execute(sql, values![node, epoch])?;
    release_others(connection, node, epoch)
}

/// Ends the lease of a run for its successor; the successor takes the lease at once. The row stays: other nodes may recover a node
/// without a row, and this node has holds of requests that go on.
pub(super) fn hand_over(connection: &Connection, node: i64, epoch: i64) -> Result<(), EngineError> {
    let sql = concat!(
        "UPDATE leases SET held_until = ",
        now_us!(),
        " WHERE node = ?1 AND epoch = ?2"
    );
    connection.execute(sql, values![node, epoch])?;
    release_others(connection, node, epoch)
}

/// Removes the other rows of a run: its spool, and its leadership.
fn release_others(connection: &Connection, node: i64, epoch: i64) -> Result<(), EngineError> {
    let sql = "DELETE FROM spools WHERE node_id = ?1 AND epoch = ?2";
    connection.execute(sql, values![node, epoch])?;
    let sql = "DELETE FROM leases WHERE node = ?1 AND holder = ?2";
    let run = run_name((node, epoch));
    connection.execute(sql, values![LEADER_ID, run]).map(|_| ())
}

/// Renews the lease of a run, and records the run's position in the feed of changes; `false` when the lease has another holder.
fn renew(
    connection: &Connection,
    (node, epoch): (i64, i64),
    length: Duration,
    feed: i64,
) -> Result<bool, EngineError> {
    let sql = concat!(
        "UPDATE leases SET held_until = ",
        now_us!(),
        " + CAST(?3 AS BIGINT), feed = ?4 WHERE node = ?1 AND epoch = ?2"
    );
    Ok(connection.execute(sql, values![node, epoch, length, feed])? > 0)
}

/// Takes or renews the lease of the leader; `false` while another node has the lease.
fn take_leadership(connection: &Connection, run: &str) -> Result<bool, EngineError> {
    let sql = concat!(
        "INSERT INTO leases (node, epoch, held_until, holder) VALUES (?1, 0, ",
        now_us!(),
        " + CAST(?2 AS BIGINT), ?3)
         ON CONFLICT (node) DO UPDATE SET held_until = excluded.held_until, holder = excluded.holder
         WHERE leases.holder = excluded.holder OR leases.held_until <= ",
        now_us!()
    );
    Ok(connection.execute(sql, values![LEADER_ID, LEADER_LEASE, run])? > 0)
}

/// The settings recorded by the last run of a node.
pub(super) fn find_settings(
    connection: &Connection,
    (node, epoch): (i64, i64),
) -> Result<Option<RecordedSettings>, RowError> {
    let sql = "SELECT digest, since FROM node_settings WHERE node_id = ?1 AND epoch = ?2";
    connection.first(sql, values![node, epoch], |row| {
        Ok(RecordedSettings {
            digest: row.get(0)?,
            since: row.get(1)?,
        })
    })
}

/// Records the settings of a run. After a restart with unchanged settings, the recorded time stays.
fn record_settings(
    connection: &Connection,
    (node, epoch): (i64, i64),
    digest: &str,
) -> Result<(), EngineError> {
    let sql = concat!(
        "INSERT INTO node_settings (node_id, epoch, digest, since) VALUES (?1, ?2, ?3, ",
        now_us!(),
        ")
         ON CONFLICT (node_id) DO UPDATE SET epoch = excluded.epoch, digest = excluded.digest,
             since = CASE WHEN node_settings.digest = excluded.digest THEN node_settings.since ELSE excluded.since END
         WHERE node_settings.epoch <= excluded.epoch"
    );
    connection
        .execute(sql, values![node, epoch, digest])
        .map(|_| ())
}

/// Other nodes with a fresh lease whose settings differ from the settings recorded by `node`.
fn read_other_settings(connection: &Connection, node: i64) -> Result<Vec<OtherSettings>, RowError> {
    let sql = concat!(
        "SELECT n.name, s.digest, s.since, own.digest, own.since FROM node_settings own
         JOIN node_settings s ON s.node_id <> own.node_id AND s.digest <> own.digest
         JOIN leases l ON l.node = s.node_id AND l.epoch = s.epoch
         JOIN nodes n ON n.id = s.node_id
         WHERE own.node_id = ?1 AND l.held_until > ",
        now_us!(),
        " ORDER BY n.name"
    );
    let found = connection.all(sql, values![node], |row| {
        let settings = |digest, since| -> Result<RecordedSettings, RowError> {
            Ok(RecordedSettings {
                digest: row.get(digest)?,
                since: row.get(since)?,
            })
        };
        Ok((row.get::<String>(0)?, settings(1, 2)?, settings(3, 4)?))
    })?;
    let others = found.into_iter();
    let others = others.filter(|(_, theirs, own)| theirs.differ_from(own));
    let others = others.map(|(node, theirs, own)| OtherSettings {
        node,
        are_newer: theirs.since > own.since,
    });
    Ok(others.collect())
}

/// The name of a run in the lease of the leader.
fn run_name((node, epoch): (i64, i64)) -> String {
    format!("node {node}, run {epoch}")
}

/// A process: its machine since the last boot, its PID namespace, and its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    machine: String,
    process: u32,
}

impl Holder {
    fn of_this_process() -> Holder {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        // Containers of one machine share the boot id and have separate processes.
        let space = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Holder {
            machine: format!("{} {}", boot.trim(), space.display()),
            process: std::process::id(),
        }
    }

    fn parse(text: &str) -> Option<Holder> {
        let text = text.strip_prefix(RECOVERS).unwrap_or(text);
        let (machine, process) = text.rsplit_once(' ')?;
        Some(Holder {
            machine: machine.to_owned(),
            process: process.parse().ok()?,
        })
    }

    /// Whether the holder of a lease has certainly ended: the holder was a process of this machine.
    pub(super) fn is_gone(text: &str) -> bool {
        let this = Holder::of_this_process();
        Holder::parse(text).is_some_and(|holder| {
            // Without a boot id the machine is unknown.
            holder.machine == this.machine
                && !this.machine.starts_with(' ')
                && holder.process != this.process
                && !holder.runs()
        })
    }

    /// Whether a process with this number exists, tested by signal 0, which is not delivered: `/proc` may hide processes of other users
    /// (`ProtectProc=invisible`).
    fn runs(&self) -> bool {
        let process = i32::try_from(self.process).ok().and_then(Pid::from_raw);
        process.is_none_or(|process| test_kill_process(process) != Err(Errno::SRCH))
    }

    /// The holder as text for an operator.
    pub(super) fn describe(text: &str) -> String {
        match Holder::parse(text) {
            Some(holder) if holder.machine == Holder::of_this_process().machine => {
                format!("process {}", holder.process)
            }
            Some(holder) => format!("process {} of another machine or container", holder.process),
            None => String::from("another process"),
        }
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} {}", self.machine, self.process)
    }
}

/// A connection with the time limit of renewals.
pub(super) fn limited(connection: Connection) -> Result<Connection, EngineError> {
    connection.limit(WAIT)?;
    Ok(connection)
}

/// Renews the lease of a run on a separate thread and connection.
pub(super) struct Renewer {
    pub(super) target: Arc<Target>,
    pub(super) names: Arc<Names>,
    pub(super) connection: Option<Connection>,
    pub(super) node: i64,
    pub(super) epoch: i64,
    pub(super) shared: Arc<Shared>,
    pub(super) outage: Arc<Outage>,
    pub(super) monotonic_us: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Whether the node was the leader at its last check, for the log.
    pub(super) is_leader: bool,
    pub(super) is_late: bool,
    /// The digest of the settings that this run has recorded.
    pub(super) recorded: Option<Arc<str>>,
    /// Whether the last comparison with other nodes' settings has failed, for the log.
    pub(super) is_comparing_late: bool,
}

impl Renewer {
    pub(super) fn start(mut self) -> std::io::Result<Ticker> {
        let interval = self.outage.times.lease / RENEWALS;
        let shared = Arc::clone(&self.shared);
        Ticker::start("lease", interval, &shared, move || self.renew())
    }

    fn renew(&mut self) -> ControlFlow<()> {
        let run = (self.node, self.epoch);
        let node = self.node;
        let length = self.outage.times.lease;
        // Before the renewal is sent: the database counts from a later moment.
        let sent = self.outage.clock.since_boot();
        let renewing = (self.monotonic_us)();
        let feed = self.shared.feed_number.load(Relaxed);
        let renewed = self
            .connect()
            .and_then(|link| renew(link, run, length, feed));
        match renewed {
            Ok(true) => {
                self.outage.renewed(sent);
                let renewed = &self.shared.gauges.lease_renewed_us;
                renewed.store(renewing.max(1), Relaxed);
                if std::mem::take(&mut self.is_late) {
                    tracing::info!(node, "renewed the node's lease again");
                }
            }
            // The fence refuses the next commit too; an idle node learns of the loss here.
            Ok(false) => {
                self.shared.fail(failure(
                    &self.names,
                    EngineError {
                        fault: crate::engine::Fault::Fenced,
                        source: "its lease has another holder".into(),
                    },
                ));
                return ControlFlow::Break(());
            }
            Err(error) => {
                self.connection = None;
                if !std::mem::replace(&mut self.is_late, true) {
                    tracing::warn!(node, error = %error.source, "renewing the node's lease failed");
                }
            }
        }
        if commit_id::has_allotments(node) {
            self.take_leadership();
            self.compare_settings();
        }
        ControlFlow::Continue(())
    }

    fn connect(&mut self) -> Result<&Connection, EngineError> {
        match &mut self.connection {
            Some(connection) => Ok(connection),
            missing => {
                let connection = Connection::reopen(&self.target).and_then(limited)?;
                Ok(missing.insert(connection))
            }
        }
    }

    fn take_leadership(&mut self) {
        // Before the renewal is sent, as with the lease of the node.
        let began = self.outage.clock.since_boot();
        let run = run_name((self.node, self.epoch));
        let taken = self
            .connection
            .as_ref()
            .map(|link| take_leadership(link, &run));
        match taken {
            Some(Ok(true)) => self.outage.set_leader(began + LEADER_FOR),
            Some(Ok(false)) => self.outage.set_leader(Duration::ZERO),
            // The leadership lasts until the known end of the lease.
            Some(Err(_)) | None => {}
        }
        let is_leader = self.outage.is_leader();
        let node = self.node;
        match (std::mem::replace(&mut self.is_leader, is_leader), is_leader) {
            (false, true) => tracing::info!(node, "became the leader of the cluster"),
            (true, false) => tracing::info!(node, "lost the leadership of the cluster"),
            _ => {}
        }
    }

    /// Records the digest of changed settings, and reads which nodes have other settings.
    fn compare_settings(&mut self) {
        let node = self.node;
        let settings = &self.shared.node_settings;
        let (Some(digest), Some(link)) = (settings.own(), &self.connection) else {
            return;
        };
        let is_recorded = self.recorded.as_ref() == Some(&digest);
        let recorded = match is_recorded {
            true => Ok(()),
            false => record_settings(link, (node, self.epoch), &digest),
        };
        let compared = recorded
            .map_err(RowError::from)
            .and_then(|()| read_other_settings(link, node));
        match compared {
            Ok(others) => {
                settings.set_others(others);
                self.recorded = Some(digest);
                self.is_comparing_late = false;
            }
            Err(error) => {
                self.connection = None;
                if !std::mem::replace(&mut self.is_comparing_late, true) {
                    tracing::warn!(node, %error, "comparing settings with those of other nodes failed, retrying");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Gid, Uid, getuid};
    use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

    use super::*;

    #[test]
    fn only_a_process_of_this_machine_is_known_to_be_gone() {
        let this = Holder::of_this_process();
        assert!(!Holder::is_gone(&this.to_string()), "it runs");
        // Linux numbers processes up to 4,194,304.
        let gone = Holder {
            process: 4_194_305,
            ..this.clone()
        };
        assert!(Holder::is_gone(&gone.to_string()));
        let recovers = format!("{RECOVERS}{gone}");
        assert!(Holder::is_gone(&recovers), "also one that recovered a node");
        let elsewhere = Holder {
            machine: "another boot".to_owned(),
            ..gone
        };
        assert!(!Holder::is_gone(&elsewhere.to_string()));
        assert!(!Holder::is_gone("of another release"));
    }

    /// The service may send no signal to another user's process, and does not see the process in `/proc`. So a recovery by root was taken
    /// for an ended process.
    #[test]
    fn a_process_of_another_user_is_not_gone() {
        let first = Holder {
            process: 1,
            ..Holder::of_this_process()
        };
        let asked = std::thread::spawn(move || {
            if getuid().is_root() {
                let (user, group) = (Uid::from_raw(65_534), Gid::from_raw(65_534));
                set_thread_res_gid(group, group, group).expect("root may be in any group");
                set_thread_res_uid(user, user, user).expect("root may be any user");
            }
            Holder::is_gone(&first.to_string())
        });
        assert!(!asked.join().expect("no panic"));
    }
}
