//! `tollgate account`: creates, shows and changes accounts.

use anyhow::{Context as _, bail};
use tollgate_clock::Timestamp;
use tollgate_identity::Login;
use tollgate_purchase::mandates::{current_mandate, may_charge};
use tollgate_store::{AccountRow, MandateRow, MandateState, Reader};

use super::control_client::{self, ControlClient};
use super::exit_code::SUCCESS;
use super::output::{self, Output};
use crate::admin::operations::account::{Class, Create, EndPlan, Export, SetCacheScope, Suspend};
use crate::admin::operations::deletion::Delete;
use crate::admin::views::{AccountExport, AccountView};
use crate::args::AccountCommand;

pub(super) fn run(
    command: AccountCommand,
    client: &ControlClient,
    out: &mut Output<'_>,
) -> anyhow::Result<u8> {
    match command {
        AccountCommand::Create {
            email,
            phone,
            class,
            cache_scope,
        } => {
            let id = client
                .change(Create {
                    emails: email,
                    phones: phone,
                    class,
                    cache_scope,
                })?
                .id;
            out.line(&serde_json::json!({ "id": id }), &id)?;
        }
        AccountCommand::Show {
            account,
            email,
            phone,
        } => {
            let read = client.read()?;
            let row = find(
                &read,
                account.as_deref(),
                email.as_deref(),
                phone.as_deref(),
            )?;
            show(&read, &row, client.clock.now(), out)?;
        }
        AccountCommand::List => list(&*client.read()?, client.clock.now(), out)?,
        AccountCommand::Suspend {
            account,
            lift,
            end_plan,
        } => {
            let operation = Suspend {
                account: account.account,
                suspended: !lift,
            };
            suspend(&operation, end_plan, client, out)?;
        }
        AccountCommand::CacheScope {
            account,
            cache_scope,
        } => {
            client.change(SetCacheScope {
                account: account.account.clone(),
                scope: cache_scope.clone(),
            })?;
            changed(&account.account, "cache_scope", &cache_scope, out)?;
        }
        AccountCommand::Export { account } => export(&account.account, client, out)?,
        AccountCommand::Delete { account, forfeit } => {
            client.change(Delete {
                account: account.account.clone(),
                forfeit,
            })?;
            changed(&account.account, "status", "closed", out)?;
        }
        AccountCommand::Class { account, class } => {
            client.change(Class {
                account: account.account.clone(),
                class: class.clone(),
            })?;
            changed(&account.account, "class", &class, out)?;
        }
    }
    Ok(SUCCESS)
}

fn changed(id: &str, what: &str, now: &str, out: &mut Output<'_>) -> anyhow::Result<()> {
    let line = format_args!("{id}: {what} is {now}");
    out.line(&serde_json::json!({ "id": id, what: now }), line)
}

/// Suspends an account or ends a suspension, cancels the plan if requested, and prints the state.
fn suspend(
    operation: &Suspend,
    end_plan: bool,
    client: &ControlClient,
    out: &mut Output<'_>,
) -> anyhow::Result<()> {
    client.change(operation.clone())?;
    let (id, is_suspended) = (&operation.account, operation.suspended);
    if end_plan {
        let account = id.clone();
        client.change(EndPlan { account })?;
    }
    let word = if is_suspended { "suspended" } else { "active" };
    let rows = client
        .read()?
        .mandates_of(control_client::account(id)?, 64)?;
    let charging = current_mandate(rows).filter(|row| is_suspended && may_charge(row));
    suspended(id, word, charging.as_ref(), out)
}

/// Records an export, and prints all data of the account as JSON.
fn export(account: &str, client: &ControlClient, out: &mut Output<'_>) -> anyhow::Result<()> {
    let id = control_client::account(account)?;
    let account = id.to_string();
    client.change(Export { account })?;
    let read = client.read()?;
    let exported = AccountExport::read(&read, id, client.clock.now(), usize::MAX)?;
    let exported = exported.with_context(|| {
        format!("there is no account `{id}`; `tollgate account list` shows them")
    })?;
    let mut text = serde_json::to_vec(&exported).context("cannot write JSON")?;
    text.push(b'\n');
    out.document(&text)
}

