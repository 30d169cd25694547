//! `tollgate providers`: the health of the model providers.

use std::io::Write;

use anyhow::Context as _;
use serde::Deserialize as _;

use super::control_client::ControlClient;
use super::exit_code::SUCCESS;
use super::output::{self, Output};
use crate::admin::operations::provider::Show;
use crate::upstream::ProviderView;

pub(super) fn run(client: &ControlClient, out: &mut Output<'_>) -> anyhow::Result<u8> {
    let providers = client.query(&Show {})?.providers;
    out.show(&providers, |out| print_text(&providers, out))?;
    Ok(SUCCESS)
}

fn print_text(providers: &serde_json::Value, out: &mut dyn Write) -> anyhow::Result<()> {
    let providers = Vec::<ProviderView>::deserialize(providers)
        .context("the gateway sent an unexpected answer; use the same version of `tollgate` for the command and the gateway")?;
    let mut rows: Vec<[String; 7]> = Vec::new();
    for provider in providers {
        rows.push([
            provider.name,
            String::new(),
            provider.state,
            seconds(provider.open_ms),
            provider.calls.to_string(),
            provider.waiting.to_string(),
            String::new(),
        ]);
        rows.extend(provider.models.into_iter().map(|offer| {
            let (state, left) = match offer.deferred_ms {
                0 => (offer.state, offer.open_ms),
                closed => ("closed".to_owned(), closed),
            };
            let none = String::new;
            let open_for = match offer.accounts_open {
                0 => none(),
                1 => "1 account".to_owned(),
                accounts => format!("{accounts} accounts"),
            };
            let left = seconds(left);
            [none(), offer.model, state, left, none(), none(), open_for]
        }));
    }
    let headings = [
        "PROVIDER", "MODEL", "STATE", "FOR", "CALLS", "WAITING", "OPEN FOR",
    ];
    output::table(out, headings, &rows)
}

/// The remaining cooldown.
fn seconds(ms: u64) -> String {
    match ms {
        0 => String::new(),
        ms => format!("{} s", ms.div_ceil(1000)),
    }
}
