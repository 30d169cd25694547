//! `tollgate payment`: lists and closes payments whose outcome is not proved.

use std::io::Write;

use anyhow::Context as _;
use serde::Serialize;
use tollgate_clock::Timestamp;
use tollgate_evm::{Address, Nonce, TxHash};
use tollgate_pay::x402::{payment_action, payment_reference};
use tollgate_purchase::plan::PRICE;
use tollgate_store::{AuthorizationRow, AuthorizationState};

use super::control_client::ControlClient;
use super::exit_code::SUCCESS;
use super::output::{self, Output};
use crate::admin::control::Change;
use crate::args::PaymentCommand;

/// Payments that are read from the store at once.
const PAGE: usize = 500;

pub(super) fn run(
    command: PaymentCommand,
    client: &ControlClient,
    out: &mut Output<'_>,
) -> anyhow::Result<u8> {
    match command {
        PaymentCommand::List => list(client, out)?,
        PaymentCommand::Close {
            payment,
            paid,
            shared_transaction,
            ..
        } => {
            client.change(&Change::PaymentClose {
                payment: payment.clone(),
                paid,
                shared_transaction,
            })?;
            let closed = serde_json::json!({ "payment": payment, "status": "closed" });
            out.line(&closed, format_args!("{payment}: closed"))?;
        }
    }
    Ok(SUCCESS)
}

fn list(client: &ControlClient, out: &mut Output<'_>) -> anyhow::Result<()> {
    let store = client.read()?;
    let mut open: Vec<AuthorizationRow> = Vec::new();
    loop {
        let page = store.authorizations_open(open.last(), PAGE)?;
        if page.is_empty() {
            break;
        }
        open.extend(page);
    }
    let now = client.clock.now();
    let shown: Vec<Open<'_>> = open.iter().map(|row| Open::of(row, now)).collect();
    out.show(&shown, |out| print_text(&shown, out))
}

fn print_text(shown: &[Open<'_>], out: &mut dyn Write) -> anyhow::Result<()> {
    if shown.is_empty() {
        return writeln!(out, "no payment is open").context("cannot print");
    }
    let rows: Vec<[String; 9]> = shown
        .iter()
        .map(|open| {
            [
                open.since.clone(),
                open.ends.clone(),
                open.state.to_owned(),
                open.account.clone(),
                format!("{} USD", open.amount),
                open.transaction.as_deref().unwrap_or("-").to_owned(),
                open.note.unwrap_or("-").to_owned(),
                open.action.to_owned(),
                open.payment.clone(),
            ]
        })
        .collect();
    output::table(
        out,
        [
            "SINCE",
            "ENDS",
            "STATE",
            "ACCOUNT",
            "AMOUNT",
            "TRANSACTION",
            "NOTE",
            "ACTION",
            "PAYMENT",
        ],
        &rows,
    )?;
    writeln!(
        out,
        "\nwait: the gateway reconciles it until some minutes after its end.\n\
         resolve: look up the transfers of the wallet in a block explorer, then `tollgate payment close PAYMENT --paid HASH`, or\n\
         `--not-moved` once its end is two minutes past. Where HASH has paid for another payment and has a transfer of its own for this one, add\n\
         `--shared-transaction`."
    )
    .context("cannot print")
}

/// JSON form of a payment.
#[derive(Serialize)]
struct Open<'a> {
    payment: String,
    account: String,
    state: &'static str,
    payer: String,
    nonce: String,
    /// US dollars.
    amount: String,
    /// As reported by the facilitator: its effect is not proved.
    transaction: Option<String>,
    since: String,
    ends: String,
    note: Option<&'a str>,
    action: &'static str,
}

impl Open<'_> {
    fn of(row: &AuthorizationRow, now: Timestamp) -> Open<'_> {
        let transaction = row.transaction.map(TxHash);
        Open {
            payment: payment_reference(row),
            account: row.account.to_string(),
            state: match row.state {
                AuthorizationState::Settling => "submitted",
                AuthorizationState::RefusedAfterSubmit => "refused",
                _ => "unclear",
            },
            payer: Address(row.key.payer).to_string(),
            nonce: Nonce(row.key.nonce).to_string(),
            amount: PRICE.to_string(),
            transaction: transaction.map(|hash| hash.to_string()),
            since: row.created_at.rfc3339(),
            ends: row.valid_before.rfc3339(),
            note: row.note.as_deref(),
            action: payment_action(row, now),
        }
    }
}
