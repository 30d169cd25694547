//! `tollgate credits`: grants credits and shows balances.

use std::io::Write;

use anyhow::{Context as _, bail};
use serde::Serialize;
use serde_json::value::RawValue;
use tollgate_clock::Timestamp;
use tollgate_money::Micros;
use tollgate_store::{AccountRow, EntryKind, LedgerLine};

use super::control_client::{self, ControlClient};
use super::exit_code::SUCCESS;
use super::output::{self, Output};
use crate::admin::control::{Applied, Change};
use crate::args::CreditsCommand;

/// Number of ledger entries shown beside a balance.
const LINES: usize = 20;

pub(super) fn run(
    command: CreditsCommand,
    client: &ControlClient,
    out: &mut Output<'_>,
) -> anyhow::Result<u8> {
    match command {
        CreditsCommand::Grant {
            account,
            amount,
            reference,
        } => {
            let change = Change::CreditsGrant {
                account: account.account.clone(),
                amount,
                reference,
            };
            let Applied::Credits {
                operation,
                repeated,
                available,
            } = client.change(&change)?
            else {
                bail!(
                    "the gateway sent an unexpected answer; use the same version of `tollgate` for the command and the gateway"
                );
            };
            let available: Micros = available.parse()?;
            let booked = Booked {
                account: &account.account,
                operation: &operation,
                repeated,
                available: output::credits(available),
            };
            let note = match repeated {
                true => "already granted with this reference; ",
                false => "",
            };
            let line = format_args!("{}: {note}{available} credits available", booked.account);
            out.line(&booked, line)?;
        }
        CreditsCommand::Show { account } => show(&account.account, client, out)?,
    }
    Ok(SUCCESS)
}

fn show(account: &str, client: &ControlClient, out: &mut Output<'_>) -> anyhow::Result<()> {
    let read = client.read()?;
    let id = control_client::account(account)?;
    let row = read.account(id)?.with_context(|| {
        format!("there is no account `{id}`; `tollgate account list` shows them")
    })?;
    let lines = read.lines(id, Timestamp::MAX, LINES)?;
    let shown = Shown {
        account: id.to_string(),
        available: output::credits(row.available),
        held: output::credits(row.held),
        credit_limit: output::credits(row.credit_limit),
        lines: lines.iter().map(Line::of).collect(),
    };
    out.show(&shown, |out| print_text(&row, &lines, out))
}

fn print_text(row: &AccountRow, lines: &[LedgerLine], out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(
        out,
        "{}: {} credits available, {} held",
        row.id, row.available, row.held
    )
    .context("cannot print")?;
    let rows: Vec<[String; 5]> = lines
        .iter()
        .map(|line| {
            let model = line.usage.as_ref().map(|row| row.usage.model.to_string());
            let reference = line.entry.reference.as_deref().map(str::to_owned);
            [
                line.entry.at.rfc3339(),
                kind(line.entry.kind).to_owned(),
                amount(line).to_string(),
                model.or(reference).unwrap_or_default(),
                line.entry.operation.to_string(),
            ]
        })
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    output::table(out, ["TIME", "KIND", "AMOUNT", "FOR", "OPERATION"], &rows)
}

/// JSON form of a grant.
#[derive(Serialize)]
struct Booked<'a> {
    account: &'a str,
    operation: &'a str,
    repeated: bool,
    available: Box<RawValue>,
}

/// JSON form of a balance.
#[derive(Serialize)]
struct Shown<'a> {
    account: String,
    available: Box<RawValue>,
    held: Box<RawValue>,
    credit_limit: Box<RawValue>,
    lines: Vec<Line<'a>>,
}

#[derive(Serialize)]
struct Line<'a> {
    at: String,
    kind: &'a str,
    amount: Box<RawValue>,
    operation: String,
    reference: Option<&'a str>,
    model: Option<&'a str>,
}

impl Line<'_> {
    fn of(line: &LedgerLine) -> Line<'_> {
        Line {
            at: line.entry.at.rfc3339(),
            kind: kind(line.entry.kind),
            amount: output::credits(amount(line)),
            operation: line.entry.operation.to_string(),
            reference: line.entry.reference.as_deref(),
            model: line.usage.as_ref().map(|row| &*row.usage.model),
        }
    }
}

/// The effect of a line on the balance: available and granted credit together.
fn amount(line: &LedgerLine) -> Micros {
    line.entry.d_available + line.entry.d_held
}

fn kind(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::Hold => "hold",
        EntryKind::Settle => "settle",
        EntryKind::Release => "release",
        EntryKind::Charge => "charge",
        EntryKind::TopUp => "top-up",
        EntryKind::Grant => "grant",
        EntryKind::Refund => "refund",
        EntryKind::Expiry => "expiry",
        EntryKind::Correction => "correction",
        _ => "unknown",
    }
}
