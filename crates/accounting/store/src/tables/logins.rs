//! Rows of logins.

use tollgate_money::AccountId;

use crate::codes::LoginKind;
use crate::engine::{RowError, Select, Sql, SqlRow, values};
use crate::rows::LoginRow;

/// The account that a login signs in to.
pub(crate) fn account_of(
    connection: &dyn Sql,
    kind: LoginKind,
    address: &str,
) -> Result<Option<AccountId>, RowError> {
    let sql = "SELECT account_id FROM logins WHERE kind = ?1 AND address = ?2";
    connection.first(sql, values![kind, address], |row| row.get(0))
}

/// Visits the logins of one account.
pub(crate) fn of_account(
    connection: &dyn Sql,
    account: AccountId,
    each: &mut dyn FnMut(LoginRow),
) -> Result<(), RowError> {
    let sql = "SELECT id, account_id, kind, address, verified_at, created_at FROM logins WHERE account_id = ?1 ORDER BY id";
    connection.each(sql, values![account], login, each)
}

fn login(row: &dyn SqlRow) -> Result<LoginRow, RowError> {
    Ok(LoginRow {
        id: row.get(0)?,
        account: row.get(1)?,
        kind: row.get(2)?,
        address: row.get(3)?,
        verified_at: row.get(4)?,
        created_at: row.get(5)?,
    })
}
