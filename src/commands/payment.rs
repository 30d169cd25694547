//! `tollgate payment`: lists and closes payments whose outcome is not proved.

use std::io::Write;

use anyhow::Context as _;

use super::control_client::ControlClient;
use super::exit_code::SUCCESS;
use super::output::{self, Output};
use crate::admin::operations::payment::Close;
use crate::admin::views::{PaymentView, open_payments};
use crate::args::PaymentCommand;

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
            client.change(Close {
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
    let open = open_payments(&store)?;
    let now = client.clock.now();
    let shown: Vec<PaymentView> = open.iter().map(|row| PaymentView::of(row, now)).collect();
    out.show(&shown, |out| print_text(&shown, out))
}

fn print_text(shown: &[PaymentView], out: &mut dyn Write) -> anyhow::Result<()> {
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
                open.note.as_deref().unwrap_or("-").to_owned(),
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
