//! `tollgate cache`: shows and purges the cache of the running gateway.

use std::io::Write;

use anyhow::{Context as _, bail};

use super::control_client::ControlClient;
use super::exit_code::SUCCESS;
use super::print;
use crate::admin::control::{Applied, CacheState, Change};
use crate::args::CacheCommand;

pub(super) fn run(
    command: CacheCommand,
    client: &ControlClient,
    out: &mut dyn Write,
) -> anyhow::Result<u8> {
    match command {
        CacheCommand::Show { json } => {
            let Applied::Cache(state) = client.query(&Change::CacheShow {})? else {
                bail!(
                    "the gateway sent an unexpected answer; use the same version of `tollgate` for the command and the gateway"
                );
            };
            show(&state, json, out)?;
        }
        CacheCommand::Purge {
            id, model, json, ..
        } => {
            let Applied::Purged { removed } = client.query(&Change::CachePurge { id, model })?
            else {
                bail!(
                    "the gateway sent an unexpected answer; use the same version of `tollgate` for the command and the gateway"
                );
            };
            if json {
                print::json(out, &serde_json::json!({ "removed": removed }))?;
            } else {
                writeln!(out, "{removed} removed").context("cannot print")?;
            }
        }
    }
    Ok(SUCCESS)
}

fn show(state: &CacheState, json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    if json {
        return print::json(out, state);
    }
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
    for (name, value) in lines {
        writeln!(out, "{name:<11}{value}").context("cannot print")?;
    }
    Ok(())
}
