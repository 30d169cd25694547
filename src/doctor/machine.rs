//! Limits of the kernel, and the clock.

use std::process::Stdio;
use std::time::Duration;

use super::checks::Checks;
use super::finding::Finding;
use crate::config::Settings;
use crate::telemetry::accept_queue_max;

/// Descriptors besides the descriptors of clients and providers: listeners, the database, logs, connections of the admin address.
const OTHER_DESCRIPTORS: u64 = 256;

/// Time limit of the program that knows whether the clock is synchronized.
const CLOCK_LIMIT: Duration = Duration::from_secs(3);

/// Starts the checks. `process` is the running gateway: its limits count rather than the limits of this command.
pub(super) fn start(checks: &mut Checks, settings: Option<&Settings>, process: Option<u32>) {
    if let Some(settings) = settings {
        let limits = &settings.server.limits;
        checks.known(descriptors(limits.connections_max, process));
        checks.known(accept_queue(limits.accept_queue));
    }
    checks.start("clock", clock());
}

/// The limit of open files (`RLIMIT_NOFILE`): a client uses a descriptor, and its request to the provider another descriptor.
fn descriptors(connections_max: usize, process: Option<u32>) -> Finding {
    let name = "limit of descriptors";
    let (path, whose) = match process {
        Some(process) => (format!("/proc/{process}/limits"), "the running gateway"),
        None => ("/proc/self/limits".to_owned(), "this shell"),
    };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => return Finding::skipped(name, format!("cannot read `{path}` ({error})")),
    };
    let Some(limit) = soft_limit(&text, "Max open files") else {
        return Finding::skipped(name, format!("`{path}` does not have it"));
    };
    let needed = 2 * connections_max as u64 + OTHER_DESCRIPTORS;
    let measured = format!("{limit} for {whose}, {needed} needed (`server.connections_max`)");
    if limit >= needed {
        return Finding::ok(name, measured);
    }
    if process.is_none() {
        // A service manager gives the gateway another limit than the limit of this shell.
        return Finding::skipped(name, measured).remedy("run this again while the gateway runs");
    }
    Finding::warning(name, measured).remedy(
        "raise it where the gateway is started (`LimitNOFILE=` in the unit, `ulimit -n`), or lower `server.connections_max`; beyond the limit \
         connections are refused",
    )
}

/// A soft limit in the format of `/proc/PID/limits` (proc_pid_limits(5)).
fn soft_limit(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

fn accept_queue(wanted: u32) -> Finding {
    let name = "accept queue";
    match accept_queue_max() {
        None => Finding::skipped(name, "this system does not say its limit"),
        Some(limit) if limit >= wanted => {
            Finding::ok(name, format!("{limit} (`net.core.somaxconn`), {wanted} wanted"))
        }
        Some(limit) => Finding::warning(
            name,
            format!("{limit} (`net.core.somaxconn`), {wanted} wanted (`server.accept_queue`)"),
        )
        .remedy("raise it (`sysctl net.core.somaxconn`), or lower `server.accept_queue`: a burst of connections is dropped"),
    }
}

/// Whether the clock is kept by a time server, from the service manager, which asks the kernel (adjtimex(2)).
async fn clock() -> Finding {
    let name = "clock";
    let asked = tokio::process::Command::new("timedatectl")
        .args(["show", "--property=NTPSynchronized", "--value"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let answer = match tokio::time::timeout(CLOCK_LIMIT, asked).await {
        Ok(Ok(output)) if output.status.success() => output.stdout,
        _ => {
            return Finding::skipped(
                name,
                "`timedatectl` does not answer here; see that a time server keeps this machine's clock",
            );
        }
    };
    described_clock(&answer)
}

fn described_clock(answer: &[u8]) -> Finding {
    let name = "clock";
    match answer.trim_ascii() {
        b"yes" => Finding::ok(name, "synchronized"),
        b"no" => Finding::warning(name, "not synchronized").remedy(
            "start a time service (systemd-timesyncd, chrony): tokens, payments, certificates and days of usage depend on the time",
        ),
        _ => Finding::skipped(name, "`timedatectl` gave an answer of another form"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Status;

    #[test]
    fn limits_are_read_from_the_kernels_table() {
        let table = "Limit                     Soft Limit           Hard Limit           Units     \n\
                     Max open files            1024                 524288               files     \n\
                     Max locked memory         unlimited            unlimited            bytes     \n";
        assert_eq!(soft_limit(table, "Max open files"), Some(1024));
        assert_eq!(soft_limit(table, "Max locked memory"), Some(u64::MAX));
        assert_eq!(soft_limit(table, "Max processes"), None);
        assert_eq!(descriptors(0, None).status, Status::Ok);
        assert_eq!(descriptors(1 << 60, None).status, Status::Skipped);
        let low = descriptors(1 << 60, Some(std::process::id()));
        assert_eq!(low.status, Status::Warning);
        assert!(low.remedy.expect("one").contains("LimitNOFILE"));
        assert_eq!(descriptors(0, Some(u32::MAX)).status, Status::Skipped);
    }

    #[test]
    fn a_clock_that_is_not_kept_is_a_warning() {
        for (answer, wanted) in [
            ("yes\n", Status::Ok),
            ("no\n", Status::Warning),
            ("", Status::Skipped),
        ] {
            assert_eq!(
                described_clock(answer.as_bytes()).status,
                wanted,
                "{answer}"
            );
        }
        assert_eq!(accept_queue(1).status, Status::Ok);
        assert_eq!(accept_queue(u32::MAX).status, Status::Warning);
    }
}
