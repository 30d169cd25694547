//! Targets of a measurement: their addresses, their processes, and the resources that these use.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Deserializer, de};

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
    /// Where its other nodes listen. Connections are spread over all.
    #[serde(default)]
    pub(crate) more: Vec<SocketAddr>,
    /// Where it listens with TLS and HTTP/2, if it does.
    #[serde(default)]
    pub(crate) tls_address: Option<SocketAddr>,
    /// The authority that signed its certificate, a PEM file.
    #[serde(default)]
    pub(crate) ca_file: Option<String>,
    /// The key that requests bear.
    #[serde(default)]
    pub(crate) key: String,
    /// In place of `key`, of which each request bears the next. In the list it is a file with one a line, all of the same length.
    #[serde(default, deserialize_with = "keys")]
    pub(crate) keys: Arc<[String]>,
    /// The process of the PostgreSQL server behind it, which is counted apart.
    #[serde(default)]
    pub(crate) postgres: Vec<u32>,
    /// That of the Redis server.
    #[serde(default)]
    pub(crate) redis: Vec<u32>,
    /// Its processes; their children count too. None for the direct path.
    #[serde(default)]
    pub(crate) pids: Vec<u32>,
}

/// One target of a list, as options of a command.
#[derive(clap::Args)]
pub(crate) struct Named {
    /// The list of targets.
    #[arg(long)]
    targets: PathBuf,
    /// The name of the target.
    #[arg(long)]
    name: String,
}

impl Named {
    /// Reads it from the list.
    pub(crate) fn read(&self) -> Result<Target> {
        Target::named(&self.targets, &self.name)
    }
}

impl Target {
    /// A gateway at an address.
    pub(crate) fn at(address: SocketAddr, key: &str) -> Target {
        Target {
            name: String::from("tollgate"),
            address,
            more: Vec::new(),
            tls_address: None,
            ca_file: None,
            key: key.to_owned(),
            keys: Arc::new([]),
            postgres: Vec::new(),
            redis: Vec::new(),
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

    /// The target of that name in a list.
    pub(crate) fn named(file: &Path, name: &str) -> Result<Target> {
        let mut all = Target::list(file)?.into_iter();
        let found = all.find(|target| target.name == name);
        found.with_context(|| format!("no target `{name}`"))
    }

    /// Each of its nodes alone.
    pub(crate) fn nodes(&self) -> Vec<Target> {
        let addresses = std::iter::once(&self.address).chain(&self.more);
        let alone = addresses.map(|address| Target {
            address: *address,
            more: Vec::new(),
            ..self.clone()
        });
        alone.collect()
    }

    /// CPU time of all its processes so far, user and system, in microseconds. Steps of 10 ms.
    pub(crate) fn cpu_us(&self) -> Result<f64> {
        cpu_us(&self.pids).with_context(|| format!("processes of {}", self.name))
    }

    /// Resident memory of all its processes, in KB.
    pub(crate) fn resident_kb(&self) -> Result<f64> {
        let mut sum = 0.0;
        for pid in family(&self.pids)? {
            sum += status_kb(pid, "VmRSS:")?;
        }
        Ok(sum)
    }
}

/// The most memory that a process has had resident, in MiB.
pub(crate) fn peak_mib(pid: u32) -> Result<f64> {
    Ok(status_kb(pid, "VmHWM:")? / 1024.0)
}

fn status_kb(pid: u32, name: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let value = line
        .and_then(|line| line.split_whitespace().next())
        .with_context(|| format!("a process without {name}"))?;
    Ok(value.parse()?)
}

fn keys<'de, D: Deserializer<'de>>(file: D) -> Result<Arc<[String]>, D::Error> {
    let Some(file) = Option::<PathBuf>::deserialize(file)? else {
        return Ok(Arc::new([]));
    };
    let text = fs::read_to_string(&file).map_err(de::Error::custom)?;
    let keys: Arc<[String]> = text.lines().map(str::to_owned).collect();
    match keys.windows(2).all(|pair| pair[0].len() == pair[1].len()) {
        true => Ok(keys),
        false => Err(de::Error::custom("the keys have several lengths")),
    }
}

/// CPU time of processes and their children so far, user and system, in microseconds. Steps of 10 ms. Children that have ended count as
/// long as the process that they were children of has not: a server of PostgreSQL starts one for each connection.
pub(crate) fn cpu_us(pids: &[u32]) -> Result<f64> {
    let mut ticks = 0.0;
    for pid in family(pids)? {
        let stat = match fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) => stat,
            // A child that has ended since.
            Err(_) if !pids.contains(&pid) => continue,
            Err(error) => return Err(error).with_context(|| format!("process {pid} is gone")),
        };
        // The name in parentheses may hold spaces; what follows it starts with field 3.
        let after = stat.rsplit(") ").next().unwrap_or_default();
        let fields: Vec<&str> = after.split(' ').collect();
        for field in 11..15 {
            ticks += fields
                .get(field)
                .context("a short stat line")?
                .parse::<f64>()?;
        }
    }
    Ok(ticks / TICKS_PER_SEC * 1e6)
}

fn family(pids: &[u32]) -> Result<Vec<u32>> {
    let mut family = pids.to_vec();
    let mut next = 0;
    while let Some(pid) = family.get(next).copied() {
        next += 1;
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
            continue;
        };
        for thread in threads {
            let children = fs::read_to_string(thread?.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace() {
                family.push(child.parse()?);
            }
        }
    }
    Ok(family)
}
