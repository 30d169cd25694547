//! Targets of a measurement: their addresses, their processes, and the resources that these use.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Clock ticks of `/proc/PID/stat` per second: 100 on every Linux (`USER_HZ`).
const TICKS_PER_SEC: f64 = 100.0;

/// One path to the provider: through a gateway, or direct.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Target {
    /// Its name in the tables.
    pub(crate) name: String,
    /// Where it listens without TLS.
    pub(crate) address: SocketAddr,
    /// Where it listens with TLS and HTTP/2, if it does.
    #[serde(default)]
    pub(crate) tls_address: Option<SocketAddr>,
    /// The authority that signed its certificate, a PEM file.
    #[serde(default)]
    pub(crate) ca_file: Option<String>,
    /// The key that requests bear.
    #[serde(default)]
    pub(crate) key: String,
    /// Its processes; their children count too. None for the direct path.
    #[serde(default)]
    pub(crate) pids: Vec<u32>,
}

impl Target {
    /// A gateway at an address.
    pub(crate) fn at(address: SocketAddr, key: &str) -> Target {
        Target {
            name: String::from("tollgate"),
            address,
            tls_address: None,
            ca_file: None,
            key: key.to_owned(),
            pids: Vec::new(),
        }
    }

    /// Reads the list of targets.
    pub(crate) fn list(file: &Path) -> Result<Vec<Self>> {
        let text =
            fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let targets: Vec<Self> =
            serde_json::from_str(&text).with_context(|| format!("in {}", file.display()))?;
        ensure!(!targets.is_empty(), "{} names no target", file.display());
        Ok(targets)
    }

    /// CPU time of all its processes so far, user and system, in microseconds. Steps of 10 ms.
    pub(crate) fn cpu_us(&self) -> Result<f64> {
        let mut ticks = 0.0;
        for pid in self.family()? {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"))
                .with_context(|| format!("process {pid} of {} is gone", self.name))?;
            // The name in parentheses may hold spaces; what follows it starts with field 3.
            let after = stat.rsplit(") ").next().unwrap_or_default();
            let fields: Vec<&str> = after.split(' ').collect();
            for field in [11, 12] {
                ticks += fields
                    .get(field)
                    .context("a short stat line")?
                    .parse::<f64>()?;
            }
        }
        Ok(ticks / TICKS_PER_SEC * 1e6)
    }

    /// Resident memory of all its processes, in KB.
    pub(crate) fn resident_kb(&self) -> Result<f64> {
        let mut sum = 0.0;
        for pid in self.family()? {
            let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let value = line
                .and_then(|line| line.split_whitespace().next())
                .context("a process without VmRSS")?;
            sum += value.parse::<f64>()?;
        }
        Ok(sum)
    }

    fn family(&self) -> Result<Vec<u32>> {
        let mut family = self.pids.clone();
        let mut next = 0;
        while let Some(pid) = family.get(next).copied() {
            next += 1;
            for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
                let children =
                    fs::read_to_string(thread?.path().join("children")).unwrap_or_default();
                for child in children.split_whitespace() {
                    family.push(child.parse()?);
                }
            }
        }
        Ok(family)
    }
}
