//! The lease of a node: which process may run under its name, by the clock of the database.
//!
//! A lease is no part of the fence: a process whose lease has ended continues with its epoch until another one has raised it.

use std::fs;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tollgate_clock::Clock;

use super::connection::{Connection, Target};
use crate::commit::Shared;
use crate::commit_id;
use crate::engine::{EngineError, RowError, Select as _, Sql as _, values};

/// For how long a node has the duties after it sent the renewal of their lease: shorter than the lease, so that two never have them.
const DUTIES_FOR: Duration = Duration::from_secs(7);

/// The length of a lease, and the interval of its renewal.
pub(super) const LENGTH: Duration = Duration::from_secs(10);
const RENEWAL: Duration = Duration::from_secs(2);

/// The number under which the duties of the cluster are leased, which is that of no node.
const DUTIES: i64 = 0;

/// The beginning of a holder that recovers a node.
const RECOVERS: &str = "recovers: ";

/// The database's time in microseconds.
macro_rules! now_us {
    () => {
        "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)"
    };
}

/// A lease as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) node: i64,
    pub(super) holder: String,
    pub(super) held_until: i64,
    pub(super) is_over: bool,
    /// Its holder recovers what the node has left, and ends then.
    pub(super) is_recovery: bool,
    /// The time of the database.
    pub(super) now: i64,
}

/// The lease of a node, if it has one.
pub(super) fn find(connection: &Connection, node: i64) -> Result<Option<Found>, RowError> {
    let sql = concat!(
        "SELECT holder, held_until, ",
        now_us!(),
        " FROM leases WHERE node = ?1"
    );
    connection.first(sql, values![node], |row| {
        let (held_until, now) = (row.get(1)?, row.get(2)?);
        let holder: String = row.get(0)?;
        Ok(Found {
            node,
            is_recovery: holder.starts_with(RECOVERS),
            holder,
            held_until,
            is_over: held_until <= now,
            now,
        })
    })
}

/// Takes the lease of a node for this process, to run as it or to recover it.
pub(super) fn take(
    connection: &Connection,
    node: i64,
    epoch: i64,
    is_recovery: bool,
) -> Result<(), EngineError> {
    let sql = concat!(
        "INSERT INTO leases (node, epoch, held_until, holder) VALUES (?1, ?2, ",
        now_us!(),
        " + CAST(?3 AS BIGINT), ?4)
         ON CONFLICT (node) DO UPDATE SET epoch = excluded.epoch, held_until = excluded.held_until, holder = excluded.holder, feed = 0"
    );
    let holder = Holder::of_this_process();
    let holder = match is_recovery {
        true => format!("{RECOVERS}{holder}"),
        false => holder.to_string(),
    };
    connection
        .execute(sql, values![node, epoch, LENGTH, holder])
        .map(|_| ())
}

/// Ends the lease of a run.
pub(super) fn release(connection: &Connection, node: i64, epoch: i64) -> Result<(), EngineError> {
    let sql = "DELETE FROM leases WHERE node = ?1 AND epoch = ?2";
    connection.execute(sql, values![node, epoch])?;
    let sql = "DELETE FROM leases WHERE node = ?1 AND holder = ?2";
    let run = run_name((node, epoch));
    connection.execute(sql, values![DUTIES, run]).map(|_| ())
}

/// Renews the lease of a run, and says how far it has read the feed of changes; `false` when it has another holder.
fn renew(
    connection: &Connection,
    (node, epoch): (i64, i64),
    feed: i64,
) -> Result<bool, EngineError> {
    let sql = concat!(
        "UPDATE leases SET held_until = ",
        now_us!(),
        " + CAST(?3 AS BIGINT), feed = ?4 WHERE node = ?1 AND epoch = ?2"
    );
    Ok(connection.execute(sql, values![node, epoch, LENGTH, feed])? > 0)
}

/// Takes or renews the lease of the duties; `false` while another node has it.
fn take_duties(connection: &Connection, run: &str) -> Result<bool, EngineError> {
    let sql = concat!(
        "INSERT INTO leases (node, epoch, held_until, holder) VALUES (?1, 0, ",
        now_us!(),
        " + CAST(?2 AS BIGINT), ?3)
         ON CONFLICT (node) DO UPDATE SET held_until = excluded.held_until, holder = excluded.holder
         WHERE leases.holder = excluded.holder OR leases.held_until <= ",
        now_us!()
    );
    Ok(connection.execute(sql, values![DUTIES, LENGTH, run])? > 0)
}

