//! `tollgate nodes`: the gateways that work on one database.

use std::io::Write;

use anyhow::{Context as _, bail};
use serde::Serialize;
use tollgate_clock::{Clock, Entropy};
use tollgate_store::postgres::NodeState;

use super::exit_code::SUCCESS;
use super::output::{self, Output};
use crate::args::NodesCommand;
use crate::config::Settings;
use crate::database::{self, Opener};

/// A node, as it is shown.
#[derive(Serialize)]
struct ShownNode {
    node: i64,
    /// Absent for a gateway that was alone.
    name: Option<String>,
    epoch: i64,
    /// RFC 3339.
    started_at: String,
    /// `running`; `ended`, with nothing left; or `unrecovered`, with holds, credit or records that its recovery returns.
    state: &'static str,
    /// The process that has its lease.
    process: Option<String>,
    /// Seconds until its lease ends, negative for one that has ended.
    lease_seconds: Option<f64>,
}

pub(super) fn run(
    command: Option<NodesCommand>,
    settings: &Settings,
    out: &mut Output<'_>,
) -> anyhow::Result<u8> {
    let (clock, entropy) = (Clock::system(), Entropy::system());
    let opener = Opener {
        name: "nodes",
        clock: &clock,
        entropy: &entropy,
    };
    let mut nodes = database::nodes(&settings.store, &opener)?;
    if let Some(NodesCommand::Recover { name }) = command {
        let found = nodes
            .iter()
            .find(|node| node.name == name || node.node.to_string() == name);
        let Some(found) = found else {
            bail!("there is no node `{name}`; `tollgate nodes` shows them");
        };
        database::recover_node(&settings.store, &opener, found.node)
            .with_context(|| format!("cannot recover node `{name}`"))?;
        nodes = database::nodes(&settings.store, &opener)?;
    }
    let nodes: Vec<_> = nodes.into_iter().map(shown).collect();
    out.show(&nodes, |out| print_text(&nodes, out))?;
    Ok(SUCCESS)
}

fn shown(node: NodeState) -> ShownNode {
    let running = node.lease.as_ref().filter(|lease| !lease.is_over());
    ShownNode {
        node: node.node,
        state: match (running, node.is_recovered) {
            (Some(_), _) => "running",
            (None, true) => "ended",
            (None, false) => "unrecovered",
        },
        name: node.is_one_of_many.then_some(node.name),
        epoch: node.epoch,
        started_at: node.started_at.rfc3339(),
        process: running.map(|lease| lease.holder.clone()),
        lease_seconds: node.lease.as_ref().map(|lease| {
            let micros = lease.until.as_micros() - lease.now.as_micros();
            micros as f64 / 1_000_000.0
        }),
    }
}

fn print_text(nodes: &[ShownNode], out: &mut dyn Write) -> anyhow::Result<()> {
    let rows: Vec<_> = nodes
        .iter()
        .map(|node| {
            [
                node.name.clone().unwrap_or_else(|| "(alone)".to_owned()),
                node.node.to_string(),
                node.state.to_owned(),
                node.epoch.to_string(),
                node.started_at.clone(),
                node.process.clone().unwrap_or_default(),
            ]
        })
        .collect();
    let headings = ["NAME", "NODE", "STATE", "RUN", "STARTED", "PROCESS"];
    output::table(out, headings, &rows)
}
