//! Process metrics and a limit of the operating system.

use tollgate_counters::Samples;

use super::names;

/// Adds memory and open files, where the system provides them.
pub(super) fn show(samples: &mut Samples) {
    if let Some(bytes) = resident_bytes() {
        samples.number(names::MEMORY, bytes);
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        // The directory listing itself holds one.
        samples.number(names::OPEN_FILES, files.count() as i128 - 1);
    }
}

fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The longest accept queue that the system allows, where it says so.
pub(crate) fn accept_queue_max() -> Option<u32> {
    let text = std::fs::read_to_string("/proc/sys/net/core/somaxconn").ok()?;
    text.trim().parse().ok()
}
