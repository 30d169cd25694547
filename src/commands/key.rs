//! `tollgate key`: creates, lists and revokes API keys.

use std::fs::File;
use std::io::{Read as _, Write};
use std::path::Path;

use anyhow::{Context as _, bail};
use tollgate_clock::Timestamp;
use tollgate_identity::{Key, find_key, list_keys};
use tollgate_money::AccountId;

use super::control_client::{self, ControlClient};
use super::exit_code::SUCCESS;
use super::output::{self, Output};
use super::time;
use crate::admin::operations::key::{Create, Revoke};
use crate::admin::views::KeyView;
use crate::args::KeyCommand;

/// Longer than any secret.
const SECRET_BYTES_MAX: u64 = 4096;

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
            let created = client.change(Create {
                account: account.account.clone(),
                name,
                scopes,
                models,
                spend_max,
                spend_period,
                expires_at: expires.map(|text| time::read_end(&text, now)).transpose()?,
            })?;
            let (id, secret) = (created.id, created.secret.0);
            let made = serde_json::json!({
                "id": id,
                "secret": secret,
                "account": account.account,
            });
            out.line(&made, format_args!("{id}\n{secret}"))?;
        }
        KeyCommand::List { account } => {
            let read = client.read()?;
            let account = control_client::account(&account.account)?;
            if read.account(account)?.is_none() {
                bail!("there is no account `{account}`; `tollgate account list` shows them");
            }
            let keys = list_keys(&read, account)?;
            list(&keys, client.clock.now(), out)?;
        }
        KeyCommand::Find { secret_file } => {
            let (account, key) = find(client, &secret_file)?;
            let view = KeyView::of(&key, client.clock.now());
            let mut found = serde_json::to_value(&view)?;
            found["account"] = account.to_string().into();
            out.show(&found, |out| {
                writeln!(out, "{account}")?;
                print_text(std::slice::from_ref(&view), out)
            })?;
        }
        KeyCommand::Revoke { key, secret_file } => {
            let key = match (key, secret_file) {
                (Some(key), _) => key,
                (None, Some(file)) => find(client, &file)?.1.id.to_string(),
                (None, None) => bail!("name the key by `--key` or `--secret-file`"),
            };
            client.change(Revoke { key: key.clone() })?;
            let revoked = serde_json::json!({ "id": key, "status": "revoked" });
            out.line(&revoked, format_args!("{key}: revoked"))?;
        }
    }
    Ok(SUCCESS)
}

/// The key with the secret in a file, or in the standard input.
fn find(client: &ControlClient, file: &Path) -> anyhow::Result<(AccountId, Key)> {
    let secret = match file.as_os_str() == "-" {
        true => std::io::read_to_string(std::io::stdin().take(SECRET_BYTES_MAX)),
        false => {
            File::open(file).and_then(|file| std::io::read_to_string(file.take(SECRET_BYTES_MAX)))
        }
    };
    let secret = secret.with_context(|| format!("could not read `{}`", file.display()))?;
    let found = find_key(&*client.read()?, secret.trim())?;
    found.context("no API key has this secret; the file must have the whole key, and nothing else")
}

fn list(keys: &[Key], now: Timestamp, out: &mut Output<'_>) -> anyhow::Result<()> {
    let shown: Vec<KeyView> = keys.iter().map(|key| KeyView::of(key, now)).collect();
    out.show(&shown, |out| print_text(&shown, out))
}

fn print_text(keys: &[KeyView], out: &mut dyn Write) -> anyhow::Result<()> {
    let rows: Vec<[String; 8]> = keys
        .iter()
        .map(|key| {
            let models = key.models.as_ref();
            let spending = match (&key.spend_max, key.spend_period) {
                (Some(max), Some(period)) => format!("{max} ({period})"),
                _ => "all".to_owned(),
            };
            [
                key.id.clone(),
                key.name.clone().unwrap_or_default(),
                key.status.to_owned(),
                key.hint.clone().unwrap_or_default(),
                key.scopes.join(","),
                models.map_or_else(|| "all".to_owned(), |models| models.join(",")),
                spending,
                key.expires_at.as_deref().unwrap_or("never").to_owned(),
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
