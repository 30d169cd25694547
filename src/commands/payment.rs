//! `tollgate payment`.

use std::io::Write;

use anyhow::Context as _;
use serde::Serialize;
use tollgate_pay::x402::payment_name;
use tollgate_store::AuthorizationRow;

use super::office::Office;
use super::{GOOD, print, time};
use crate::admin::control::Change;
use crate::args::PaymentCommand;

pub(super) fn run(
    command: PaymentCommand,
    office: &Office,
    out: &mut dyn Write,
) -> anyhow::Result<u8> {
    match command {
        PaymentCommand::List { json } => list(json, office, out)?,
        PaymentCommand::Close { payment, paid, .. } => {
            office.change(&Change::PaymentClose {
                payment: payment.clone(),
                paid,
            })?;
            writeln!(out, "{payment}: closed").context("cannot print")?;
        }
    }
    Ok(GOOD)
}

fn list(json: bool, office: &Office, out: &mut dyn Write) -> anyhow::Result<()> {
    let open = office.read()?.authorizations_open()?;
    if json {
        let shown: Vec<_> = open.iter().map(Open::of).collect();
        return print::json(out, &shown);
    }
    let rows: Vec<[String; 5]> = open
        .iter()
        .map(Open::of)
        .map(|open| {
            let note = open.note.unwrap_or_default().to_owned();
            [open.since, open.ends, open.account, note, open.payment]
        })
        .collect();
    if rows.is_empty() {
        return writeln!(out, "no payment is open").context("cannot print");
    }
    print::table(out, ["SINCE", "ENDS", "ACCOUNT", "NOTE", "PAYMENT"], &rows)
}

/// A payment as programs read it.
#[derive(Serialize)]
struct Open<'a> {
    payment: String,
    account: String,
    since: String,
    ends: String,
    note: Option<&'a str>,
}

impl Open<'_> {
    fn of(row: &AuthorizationRow) -> Open<'_> {
        Open {
            payment: payment_name(row),
            account: row.account.to_string(),
            since: time::text(row.created_at),
            ends: time::text(row.valid_before),
            note: row.note.as_deref(),
        }
    }
}
