//! The parts for accounts, credentials, logins and prices: rare, so their statements are prepared on use.

use std::sync::Arc;

use rusqlite::{Connection, params};
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, Micros, Price};

use super::columns::NEVER;
use super::failure::key_conflict;
use crate::codes::{CredentialKind, cap_period_code};
use crate::engine::WriteError;
use crate::error::Refusal;
use crate::rows::{NewAccount, NewCredential, NewLogin, PriceRow};
use crate::unit::{AccountChange, CredentialChange};

pub(crate) fn create_account(
    connection: &Connection,
    account: &NewAccount,
) -> Result<(), WriteError> {
    if account.credit_limit < Micros::ZERO {
        return Err(WriteError::Refused(Refusal::Invalid(
            "a credit limit is never below zero",
        )));
    }
    connection
        .prepare_cached(
            "INSERT INTO accounts (id, public_id, credit_limit, rate_class, cache_scope, created_at, updated_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6)",
        )?
        .execute(params![
            account.id.as_bytes(),
            account.id.to_string(),
            account.credit_limit.get(),
            &*account.class,
            account.cache_scope.code(),
            account.created_at.as_micros(),
        ])
        .map_err(|error| key_conflict(error, || Refusal::AccountExists(account.id)))?;
    Ok(())
}

pub(crate) fn change_account(
    connection: &Connection,
    change: &AccountChange,
) -> Result<(), WriteError> {
    let changed = connection
        .prepare_cached(
            "UPDATE accounts SET status = coalesce(?2, status), rate_class = coalesce(?3, rate_class),
                                 cache_scope = coalesce(?4, cache_scope), updated_at = ?5 WHERE id = ?1",
        )?
        .execute(params![
            change.id.as_bytes(),
            change.status.map(|status| status.code()),
            change.class.as_deref(),
            change.cache_scope.map(|scope| scope.code()),
            change.at.as_micros(),
        ])?;
    match changed {
        0 => Err(WriteError::Refused(Refusal::NoAccount(change.id))),
        _ => Ok(()),
    }
}

pub(crate) fn insert_credential(
    connection: &Connection,
    credential: &NewCredential,
) -> Result<(), WriteError> {
    if !account_exists(connection, credential.account)? {
        return Err(WriteError::Refused(Refusal::NoAccount(credential.account)));
    }
    let models = lines_of(credential.models.as_deref())?;
    connection
        .prepare_cached(
            "INSERT INTO credentials (hash, id, kind, account_id, client_id, grant_id, resource, scopes, label, hint, models, cap,
                                      created_at, expires_at, cap_period)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
        )?
        .execute(params![
            credential.hash,
            credential.id.as_bytes(),
            credential.kind.code(),
            credential.account.as_bytes(),
            credential.client_id.as_deref(),
            credential.grant_id,
            credential.resource,
            credential.scopes,
            credential.label.as_deref(),
            credential.hint.as_deref(),
            models,
            credential.spending_cap.map(|cap| cap.max.get()),
            credential.created_at.as_micros(),
            credential.expires_at.unwrap_or(NEVER).as_micros(),
            credential.spending_cap.map(|cap| cap_period_code(cap.period)),
        ])
        .map_err(|error| key_conflict(error, || Refusal::CredentialExists(credential.id)))?;
    Ok(())
}

/// Model ids as they are stored: one a line.
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
    connection: &Connection,
    change: &CredentialChange,
) -> Result<(), WriteError> {
    let models = lines_of(change.models.as_deref())?;
    let changed = connection
        .prepare_cached(
            "UPDATE credentials SET label = ?4, models = ?5, cap = ?6, cap_period = ?7, expires_at = ?8, version = version + 1
             WHERE id = ?1 AND account_id = ?2 AND version = ?3 AND kind = ?9 AND revoked_at IS NULL AND expires_at > ?10",
        )?
        .execute(params![
            change.id.as_bytes(),
            change.account.as_bytes(),
            change.version,
            &*change.label,
            models,
            change.spending_cap.map(|cap| cap.max.get()),
            change.spending_cap.map(|cap| cap_period_code(cap.period)),
            change.expires_at.unwrap_or(NEVER).as_micros(),
            CredentialKind::ApiKey.code(),
            change.at.as_micros(),
        ])?;
    match changed {
        0 => Err(WriteError::Refused(Refusal::CredentialConflict(change.id))),
        _ => Ok(()),
    }
}

pub(crate) fn revoke_credential(
    connection: &Connection,
    id: CredentialId,
    at: Timestamp,
) -> Result<(), WriteError> {
    let changed = connection
        .prepare_cached(
            "UPDATE credentials SET revoked_at = coalesce(revoked_at, ?2) WHERE id = ?1",
        )?
        .execute(params![id.as_bytes(), at.as_micros()])?;
    match changed {
        0 => Err(WriteError::Refused(Refusal::NoCredential(id))),
        _ => Ok(()),
    }
}

pub(crate) fn insert_login(connection: &Connection, login: &NewLogin) -> Result<(), WriteError> {
    if !account_exists(connection, login.account)? {
        return Err(WriteError::Refused(Refusal::NoAccount(login.account)));
    }
    connection
        .prepare_cached(
            "INSERT INTO logins (id, account_id, kind, address, verified_at, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![
            login.id.as_bytes(),
            login.account.as_bytes(),
            login.kind.code(),
            &*login.address,
            login.verified_at.map(Timestamp::as_micros),
            login.created_at.as_micros(),
        ])
        .map_err(|error| {
            key_conflict(error, || Refusal::LoginTaken {
                address: login.address.clone(),
            })
        })?;
    Ok(())
}

pub(crate) fn record_price(connection: &Connection, row: &PriceRow) -> Result<(), WriteError> {
    let Price {
        input,
        output,
        request,
    } = row.price;
    let amounts = params![
        row.version,
        &*row.model,
        input.per_million().get(),
        output.per_million().get(),
        request.get(),
        row.valid_from.as_micros(),
    ];
    let written = connection
        .prepare_cached(
            "INSERT INTO prices (ver, model, in_per_mtok, out_per_mtok, per_request, valid_from) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT DO NOTHING",
        )?
        .execute(amounts)?;
    if written == 1 {
        return Ok(());
    }
    let same = connection
        .prepare_cached(
            "SELECT 1 FROM prices WHERE ver = ?1 AND model = ?2 AND in_per_mtok = ?3 AND out_per_mtok = ?4 AND per_request = ?5",
        )?
        .exists(params![
            row.version,
            &*row.model,
            input.per_million().get(),
            output.per_million().get(),
            request.get(),
        ])?;
    if same {
        return Ok(());
    }
    Err(WriteError::Refused(Refusal::Invalid(
        "a version of a price stands for other amounts already",
    )))
}

pub(crate) fn account_exists(
    connection: &Connection,
    account: AccountId,
) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM accounts WHERE id = ?1")?
        .exists([account.as_bytes()])
}
