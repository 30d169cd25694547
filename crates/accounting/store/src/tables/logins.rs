//! Rows of logins.

use tollgate_money::AccountId;

use crate::codes::LoginKind;
use crate::engine::{Dialect, RowError, Select, Sql, SqlRow, values};
use crate::rows::LoginRow;
use crate::signin::Mailbox;

/// The account of a login.
pub(crate) fn account_of(
    connection: &dyn Sql,
    kind: LoginKind,
    address: &str,
) -> Result<Option<AccountId>, RowError> {
    let sql = "SELECT account_id FROM logins WHERE kind = ?1 AND address = ?2";
    connection.first(sql, values![kind, address], |row| row.get(0))
}

/// Whether a mailbox is a login of another account, with any tag. The other account got its credits for signing up, perhaps from an earlier
/// release, which did not remember the mailbox.
pub(crate) fn has_mailbox(
    connection: &dyn Sql,
    account: AccountId,
    mailboxes: &[Mailbox],
) -> Result<bool, RowError> {
    // A range of the table's key; in bytes, also where the database has another collation.
    let sql = match connection.dialect() {
        Dialect::Sqlite => {
            "SELECT address FROM logins WHERE kind = ?1 AND address >= ?2 AND address < ?3 AND account_id <> ?4"
        }
        Dialect::Postgres => {
            "SELECT address FROM logins
             WHERE kind = ?1 AND address COLLATE \"C\" >= ?2 AND address COLLATE \"C\" < ?3 AND account_id <> ?4"
        }
    };
    for mailbox in mailboxes {
        let owner = account_of(connection, LoginKind::Email, &mailbox.untagged())?;
        if owner.is_some_and(|owner| owner != account) {
            return Ok(true);
        }
        // The character after `+` ends the range.
        let (first, end) = (format!("{}+", mailbox.local), format!("{},", mailbox.local));
        let of = values![LoginKind::Email, first, end, account];
        let tagged: Vec<String> = connection.all(sql, of, |row| row.get(0))?;
        if tagged.iter().any(|address| mailbox.has(address)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Visits the logins of an account.
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
