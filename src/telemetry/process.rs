//! Process metrics and a limit of the operating system.

use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_counters::{Samples, Source};

use super::names;

/// The start of the process at `started`. Where the system provides figures, also the processor time, memory and open files of the process.
pub(super) fn source(started: Timestamp) -> Source {
    Box::new(move |samples| {
        samples.number(names::START, started.as_secs());
        show_system(samples);
    })
}

fn show_system(samples: &mut Samples) {
    if let Some(used) = processor_time() {
        samples.seconds(names::CPU, used);
    }
    if let Some(bytes) = resident_bytes() {
        samples.number(names::MEMORY, bytes);
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        // The directory listing itself holds a descriptor.
        samples.number(names::OPEN_FILES, files.count() as i128 - 1);
    }
}

fn processor_time() -> Option<Duration> {
    processor_time_in(&std::fs::read_to_string("/proc/self/stat").ok()?)
}

/// In user mode and in the kernel, from ticks of 10 ms (proc_pid_stat(5), the fields `utime` and `stime`).
fn processor_time_in(stat: &str) -> Option<Duration> {
    // The name of the program comes before, in parentheses, and may have spaces and parentheses.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut ticks = fields.split(' ').skip(11).map(str::parse::<u64>);
    let (user, kernel) = (ticks.next()?.ok()?, ticks.next()?.ok()?);
    Some(Duration::from_millis((user + kernel) * 10))
}

fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The longest accept queue that the system allows, where the system reports the limit.
pub(crate) fn accept_queue_max() -> Option<u32> {
    let text = std::fs::read_to_string("/proc/sys/net/core/somaxconn").ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_that_of_the_user_and_of_the_kernel() {
        let stat =
            "42 (toll gate) 1) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 9 9 20 0 14 0 100 1 1";
        assert_eq!(processor_time_in(stat), Some(Duration::from_secs(3)));
        assert_eq!(processor_time_in("42 (tollgate) S 1"), None);
        assert!(processor_time().is_some(), "the kernel's own line");
    }
}
