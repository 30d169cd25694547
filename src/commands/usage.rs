//! `tollgate usage`: usage of an account by day and model.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tollgate_clock::Timestamp;
use tollgate_money::Micros;
use tollgate_store::UsageTotal;

use super::control_client::{self, ControlClient};
use super::exit_code::SUCCESS;
use super::output::{self, Output};
use super::time;
use crate::admin::views::UsageView;

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
    client: &ControlClient,
    out: &mut Output<'_>,
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
    let shown: Vec<UsageView> = totals.iter().map(UsageView::of).collect();
    out.show(&shown, |out| print_text(&totals, (from, to), out))?;
    Ok(SUCCESS)
}

fn print_text(
    totals: &[UsageTotal],
    (from, to): (Timestamp, Timestamp),
    out: &mut dyn Write,
) -> anyhow::Result<()> {
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
        return writeln!(
            out,
            "no usage from {} to {}",
            time::day(from),
            time::day(to - Duration::from_micros(1))
        )
        .context("cannot print");
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
    output::table(
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
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_row_has_the_documented_members() {
        let total = UsageTotal {
            day_at: Timestamp::from_secs(86_400),
            model: Arc::from("small"),
            requests: 2,
            prompt_tokens: 3,
            completion_tokens: 4,
            cost: Micros::new(5),
            written_off: Micros::ZERO,
        };
        let row = serde_json::to_value([UsageView::of(&total)]).expect("JSON");
        super::super::tests::json::compare("usage", &row);
        assert_eq!(
            (&row[0]["day"], &row[0]["credits"]),
            (&"1970-01-02".into(), &0.000_005.into())
        );
    }
}
