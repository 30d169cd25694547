//! `tollgate key`: creates, lists and revokes API keys.

use std::io::Write;

use anyhow::bail;
use tollgate_clock::Timestamp;
use tollgate_filter::Scopes;
use tollgate_identity::{Key, list_keys};
use tollgate_money::{CapPeriod, SpendingCap};

use super::control_client::{self, ControlClient};
use super::exit_code::SUCCESS;
use super::output::{self, Output};
use super::time;
use crate::admin::control::{Applied, Change};
use crate::args::KeyCommand;

pub(super) fn run(
    command: KeyCommand,
    client: &ControlClient,
    out: &mut Output<'_>,
) -> anyhow::Result<u8> {
    match command {
        KeyCommand::Create {
            account,
            name,
            scopes,
            models,
            spend_max,
            spend_period,
            expires,
        } => {
            let now = client.clock.now();
            let change = Change::KeyCreate {
                account: account.account.clone(),
                name,
                scopes,
                models,
                spend_max,
                spend_period,
                expires_at: expires.map(|text| time::read_end(&text, now)).transpose()?,
            };
            let Applied::Key { id, secret } = client.change(&change)? else {
                bail!(
                    "the gateway sent an unexpected answer; use the same version of `tollgate` for the command and the gateway"
                );
            };
            let made = serde_json::json!({
                "id": id,
                "secret": secret.0,
                "account": account.account,
            });
            out.line(&made, format_args!("{id}\n{}", secret.0))?;
        }
        KeyCommand::List { account } => {
            let read = client.read()?;
            let account = control_client::account(&account.account)?;
            if read.account(account)?.is_none() {
                bail!("there is no account `{account}`; `tollgate account list` shows them");
            }
            let keys = list_keys(&*read, account)?;
            list(&keys, client.clock.now(), out)?;
        }
        KeyCommand::Revoke { key } => {
            client.change(&Change::KeyRevoke { key: key.clone() })?;
            let revoked = serde_json::json!({ "id": key, "status": "revoked" });
            out.line(&revoked, format_args!("{key}: revoked"))?;
        }
    }
    Ok(SUCCESS)
}

fn list(keys: &[Key], now: Timestamp, out: &mut Output<'_>) -> anyhow::Result<()> {
    let shown: Vec<serde_json::Value> = keys.iter().map(|key| shown(key, now)).collect();
    out.show(&shown, |out| print_text(keys, now, out))
}

fn print_text(keys: &[Key], now: Timestamp, out: &mut dyn Write) -> anyhow::Result<()> {
    let rows: Vec<[String; 8]> = keys
        .iter()
        .map(|key| {
            [
                key.id.to_string(),
                key.label.as_deref().unwrap_or_default().to_owned(),
                status(key, now).to_owned(),
                key.hint.as_deref().unwrap_or_default().to_owned(),
                scopes(key).join(","),
                models(key).map_or_else(|| "all".to_owned(), |models| models.join(",")),
                spending(key),
                key.expires_at
                    .map_or_else(|| "never".to_owned(), Timestamp::rfc3339),
            ]
        })
        .collect();
    output::table(
        out,
        [
            "ID",
            "NAME",
            "STATUS",
            "KEY",
            "SCOPES",
            "MODELS",
            "MAY SPEND",
            "EXPIRES",
        ],
        &rows,
    )
}

fn shown(key: &Key, now: Timestamp) -> serde_json::Value {
    serde_json::json!({
        "id": key.id.to_string(),
        "name": key.label.as_deref(),
        "status": status(key, now),
        "hint": key.hint.as_deref(),
        "scopes": scopes(key),
        "models": models(key),
        "spend_max": key.spending_cap.map(|cap| cap.max.to_string()),
        "spend_period": key.spending_cap.map(period),
        "created_at": key.created_at.rfc3339(),
        "expires_at": key.expires_at.map(Timestamp::rfc3339),
        "revoked_at": key.revoked_at.map(Timestamp::rfc3339),
    })
}

fn status(key: &Key, now: Timestamp) -> &'static str {
    match (key.revoked_at, key.expires_at) {
        (Some(_), _) => "revoked",
        (None, Some(end)) if end <= now => "expired",
        _ => "active",
    }
}

fn scopes(key: &Key) -> Vec<&'static str> {
    Scopes::from_bits(key.scopes)
        .iter()
        .map(|scope| scope.name())
        .collect()
}

fn spending(key: &Key) -> String {
    match key.spending_cap {
        None => "all".to_owned(),
        Some(cap) => format!("{} ({})", cap.max, period(cap)),
    }
}

fn period(cap: SpendingCap) -> &'static str {
    match cap.period {
        CapPeriod::Month => "month",
        _ => "total",
    }
}

fn models(key: &Key) -> Option<Vec<&str>> {
    let models = key.models.as_deref()?;
    Some(models.iter().map(|model| &**model).collect())
}
