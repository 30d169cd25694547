//! `tollgate usage`: usage of an account by day and model.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Serialize;
use serde_json::value::RawValue;
use tollgate_money::Micros;
use tollgate_store::UsageTotal;

use super::control_client::{self, ControlClient};
use super::exit_code::SUCCESS;
use super::{print, time};

/// The time shown by default.
const SHOWN: Duration = Duration::from_hours(30 * 24);

/// The first and the last day, as written.
pub(super) struct Days<'a> {
    pub(super) from: Option<&'a str>,
    pub(super) to: Option<&'a str>,
}

pub(super) fn run(
    account: &str,
    days: Days<'_>,
    json: bool,
    client: &ControlClient,
    out: &mut dyn Write,
) -> anyhow::Result<u8> {
    let read = client.read()?;
    let id = control_client::account(account)?;
    ensure!(
        read.account(id)?.is_some(),
        "there is no account `{id}`; `tollgate account list` shows them"
    );
    let to = match days.to {
        Some(day) => time::read_day(day)?.1,
        None => time::read_day(&time::day(client.clock.now()))?.1,
    };
    let from = match days.from {
        Some(day) => time::read_day(day)?.0,
        None => to - SHOWN,
    };
    let totals = read.usage_totals(id, from, to)?;
    if json {
        let shown: Vec<Total<'_>> = totals.iter().map(Total::of).collect();
        print::json(out, &shown)?;
        return Ok(SUCCESS);
    }
    let mut rows: Vec<[String; 6]> = totals
        .iter()
        .map(|total| {
            [
                time::day(total.day_at),
                total.model.to_string(),
                total.requests.to_string(),
                total.prompt_tokens.to_string(),
                total.completion_tokens.to_string(),
                total.cost.to_string(),
            ]
        })
        .collect();
    if rows.is_empty() {
        writeln!(
            out,
            "no usage from {} to {}",
            time::day(from),
            time::day(to - Duration::from_micros(1))
        )
        .context("cannot print")?;
        return Ok(SUCCESS);
    }
    let sum: Micros = totals.iter().map(|total| total.cost).sum();
    let of = |count: fn(&UsageTotal) -> u64| totals.iter().map(count).sum::<u64>().to_string();
    rows.push([
        "total".to_owned(),
        String::new(),
        of(|total| total.requests),
        of(|total| total.prompt_tokens),
        of(|total| total.completion_tokens),
        sum.to_string(),
    ]);
    print::table(
        out,
        [
            "DAY",
            "MODEL",
            "REQUESTS",
            "PROMPT",
            "COMPLETION",
            "CREDITS",
        ],
        &rows,
    )?;
    Ok(SUCCESS)
}

/// JSON form of the usage of one model on one day.
#[derive(Serialize)]
struct Total<'a> {
    day: String,
    model: &'a str,
    requests: u64,
    prompt_tokens: u64,
    completion_tokens: u64,
    credits: Box<RawValue>,
    written_off: Box<RawValue>,
}

impl Total<'_> {
    fn of(total: &UsageTotal) -> Total<'_> {
        Total {
            day: time::day(total.day_at),
            model: &total.model,
            requests: total.requests,
            prompt_tokens: total.prompt_tokens,
            completion_tokens: total.completion_tokens,
            credits: print::credits(total.cost),
            written_off: print::credits(total.written_off),
        }
    }
}
