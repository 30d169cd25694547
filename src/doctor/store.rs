//! The database: the time of a durable write, free space, the schema, and the gateway with the lock of the database.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Clock;
use tollgate_store::OpenError;

use super::checks::{Checks, gigabytes, milliseconds};
use super::finding::Finding;
use crate::admin::control::{self, ControlError};
use crate::admin::operations::gateway::{Process, Show};
use crate::config::{Settings, StoreUrl};
use crate::database;
use crate::telemetry;

/// The number of measured durable writes, and the time after which no further write is made.
const WRITES: usize = 32;
const WRITES_LIMIT: Duration = Duration::from_secs(3);

/// Bytes of each write: a page of the log.
const WRITE_BYTES: usize = 4096;

/// A median above which every response is noticeably late: a response waits for a commit.
const SLOW: Duration = Duration::from_millis(20);

/// `TMPFS_MAGIC` and `RAMFS_MAGIC` (statfs(2)).
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Time limit of the running gateway's answer.
const GATEWAY_LIMIT: Duration = Duration::from_secs(3);

/// The gateway of the settings on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Running {
    /// No process has the control socket.
    None,
    /// A process has the control socket, but does not report its id.
    Unknown,
    Process(u32),
}

impl Running {
    pub(super) fn process(self) -> Option<u32> {
        match self {
            Running::Process(id) => Some(id),
            Running::None | Running::Unknown => None,
        }
    }
}

/// Asks the gateway at the control socket.
pub(super) async fn gateway(settings: &Settings) -> (Running, Finding) {
    let name = "gateway";
    let socket = database::control_socket(&settings.store);
    let ask = tokio::task::spawn_blocking(move || control::request(&socket, &Show {}));
    let finding = match tokio::time::timeout(GATEWAY_LIMIT, ask).await {
        Ok(Ok(Ok(Process {
            process, version, ..
        }))) => {
            let measured = format!("process {process} runs release {version}");
            let finding = match version == env!("CARGO_PKG_VERSION") {
                true => Finding::ok(name, measured),
                false => Finding::warning(name, measured).remedy(format!(
                    "this command is of release {}: `tollgate upgrade` has the gateway hand over to it",
                    env!("CARGO_PKG_VERSION")
                )),
            };
            return (Running::Process(process), finding);
        }
        Ok(Ok(Err(ControlError::NoGateway { .. }))) => {
            let finding = Finding::ok(name, "none runs with this database on this machine");
            return (Running::None, finding);
        }
        Ok(Ok(Err(ControlError::Refused(_) | ControlError::Unexpected))) => {
            Finding::warning(name, "one of an earlier release runs")
                .remedy("`tollgate upgrade` has it hand over to this one")
        }
        Ok(Ok(Err(error))) => Finding::warning(name, telemetry::chain(&error))
            .remedy("run this command as the gateway's user"),
        Ok(Err(error)) => Finding::failed(name, error.to_string()),
        Err(_) => Finding::failed(
            name,
            "it has not answered at its control socket within 3 seconds",
        )
        .remedy("see its log; `/live` at the admin address says which worker is stuck"),
    };
    (Running::Unknown, finding)
}

pub(super) fn start(checks: &mut Checks, settings: &Arc<Settings>) {
    let clock = checks.clock.clone();
    match &settings.store.url {
        StoreUrl::Sqlite(path) => {
            let path = tollgate_store::sqlite::resolve(path);
            let folder = match path.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
                _ => PathBuf::from("."),
            };
            let (at, timing) = (folder.clone(), clock.clone());
            checks.start_blocking("durable write", move || durable_write(&at, &timing));
            let least = settings.store.free_bytes_min;
            checks.start_blocking("free disk space", move || free_space(&folder, &path, least));
        }
        StoreUrl::Postgres(_) => {
            let (settings, timing) = (settings.clone(), clock.clone());
            if let Some(spool) = settings.store.spool.as_ref() {
                let folder = spool.folder.clone();
                checks.start_blocking("spool", move || spool_folder(&folder));
            }
            checks.start_blocking("durable write", move || postgres(&settings, &timing));
        }
    }
    let socket = database::control_socket(&settings.store);
    checks.start_blocking("control socket", move || control_socket(&socket));
    let settings = settings.clone();
    checks.start_blocking("database", move || schema(&settings, &clock));
}

