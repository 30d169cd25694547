//! The parts for accounts, credentials, logins and prices. Rare: the statements are prepared on use.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, Micros, Price};

use super::changed;
use super::credentials::NEVER;
use crate::codes::CredentialKind;
use crate::engine::{RowError, Select, Sql, WriteError, values};
use crate::error::Refusal;
use crate::rows::{NewAccount, NewCredential, NewLogin, PriceRow};
use crate::unit::{AccountChange, CredentialChange};

pub(crate) fn create_account(connection: &dyn Sql, account: &NewAccount) -> Result<(), WriteError> {
    if account.credit_limit < Micros::ZERO {
        return Err(WriteError::Refused(Refusal::Invalid(
            "a credit limit is never below zero",
        )));
    }
    let sql = "INSERT INTO accounts (id, public_id, credit_limit, rate_class, cache_scope, created_at, updated_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6) ON CONFLICT DO NOTHING";
    let inserted = connection.execute(
        sql,
        values![
            account.id,
            account.id.to_string(),
            account.credit_limit,
            account.class,
            account.cache_scope,
            account.created_at,
        ],
    )?;
    changed(inserted, || Refusal::AccountExists(account.id))
}

pub(crate) fn change_account(
    connection: &dyn Sql,
    change: &AccountChange,
) -> Result<(), WriteError> {
    let sql = "UPDATE accounts SET status = coalesce(?2, status), rate_class = coalesce(?3, rate_class),
                                 cache_scope = coalesce(?4, cache_scope), updated_at = ?5 WHERE id = ?1";
    let rows = connection.execute(
        sql,
        values![
            change.id,
            change.status,
            change.class,
            change.cache_scope,
            change.at,
        ],
    )?;
    changed(rows, || Refusal::NoAccount(change.id))
}

pub(crate) fn insert_credential(
    connection: &dyn Sql,
    credential: &NewCredential,
) -> Result<(), WriteError> {
    require_account(connection, credential.account)?;
    let models = lines_of(credential.models.as_deref())?;
    let sql = "INSERT INTO credentials (hash, id, kind, account_id, client_id, grant_id, resource, scopes, label, hint, models, cap,
                                      created_at, expires_at, cap_period)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15) ON CONFLICT DO NOTHING";
    let inserted = connection.execute(
        sql,
        values![
            credential.hash,
            credential.id,
            credential.kind,
            credential.account,
            credential.client_id,
            credential.grant_id,
            credential.resource,
            credential.scopes,
            credential.label,
            credential.hint,
            models,
            credential.spending_cap.map(|cap| cap.max),
            credential.created_at,
            credential.expires_at.unwrap_or(NEVER),
            credential.spending_cap.map(|cap| cap.period),
        ],
    )?;
    changed(inserted, || Refusal::CredentialExists(credential.id))
}

/// Model ids as stored: a line per id.
fn lines_of(models: Option<&[Arc<str>]>) -> Result<Option<String>, WriteError> {
    match models {
        None => Ok(None),
        Some(models) if models.iter().any(|model| model.contains('\n')) => Err(
            WriteError::Refused(Refusal::Invalid("a model id has no line break")),
        ),
        Some(models) => Ok(Some(models.join("\n"))),
    }
}

pub(crate) fn change_credential(
    connection: &dyn Sql,
    change: &CredentialChange,
) -> Result<(), WriteError> {
    let models = lines_of(change.models.as_deref())?;
    let sql = "UPDATE credentials SET label = ?4, models = ?5, cap = ?6, cap_period = ?7, expires_at = ?8, version = version + 1
             WHERE id = ?1 AND account_id = ?2 AND version = ?3 AND kind = ?9 AND revoked_at IS NULL AND expires_at > ?10";
    let rows = connection.execute(
        sql,
        values![
            change.id,
            change.account,
            change.version,
            change.label,
            models,
            change.spending_cap.map(|cap| cap.max),
            change.spending_cap.map(|cap| cap.period),
            change.expires_at.unwrap_or(NEVER),
            CredentialKind::ApiKey,
            change.at,
        ],
    )?;
    changed(rows, || Refusal::CredentialConflict(change.id))
}

pub(crate) fn revoke_credential(
    connection: &dyn Sql,
    id: CredentialId,
    at: Timestamp,
) -> Result<(), WriteError> {
    let rows = connection.execute(
        "UPDATE credentials SET revoked_at = coalesce(revoked_at, ?2) WHERE id = ?1",
        values![id, at],
    )?;
    changed(rows, || Refusal::NoCredential(id))
}

pub(crate) fn insert_login(connection: &dyn Sql, login: &NewLogin) -> Result<(), WriteError> {
    require_account(connection, login.account)?;
    let sql = "INSERT INTO logins (id, account_id, kind, address, verified_at, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT DO NOTHING";
    let inserted = connection.execute(
        sql,
        values![
            login.id,
            login.account,
            login.kind,
            login.address,
            login.verified_at,
            login.created_at,
        ],
    )?;
    changed(inserted, || Refusal::LoginTaken {
        address: login.address.clone(),
    })
}

pub(crate) fn record_price(connection: &dyn Sql, row: &PriceRow) -> Result<(), WriteError> {
    let Price {
        input,
        output,
        request,
    } = row.price;
    let (input, output) = (input.per_million(), output.per_million());
    let amounts = values![
        row.version,
        row.model,
        input,
        output,
        request,
        row.valid_from
    ];
    let sql = "INSERT INTO prices (ver, model, in_per_mtok, out_per_mtok, per_request, valid_from) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT DO NOTHING";
    let written = connection.execute(sql, amounts)?;
    // The last amount is the start, which may differ.
    let sql = "SELECT 1 FROM prices WHERE ver = ?1 AND model = ?2 AND in_per_mtok = ?3 AND out_per_mtok = ?4 AND per_request = ?5";
    let stands = written == 1 || connection.exists(sql, &amounts[..5])?;
    if stands {
        return Ok(());
    }
    Err(WriteError::Refused(Refusal::Invalid(
        "a version of a price stands for other amounts already",
    )))
}

/// Refuses for an unknown account.
pub(super) fn require_account(connection: &dyn Sql, account: AccountId) -> Result<(), WriteError> {
    match account_exists(connection, account)? {
        true => Ok(()),
        false => Err(WriteError::Refused(Refusal::NoAccount(account))),
    }
}

/// Whether the account exists.
pub(crate) fn account_exists(connection: &dyn Sql, account: AccountId) -> Result<bool, RowError> {
    connection.exists("SELECT 1 FROM accounts WHERE id = ?1", values![account])
}
