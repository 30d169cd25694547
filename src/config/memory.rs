//! The memory limit of the process: the setting, else the limit of the cgroup (v2 or v1), else the memory of the machine.

use std::fs;
use std::path::{Path, PathBuf};

/// Where control groups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// A limit of version 1 above this number means no limit: the kernel stores the largest multiple of a page.
const UNLIMITED: u64 = 1 << 60;

/// The memory that the process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub bytes_max: u64,
    /// Where the number is from, for the log.
    pub source: &'static str,
}

impl Memory {
    pub(crate) fn of_setting(bytes_max: u64) -> Memory {
        Memory {
            bytes_max,
            source: "server.memory_bytes_max",
        }
    }

    /// The limit that the system sets.
    pub(crate) fn detect() -> Memory {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let shown = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let machine = of_machine().min(total(&shown).unwrap_or(u64::MAX));
        match of_groups(&groups, Path::new(CGROUPS)) {
            Some(group) if group < machine => Memory {
                bytes_max: group,
                source: "cgroup",
            },
            _ => Memory {
                bytes_max: machine,
                source: "machine",
            },
        }
    }

    /// The share of memory for bodies and buffers of requests.
    pub fn budget(&self) -> usize {
        usize::try_from(self.bytes_max / 5 * 2).unwrap_or(usize::MAX)
    }
}

/// The least limit of the group in `/proc/self/cgroup` and of the enclosing groups.
fn of_groups(groups: &str, mount: &Path) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let (root, file) = match controllers {
            "" => (mount.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => {
                (mount.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        least(&root, path, file)
    });
    limits.min()
}

/// The least number in `file` from the folder of `path` up to `root`. A container sees its own group as the root, so a missing folder is no
/// error.
fn least(root: &Path, path: &str, file: &str) -> Option<u64> {
    let below = path.trim_start_matches('/');
    let folder: PathBuf = root.join(below);
    let folders = folder
        .ancestors()
        .take_while(|folder| folder.starts_with(root));
    let numbers = folders.filter_map(|folder| {
        let text = fs::read_to_string(folder.join(file)).ok()?;
        text.trim().parse().ok().filter(|limit| *limit < UNLIMITED)
    });
    numbers.min()
}

/// `MemTotal` of `/proc/meminfo`, in bytes: in a container of LXC the container's limit. Invisible to a service with `ProcSubset=pid`.
fn total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib: u64 = line?.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The memory of the machine in bytes (sysinfo(2)).
fn of_machine() -> u64 {
    let machine = rustix::system::sysinfo();
    machine.totalram * u64::from(machine.mem_unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_the_own_group_and_those_around_it_counts() {
        let mount = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let file = mount.path().join(path);
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            fs::write(file, text).expect("a file");
        };
        let limit = |groups: &str| of_groups(groups, mount.path());
        write("system/tollgate/memory.max", "max\n");
        write("system/memory.max", "314572800\n");
        assert_eq!(limit("0::/system/tollgate\n"), Some(314_572_800));
        write("system/tollgate/memory.max", "1000\n");
        assert_eq!(limit("0::/system/tollgate\n"), Some(1_000));
        assert_eq!(limit("0::/elsewhere\n"), None);
        // In a container: the path is that of the host, the mount that of its own group.
        write("memory.max", "5000\n");
        assert_eq!(limit("0::/docker/abc\n"), Some(5_000));
        // Version 1.
        write("memory/a/memory.limit_in_bytes", "2000\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit("11:cpu,cpuacct:/\n7:memory:/a\n"), Some(2_000));
        assert_eq!(limit("7:memory:/\n"), None);
    }

    #[test]
    fn the_memory_of_the_machine_is_known_with_and_without_its_file() {
        let text = "MemTotal:       16314500 kB\nMemFree: 1 kB\n";
        assert_eq!(total(text), Some(16_314_500 * 1024));
        assert_eq!(total(""), None);
        let shown = fs::read_to_string("/proc/meminfo").expect("it is shown here");
        assert!(of_machine() >= total(&shown).expect("a line"));
    }
}
