//! `tollgate cache`: shows and purges the cache of the running gateway.

use anyhow::Context as _;

use super::control_client::ControlClient;
use super::exit_code::SUCCESS;
use super::output::Output;
use crate::admin::operations::cache::{CacheState, Purge, Show};
use crate::args::CacheCommand;

pub(super) fn run(
    command: CacheCommand,
    client: &ControlClient,
    out: &mut Output<'_>,
) -> anyhow::Result<u8> {
    match command {
        CacheCommand::Show => show(&client.query(&Show {})?, out)?,
        CacheCommand::Purge { id, model, .. } => {
            let removed = client.query(&Purge { id, model })?.removed;
            let purged = serde_json::json!({ "removed": removed });
            out.line(&purged, format_args!("{removed} removed"))?;
        }
    }
    Ok(SUCCESS)
}

fn show(state: &CacheState, out: &mut Output<'_>) -> anyhow::Result<()> {
    let lines = [
        ("entries", state.entries),
        ("bytes", state.bytes),
        ("bytes max", state.bytes_max),
        ("waiting", state.waiting),
        ("hits", state.hits),
        ("misses", state.misses),
        ("stored", state.stored),
        ("evicted", state.evicted),
    ];
    out.show(state, |out| {
        for (name, value) in lines {
            writeln!(out, "{name:<11}{value}").context("cannot print")?;
        }
        Ok(())
    })
}
