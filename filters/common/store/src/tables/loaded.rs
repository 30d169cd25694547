//! Accounts as a ledger loads them, many in one statement: a statement for each would be a message to a server for each.

use tollgate_money::AccountId;

use super::columns::has_paid;
use crate::commit_id;
use crate::engine::{Dialect, RowError, Select, Sql, SqlRow, ToValue, Value};
use crate::unit::LoadedAccount;

/// Numbers of accounts in one statement: few, since each is a statement that a connection keeps.
const SIZES: [usize; 3] = [64, 8, 1];

/// Visits accounts for the ledger of a node, as they were last posted.
pub(crate) fn accounts(
    connection: &dyn Sql,
    node: i64,
    mut accounts: &[AccountId],
    each: &mut dyn FnMut(AccountId, LoadedAccount),
) -> Result<(), RowError> {
    while !accounts.is_empty() {
        let fits = |size: &&usize| **size <= accounts.len();
        let size = SIZES.iter().find(fits).copied().unwrap_or(1);
        let (now, later) = accounts.split_at(size);
        let mut values: Vec<Value<'_>> = now.iter().map(ToValue::to_value).collect();
        if commit_id::has_allotments(node) {
            values.push(node.to_value());
        }
        let mut found = |(id, loaded)| each(id, loaded);
        connection.each(&statement(node, size), &values, account, &mut found)?;
        accounts = later;
    }
    Ok(())
}

fn statement(node: i64, size: usize) -> String {
    let ids: Vec<String> = (1..=size)
        .map(|parameter| format!("?{parameter}"))
        .collect();
    let ids = ids.join(", ");
    let has_paid = has_paid("a");
    if !commit_id::has_allotments(node) {
        // A node that is alone has all that there is.
        return format!(
            "SELECT a.id, a.available, a.held, a.credit_limit, 0, 0, {has_paid} FROM accounts a WHERE a.id IN ({ids})"
        );
    }
    let node = size + 1;
    // What other nodes have not posted yet is missing.
    format!(
        "SELECT a.id, COALESCE(m.available, 0), COALESCE(m.held, 0), a.credit_limit,
            a.available + a.held + (SELECT CAST(COALESCE(SUM(o.available + o.held), 0) AS BIGINT) FROM allotments o
                WHERE o.account_id = a.id AND o.node_id <> ?{node}),
            COALESCE(r.number, 0), {has_paid}
        FROM accounts a LEFT JOIN allotments m ON m.account_id = a.id AND m.node_id = ?{node} LEFT JOIN recalls r ON r.account_id = a.id
        WHERE a.id IN ({ids})"
    )
}

fn account(row: &dyn SqlRow) -> Result<(AccountId, LoadedAccount), RowError> {
    Ok((
        row.get(0)?,
        LoadedAccount {
            available: row.get(1)?,
            held: row.get(2)?,
            credit_limit: row.get(3)?,
            elsewhere: row.get(4)?,
            recall: row.get(5)?,
            has_paid: row.get(6)?,
        },
    ))
}

/// The credit of all accounts, available and held, without those below zero.
pub(crate) fn owed(connection: &dyn Sql) -> Result<i64, RowError> {
    let sql = match connection.dialect() {
        Dialect::Sqlite => "SELECT COALESCE(SUM(max(available + held, 0)), 0) FROM accounts",
        Dialect::Postgres => {
            "SELECT CAST(COALESCE(SUM(greatest(a.available + a.held + COALESCE(m.here, 0), 0)), 0) AS BIGINT) FROM accounts a
            LEFT JOIN (SELECT account_id, CAST(SUM(available + held) AS BIGINT) AS here FROM allotments GROUP BY account_id) m ON m.account_id = a.id"
        }
    };
    connection.number(sql, &[])
}