/// Prints the state of an account and a subscription that continues: a suspension cancels no subscription at PayPal.
fn suspended(
    id: &str,
    word: &str,
    charging: Option<&MandateRow>,
    out: &mut Output<'_>,
) -> anyhow::Result<()> {
    let name = |row: &MandateRow| row.provider_ref.as_deref().unwrap_or_default().to_owned();
    let is_ending = |row: &MandateRow| {
        matches!(
            row.state,
            MandateState::CancelAtEnd | MandateState::CancelPending | MandateState::Duplicate
        )
    };
    let mut value = serde_json::json!({ "id": id, "status": word });
    let mut text = format!("{id}: status is {word}");
    if let Some(row) = charging {
        let (name, is_ending) = (name(row), is_ending(row));
        text += &match is_ending {
            true => format!("\n{id}: subscription {name} is being cancelled at PayPal"),
            false => format!(
                "\n{id}: PayPal may continue to charge subscription {name}; use --end-plan to cancel it"
            ),
        };
        value["paypal_subscription"] = serde_json::json!({ "id": name, "is_ending": is_ending });
    }
    out.line(&value, text)
}

fn find(
    read: &Reader,
    account: Option<&str>,
    email: Option<&str>,
    phone: Option<&str>,
) -> anyhow::Result<AccountRow> {
    if let Some(id) = account {
        let id = control_client::account(id)?;
        return read.account(id)?.with_context(|| {
            format!("there is no account `{id}`; `tollgate account list` shows them")
        });
    }
    let login = match (email, phone) {
        (Some(email), _) => Login::email(email)?,
        (None, Some(phone)) => Login::phone(phone)?,
        (None, None) => bail!("no account is named; use --account, --email or --phone"),
    };
    login
        .find(|address| read.account_by_login(login.kind(), address))?
        .with_context(|| format!("`{}` signs in to no account", login.address()))
}

fn show(
    read: &Reader,
    row: &AccountRow,
    now: Timestamp,
    out: &mut Output<'_>,
) -> anyhow::Result<()> {
    let (plan, logins) = (read.subscription(row.id)?, read.logins(row.id)?);
    let shown = AccountView::of(row, now).with(plan.as_ref(), &logins, now);
    let joined = |list: &Option<Vec<String>>| list.as_deref().unwrap_or_default().join(", ");
    let plan = shown.plan.as_ref().map_or_else(String::new, |plan| {
        format!(
            "{} until {}, by {} {}",
            plan.status, plan.until, plan.route, plan.reference
        )
    });
    let lines = [
        ("id", shown.id.clone()),
        ("status", shown.status.to_owned()),
        ("class", shown.class.clone()),
        ("cache scope", shown.cache_scope.to_owned()),
        ("available", row.available.to_string()),
        ("held", row.held.to_string()),
        ("credit limit", row.credit_limit.to_string()),
        ("created", shown.created_at.clone()),
        ("plan", plan),
        ("e-mail", joined(&shown.emails)),
        ("phone", joined(&shown.phones)),
    ];
    out.show(&shown, |out| {
        for (name, value) in lines.into_iter().filter(|(_, value)| !value.is_empty()) {
            writeln!(out, "{name:<13}{value}").context("cannot print")?;
        }
        Ok(())
    })
}

fn list(read: &Reader, now: Timestamp, out: &mut Output<'_>) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    read.accounts(&mut |row| rows.push(row))?;
    rows.sort_by_key(|row| row.id);
    let shown: Vec<AccountView> = rows.iter().map(|row| AccountView::of(row, now)).collect();
    let rows: Vec<[String; 6]> = rows
        .iter()
        .zip(&shown)
        .map(|(row, shown)| {
            [
                shown.id.clone(),
                shown.status.to_owned(),
                shown.class.clone(),
                row.available.to_string(),
                row.held.to_string(),
                shown.created_at.clone(),
            ]
        })
        .collect();
    let headings = ["ID", "STATUS", "CLASS", "AVAILABLE", "HELD", "CREATED"];
    out.show(&shown, |out| output::table(out, headings, &rows))
}
