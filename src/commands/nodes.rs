//! `tollgate nodes`: the gateways on a database.

use std::io::Write;

use anyhow::{Context as _, bail};
use tollgate_clock::{Clock, Entropy};

use super::exit_code::SUCCESS;
use super::output::{self, Output};
use crate::admin::operations::node::Recover;
use crate::admin::{self, views::NodeView};
use crate::args::NodesCommand;
use crate::config::{Settings, StoreUrl};
use crate::database::{self, Opener, RecoveredBy};

/// For a store without nodes.
const NO_NODES: &str =
    "`store.url` names a file, which one gateway has; only a PostgreSQL database has nodes";

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
    let is_file = matches!(settings.store.url, StoreUrl::Sqlite(_));
    let mut note = is_file.then(|| NO_NODES.to_owned());
    if let Some(NodesCommand::Recover { name }) = command {
        if is_file {
            bail!(NO_NODES);
        }
        let Some(found) = nodes.iter().find(|node| node.is_named(&name)) else {
            bail!("there is no node `{name}`; `tollgate nodes` shows them");
        };
        // The node's spool may have charges that the database does not know.
        let has_spool =
            settings.store.spool.is_some() && settings.store.node.as_ref() == Some(&found.name);
        if found.has_ended_cleanly() && !has_spool {
            note = Some(format!("node `{name}` has left nothing to recover"));
        } else {
            let recover = Recover { node: name.clone() };
            let record = admin::record_of(&recover, &clock, &entropy);
            let by = RecoveredBy::Operator(Some(record));
            database::recover_node(&settings.store, &opener, found.node, by)
                .with_context(|| format!("cannot recover node `{name}`"))?;
            nodes = database::nodes(&settings.store, &opener)?;
            note = Some(format!("recovered node `{name}`"));
        }
    }
    let nodes = NodeView::all(nodes);
    out.show(&nodes, |out| {
        if let Some(note) = &note {
            writeln!(out, "{note}").context("cannot print")?;
        }
        match is_file {
            true => Ok(()),
            false => print_text(&nodes, out),
        }
    })?;
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
                settings_of(node),
                node.process.clone().unwrap_or_default(),
            ]
        })
        .collect();
    let headings = [
        "NAME", "NODE", "STATE", "RUN", "STARTED", "SETTINGS", "PROCESS",
    ];
    output::table(out, headings, &rows)
}

fn settings_of(node: &NodeView) -> String {
    let digest = node.settings.clone().unwrap_or_default();
    match node.has_older_settings {
        true => format!("{digest} older"),
        false => digest,
    }
}