/// Whether a gateway can make its control socket.
fn control_socket(path: &Path) -> Finding {
    let name = "control socket";
    match control::Socket::check(path) {
        Ok(()) => Finding::ok(name, path.display().to_string()),
        Err(error) => Finding::failed(name, telemetry::chain(&error))
            .remedy("run this command as the gateway's user; if it is, set `admin.socket`"),
    }
}

/// Whether a gateway can create or write its spool.
fn spool_folder(folder: &Path) -> Finding {
    let name = "spool";
    match database::check_spool(folder) {
        Ok(()) => Finding::ok(name, folder.display().to_string()),
        Err(error) => Finding::failed(name, telemetry::chain(&error))
            .remedy("run this command as the gateway's user; if it is, set `store.spool`"),
    }
}

/// The time of a write and its sync, as in a commit, in a file without a name. The file disappears with the process.
fn durable_write(folder: &Path, clock: &Clock) -> Finding {
    let name = "durable write";
    let mut times = Vec::with_capacity(WRITES);
    let began = clock.elapsed();
    let measured = tempfile::tempfile_in(folder).and_then(|mut file| {
        while times.len() < WRITES && clock.elapsed() - began < WRITES_LIMIT {
            let start = clock.elapsed();
            file.write_all(&[0; WRITE_BYTES])?;
            file.sync_data()?;
            times.push(clock.elapsed() - start);
        }
        Ok(())
    });
    if let Err(error) = measured {
        return Finding::failed(name, format!("cannot write in `{}` ({error})", folder.display())).remedy(
            "run this command as the gateway's user; if it is, give the folder to that user, and free space on its disk",
        );
    }
    let in_memory = rustix::fs::statfs(folder)
        .is_ok_and(|found| IN_MEMORY.contains(&(found.f_type as u64 & 0xffff_ffff)));
    describe_writes(name, times, in_memory)
}

fn describe_writes(name: &str, mut times: Vec<Duration>, in_memory: bool) -> Finding {
    times.sort_unstable();
    let (Some(median), Some(worst)) = (times.get(times.len() / 2), times.last()) else {
        return Finding::failed(name, "nothing could be measured");
    };
    let measured = format!(
        "{} median, {} worst of {}",
        milliseconds(*median),
        milliseconds(*worst),
        times.len()
    );
    if in_memory {
        return Finding::warning(name, format!("{measured}, in memory (tmpfs)")).remedy(
            "put the database on a disk (`store.url`): everything in it is lost with the machine's next start",
        );
    }
    match *median > SLOW {
        false => Finding::ok(name, measured),
        true => Finding::warning(name, measured).remedy(
            "every response waits for such a write; use a local disk, best an SSD with power-loss protection, not one over a network",
        ),
    }
}

/// The time of a round trip to the server and of a durable commit on the server.
fn postgres(settings: &Settings, clock: &Clock) -> Finding {
    let name = "durable write";
    match database::measure(&settings.store, clock) {
        None => Finding::skipped(name, "the settings name a file"),
        Some(Err(error @ OpenError::Unreachable { .. })) => {
            Finding::failed(name, telemetry::chain(&error))
                .remedy("start the server, or correct `store.url` and its password")
        }
        // The server has answered, and the text has the remedy.
        Some(Err(error)) => Finding::failed(name, telemetry::chain(&error)),
        Some(Ok(measured)) => {
            let mut trips = measured.round_trips;
            trips.sort_unstable();
            let trip = trips.get(trips.len() / 2).copied().unwrap_or_default();
            let found = describe_writes(name, measured.commits, false);
            Finding {
                measured: format!(
                    "{}; a round trip takes {}",
                    found.measured,
                    milliseconds(trip)
                ),
                ..found
            }
        }
    }
}

