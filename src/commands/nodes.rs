//! `tollgate nodes`: the gateways that work on one database.

use std::io::Write;

use anyhow::{Context as _, bail};
use tollgate_clock::{Clock, Entropy};

use super::exit_code::SUCCESS;
use super::output::{self, Output};
use crate::admin::views::NodeView;
use crate::args::NodesCommand;
use crate::config::Settings;
use crate::database::{self, Opener};

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
        let Some(found) = nodes.iter().find(|node| node.is_named(&name)) else {
            bail!("there is no node `{name}`; `tollgate nodes` shows them");
        };
        database::recover_node(&settings.store, &opener, found.node, false)
            .with_context(|| format!("cannot recover node `{name}`"))?;
        nodes = database::nodes(&settings.store, &opener)?;
    }
    let nodes: Vec<_> = nodes.into_iter().map(NodeView::of).collect();
    out.show(&nodes, |out| print_text(&nodes, out))?;
    Ok(SUCCESS)
}

fn print_text(nodes: &[NodeView], out: &mut dyn Write) -> anyhow::Result<()> {
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
