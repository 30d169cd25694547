//! `tollgate credits`: grants credits and shows balances.

use std::io::Write;

use anyhow::Context as _;
use serde::Serialize;
use tollgate_clock::Timestamp;
use tollgate_money::Micros;
use tollgate_store::{AccountRow, LedgerLine};

use super::control_client::{self, ControlClient};
use super::exit_code::SUCCESS;
use super::output::{self, Output};
use crate::admin::operations::credits::{Booking, Correct, Grant};
use crate::admin::views::{BalanceView, Credits, LineView};
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
            let booking = client.change(Grant {
                account: account.account.clone(),
                amount,
                reference,
            })?;
            print_booking(&booking, "granted", &account.account, out)?;
        }
        CreditsCommand::Correct {
            account,
            amount,
            reference,
        } => {
            let booking = client.change(Correct {
                account: account.account.clone(),
                amount,
                reference,
            })?;
            print_booking(&booking, "corrected", &account.account, out)?;
        }
        CreditsCommand::Show { account } => show(&account.account, client, out)?,
    }
    Ok(SUCCESS)
}

/// Prints the balance after a booking.
fn print_booking(
    booking: &Booking,
    done: &str,
    account: &str,
    out: &mut Output<'_>,
) -> anyhow::Result<()> {
    let available: Micros = booking.available.parse()?;
    let booked = Booked {
        account,
        operation: &booking.operation,
        repeated: booking.repeated,
        available: available.into(),
    };
    let note = match booking.repeated {
        true => format!("already {done} with this reference; "),
        false => String::new(),
    };
    let line = format_args!("{account}: {note}{available} credits available");
    out.line(&booked, line)
}

fn show(account: &str, client: &ControlClient, out: &mut Output<'_>) -> anyhow::Result<()> {
    let read = client.read()?;
    let id = control_client::account(account)?;
    let row = read.account(id)?.with_context(|| {
        format!("there is no account `{id}`; `tollgate account list` shows them")
    })?;
    let lines = read.lines(id, Timestamp::MAX, LINES)?;
    let shown = BalanceView::of(&row, &lines);
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
            let shown = LineView::of(line);
            [
                shown.at,
                shown.kind.to_owned(),
                LineView::amount(line).to_string(),
                shown.model.or(shown.reference).unwrap_or_default(),
                shown.operation,
            ]
        })
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    output::table(out, ["TIME", "KIND", "AMOUNT", "FOR", "OPERATION"], &rows)
}

/// JSON form of a booking.
#[derive(Serialize)]
struct Booked<'a> {
    account: &'a str,
    operation: &'a str,
    repeated: bool,
    available: Credits,
}