/// The name of a run in the lease of the duties.
fn run_name((node, epoch): (i64, i64)) -> String {
    format!("node {node}, run {epoch}")
}

/// A process: its machine since the last boot, its name space, and its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    machine: String,
    process: u32,
}

impl Holder {
    fn of_this_process() -> Holder {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        // Containers of one machine have the same boot and other processes.
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

    /// Whether it is known that the holder of a lease runs no more: it was a process of this machine.
    pub(super) fn is_gone(text: &str) -> bool {
        let this = Holder::of_this_process();
        Holder::parse(text).is_some_and(|holder| {
            // Without a boot id nothing is known.
            holder.machine == this.machine
                && !this.machine.starts_with(' ')
                && holder.process != this.process
                && !fs::exists(format!("/proc/{}", holder.process)).unwrap_or(true)
        })
    }

    /// The holder for people.
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

/// The thread that renews a lease.
pub(super) struct Renewal {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Renewal {
    /// Starts the thread, on a connection of its own.
    pub(super) fn start(
        target: Arc<Target>,
        connection: Connection,
        (node, epoch): (i64, i64),
        shared: Arc<Shared>,
        monotonic_us: Arc<dyn Fn() -> u64 + Send + Sync>,
    ) -> std::io::Result<Renewal> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name(String::from("lease"))
            .spawn(move || {
                run(
                    &target,
                    connection,
                    (node, epoch),
                    &shared,
                    &*monotonic_us,
                    &stopped,
                )
            })?;
        Ok(Renewal {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Renewal {
    /// Stops the thread and waits for it.
    fn drop(&mut self) {
        let (flag, wake) = &*self.stop;
        *flag.lock().unwrap_or_else(PoisonError::into_inner) = true;
        wake.notify_one();
        let thread = self.thread.take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::warn!("lease thread panicked");
        }
    }
}

fn run(
    target: &Target,
    connection: Connection,
    (node, epoch): (i64, i64),
    shared: &Shared,
    monotonic_us: &dyn Fn() -> u64,
    (flag, wake): &(Mutex<bool>, Condvar),
) {
    let mut connection = Some(connection);
    let clock = Clock::system();
    let run = run_name((node, epoch));
    let mut duties_until = Duration::ZERO;
    let mut interval = Duration::ZERO;
    let mut is_late = false;
    let mut stopped = flag.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        (stopped, _) = wake
            .wait_timeout(stopped, interval)
            .unwrap_or_else(PoisonError::into_inner);
        if *stopped {
            return;
        }
        drop(stopped);
        interval = RENEWAL;
        let renewing = monotonic_us();
        let feed = shared.feed_number.load(Relaxed);
        let renewed = match &connection {
            Some(connection) => renew(connection, (node, epoch), feed),
            None => Connection::open(target).and_then(|opened| {
                let renewed = renew(&opened, (node, epoch), feed);
                connection = Some(opened);
                renewed
            }),
        };
        if let Ok(true) = renewed {
            let renewed = &shared.gauges.lease_renewed_us;
            renewed.store(renewing.max(1), Relaxed);
        }
        match renewed {
            Ok(true) if is_late => {
                is_late = false;
                tracing::info!(node, "renewed the node's lease again");
            }
            Ok(true) => {}
            // The commit that follows is refused by the fence too; an idle node learns it here.
            Ok(false) => {
                return shared.fail(super::failure::failure(
                    &target.url.to_string(),
                    EngineError {
                        fault: crate::engine::Fault::Fenced,
                        source: "its lease has another holder".into(),
                    },
                ));
            }
            Err(error) => {
                connection = None;
                if !std::mem::replace(&mut is_late, true) {
                    tracing::warn!(node, error = %error.source, "renewing the node's lease failed");
                }
            }
        }
        if commit_id::has_allotments(node) {
            let began = clock.elapsed();
            let taken = connection
                .as_ref()
                .map(|connection| take_duties(connection, &run));
            match taken {
                Some(Ok(true)) => duties_until = began + DUTIES_FOR,
                Some(Ok(false)) => duties_until = Duration::ZERO,
                // Until the end of what is known to be held.
                Some(Err(_)) | None => {}
            }
            let has_duties = clock.elapsed() < duties_until;
            if shared.has_duties.swap(has_duties, Relaxed) != has_duties {
                tracing::info!(node, has_duties, "duties of the cluster were taken or lost");
            }
        }
        stopped = flag.lock().unwrap_or_else(PoisonError::into_inner);
    }
}

#[cfg(test)]
mod tests {
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
}
