//! `tollgate compare`: the changes that a restore of a backup would undo.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use tollgate_clock::Timestamp;
use tollgate_money::AccountId;
use tollgate_store::{AccountRow, AccountStatus, PaymentStatus, ReadError, Reader, TopUpRow};

use super::control_client::ControlClient;
use super::exit_code::SUCCESS;
use super::output::{self, Output};

/// Number of compared rows of a kind, per account.
const ROWS_MAX: usize = 100_000;

/// A change that a restore would undo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Undone {
    /// `key_valid_again`, `access_valid_again`, `account_active_again`, `login_again`, `account_missing`, `payment_missing`,
    /// `returned_payment_counts_again`.
    effect: &'static str,
    account: String,
    /// The key, grant, address or payment.
    subject: String,
    detail: String,
}

/// Compares a backup with the database.
pub(super) fn run(
    client: &ControlClient,
    backup: &str,
    out: &mut Output<'_>,
) -> anyhow::Result<u8> {
    let (before, after) = (client.read_at(backup)?, client.read()?);
    let undone = compare(&before, &after, client.clock.now())?;
    let rows: Vec<[String; 4]> = undone
        .iter()
        .map(|one| {
            let (account, subject) = (one.account.clone(), one.subject.clone());
            [one.effect.to_owned(), account, subject, one.detail.clone()]
        })
        .collect();
    let headings = ["EFFECT", "ACCOUNT", "SUBJECT", "DETAIL"];
    out.show(&undone, |out| output::table(out, headings, &rows))?;
    Ok(SUCCESS)
}

/// The changes that a restore of `before` in the place of `after` would undo, by account.
fn compare(before: &Reader, after: &Reader, now: Timestamp) -> Result<Vec<Undone>, ReadError> {
    let mut known: HashMap<AccountId, AccountRow> = HashMap::new();
    before.accounts(&mut |row| {
        known.insert(row.id, row);
    })?;
    let mut accounts = Vec::new();
    after.accounts(&mut |row| accounts.push(row))?;
    accounts.sort_by_key(|row| row.id);
    let mut undone = Vec::new();
    for row in accounts {
        let mut add = |effect, subject: String, detail: String| {
            undone.push(Undone {
                effect,
                account: row.id.to_string(),
                subject,
                detail,
            });
        };
        let Some(was) = known.get(&row.id) else {
            let detail = format!(
                "created {}, {} credits",
                row.created_at.rfc3339(),
                row.available
            );
            add("account_missing", row.id.to_string(), detail);
            payments(None, after, row.id, &mut add)?;
            continue;
        };
        if row.status != AccountStatus::Active && was.status == AccountStatus::Active {
            let detail = format!("now {:?}", row.status).to_lowercase();
            add("account_active_again", row.id.to_string(), detail);
        }
        credentials(before, after, (row.id, now), &mut add)?;
        payments(Some(before), after, row.id, &mut add)?;
    }
    Ok(undone)
}

/// Keys, grants and addresses that have ended since.
fn credentials(
    before: &Reader,
    after: &Reader,
    (account, now): (AccountId, Timestamp),
    add: &mut dyn FnMut(&'static str, String, String),
) -> Result<(), ReadError> {
    let old = before.account_credentials(account)?;
    let old = old.iter().filter(|key| key.revoked_at.is_none());
    let old: HashSet<_> = old.map(|key| key.made.id).collect();
    for key in after.account_credentials(account)? {
        let is_over = key.made.expires_at.is_some_and(|end| end <= now);
        if let Some(at) = key
            .revoked_at
            .filter(|_| !is_over && old.contains(&key.made.id))
        {
            let id = tollgate_identity::KeyId(key.made.id).to_string();
            add("key_valid_again", id, format!("revoked {}", at.rfc3339()));
        }
    }
    let grants = after.oauth_grants(account, now)?;
    let valid: HashSet<_> = grants.iter().map(|grant| grant.id).collect();
    for grant in before.oauth_grants(account, now)? {
        if !valid.contains(&grant.id) {
            let client = grant.client.to_string();
            add("access_valid_again", grant.id.to_string(), client);
        }
    }
    let logins = after.logins(account)?;
    let current: HashSet<_> = logins.iter().map(|login| &login.address).collect();
    for login in &before.logins(account)? {
        if !current.contains(&login.address) {
            let detail = "no login of the account any more".to_owned();
            add("login_again", login.address.to_string(), detail);
        }
    }
    Ok(())
}

/// Payments since the backup, and payments returned since the backup.
fn payments(
    before: Option<&Reader>,
    after: &Reader,
    account: AccountId,
    add: &mut dyn FnMut(&'static str, String, String),
) -> Result<(), ReadError> {
    let old_payments = before
        .map(|store| store.payments_of(account, ROWS_MAX))
        .transpose()?;
    let old_payments = old_payments.unwrap_or_default();
    for row in after.payments_of(account, ROWS_MAX)? {
        let subject = format!("{}/{}", row.route.word(), row.provider_ref);
        let old = old_payments.iter().find(|old| old.id == row.id);
        match old {
            None => {
                let detail = format!("{} USD for the plan, {}", row.amount, row.at.rfc3339());
                add("payment_missing", subject, detail);
            }
            Some(old)
                if (old.status, row.status) == (PaymentStatus::Paid, PaymentStatus::Returned) =>
            {
                let detail = format!("{} USD for the plan", row.amount);
                add("returned_payment_counts_again", subject, detail);
            }
            Some(_) => {}
        }
    }
    let old_top_ups = before
        .map(|store| store.top_ups_of(account, Timestamp::MAX, ROWS_MAX))
        .transpose()?;
    let old_top_ups = old_top_ups.unwrap_or_default();
    let is_paid = |row: &TopUpRow| row.capture.is_some();
    for row in after.top_ups_of(account, Timestamp::MAX, ROWS_MAX)? {
        let old = old_top_ups.iter().find(|old| old.id == row.id);
        let subject = row.capture.as_deref().unwrap_or_default().to_owned();
        if is_paid(&row) && !old.is_some_and(is_paid) {
            let detail = format!("{} USD for {} credits", row.price, row.credits);
            add("payment_missing", subject, detail);
        } else if old.is_some_and(|old| old.returned < row.returned) {
            let detail = format!("{} USD of {} USD returned", row.returned, row.price);
            add("returned_payment_counts_again", subject, detail);
        }
    }
    Ok(())
}
