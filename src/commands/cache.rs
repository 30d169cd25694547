//! `tollgate cache`: shows and purges the cache of the running gateway.

use anyhow::{Context as _, bail};

use super::control_client::ControlClient;
use super::exit_code::SUCCESS;
use super::output::Output;
use crate::admin::control::{Applied, CacheState, Change};
use crate::args::CacheCommand;

pub(super) fn run(
    command: CacheCommand,
    client: &ControlClient,
    out: &mut Output<'_>,
) -> anyhow::Result<u8> {
    match command {
        CacheCommand::Show => {
            let Applied::Cache(state) = client.query(&Change::CacheShow {})? else {
                bail!(
                    "the gateway sent an unexpected answer; use the same version of `tollgate` for the command and the gateway"
                );
            };
            show(&state, out)?;
        }
        CacheCommand::Purge { id, model, .. } => {
            let Applied::Purged { removed } = client.query(&Change::CachePurge { id, model })?
            else {
                bail!(
                    "the gateway sent an unexpected answer; use the same version of `tollgate` for the command and the gateway"
                );
            };
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