fn free_space(folder: &Path, database: &Path, least: u64) -> Finding {
    let name = "free disk space";
    let found = match rustix::fs::statvfs(folder) {
        Ok(found) => found,
        Err(error) => return Finding::failed(name, format!("`{}`: {error}", folder.display())),
    };
    let free = found.f_bavail * found.f_frsize;
    let used = std::fs::metadata(database).map_or(0, |file| file.len());
    describe_space(name, free, used, least)
}

fn describe_space(name: &str, free: u64, used: u64, least: u64) -> Finding {
    let measured = format!(
        "{} free, the database has {}",
        gigabytes(free),
        gigabytes(used)
    );
    if free < least {
        return Finding::failed(name, measured).remedy(format!(
            "free space: below {} (`store.free_bytes_min`) new requests get 503",
            gigabytes(least)
        ));
    }
    // A repair and a backup on this disk need twice the used or the minimum space.
    if free < used.saturating_mul(2).max(least.saturating_mul(2)) {
        return Finding::warning(name, measured)
            .remedy("free space: a repair needs twice the size of the database");
    }
    Finding::ok(name, measured)
}

/// Whether the database can be read by this release.
fn schema(settings: &Settings, clock: &Clock) -> Finding {
    let name = "database";
    let shown = database::name(&settings.store);
    let entropy = tollgate_clock::Entropy::system();
    let opener = database::Opener {
        name: "doctor",
        clock,
        entropy: &entropy,
    };
    match database::open_read(&settings.store, &opener) {
        Ok(_) => match (
            database::inspect(&settings.store),
            database::check_record(&settings.store),
        ) {
            (Ok(None), Ok(None)) => {
                Finding::ok(name, format!("{shown} has the schema of this release"))
            }
            (Ok(Some(damage)), _) => Finding::failed(name, format!("{shown} is damaged: {damage}"))
                .remedy("run `tollgate audit`, and restore a backup or repair it"),
            (Ok(None), Ok(Some(problem))) => Finding::warning(name, problem),
            (Err(error), _) | (_, Err(error)) => Finding::failed(name, telemetry::chain(&error)),
        },
        Err(OpenError::Missing { .. }) => match database::check_empty(&settings.store, &opener) {
            Ok(()) => Finding::ok(
                name,
                format!("{shown} has no store yet; the first start creates it"),
            ),
            Err(error) => Finding::failed(name, telemetry::chain(&error)),
        },
        Err(error @ OpenError::Older { .. }) => Finding::warning(name, telemetry::chain(&error)),
        Err(error) => Finding::failed(name, telemetry::chain(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Status;

    #[test]
    fn the_median_decides_and_memory_is_no_disk() {
        let ms = |times: &[u64]| -> Vec<Duration> {
            times.iter().copied().map(Duration::from_millis).collect()
        };
        for (times, in_memory, wanted) in [
            (ms(&[1, 900, 2]), false, Status::Ok),
            (ms(&[1, 30, 40]), false, Status::Warning),
            (ms(&[1, 1, 1]), true, Status::Warning),
            (ms(&[]), false, Status::Failed),
        ] {
            let found = describe_writes("w", times.clone(), in_memory);
            assert_eq!(found.status, wanted, "{times:?}: {found}");
        }
        let found = describe_writes("w", ms(&[1, 900, 2]), false);
        assert_eq!(found.measured, "2.00 ms median, 900 ms worst of 3");
    }

    #[test]
    fn too_little_space_is_a_failure_and_too_little_for_a_repair_a_warning() {
        for (free, used, least, wanted) in [
            (99, 0, 100, Status::Failed),
            (199, 0, 100, Status::Warning),
            (200, 0, 100, Status::Ok),
            (900, 500, 100, Status::Warning),
            (1000, 500, 100, Status::Ok),
        ] {
            let found = describe_space("s", free, used, least);
            assert_eq!(found.status, wanted, "{free} {used} {least}: {found}");
        }
    }
}
