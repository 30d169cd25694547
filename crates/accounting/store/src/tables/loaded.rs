//! Accounts as a ledger loads accounts, many in one statement.

use tollgate_money::AccountId;

use super::accounts::has_paid;
use super::allotment;
use super::id_lists;
use crate::commit_id;
use crate::engine::{Balance, Dialect, RowError, Select, Sql, SqlRow, ToValue};
use crate::unit::LoadedAccount;

/// Visits accounts for the ledger of a node, as last posted.
pub(crate) fn accounts(
    connection: &dyn Sql,
    node: i64,
    accounts: &[AccountId],
    each: &mut dyn FnMut(AccountId, LoadedAccount),
) -> Result<(), RowError> {
    id_lists::each(accounts, &mut |mut values, ids| {
        let sql = statement(node, values.len(), ids);
        if commit_id::has_allotments(node) {
            values.push(node.to_value());
        }
        let mut found = |(id, loaded)| each(id, loaded);
        connection.each(&sql, &values, account, &mut found)
    })
}

/// Visits the balances of accounts at a node, as last posted.
pub(crate) fn balances(
    connection: &dyn Sql,
    node: i64,
    accounts: &[AccountId],
    each: &mut dyn FnMut(AccountId, Balance),
) -> Result<(), RowError> {
    id_lists::each(accounts, &mut |mut values, ids| {
        let sql = match commit_id::has_allotments(node) {
            true => {
                values.push(node.to_value());
                allotment::posted_balances_sql(values.len(), ids)
            }
            false => format!(
                "SELECT id, available, held, credit_limit, updated_at FROM accounts WHERE id IN ({ids})"
            ),
        };
        let read = |row: &dyn SqlRow| {
            let balance = Balance {
                available: row.get(1)?,
                held: row.get(2)?,
                credit_limit: row.get(3)?,
                at: row.get(4)?,
            };
            Ok((row.get(0)?, balance))
        };
        connection.each(&sql, &values, read, &mut |(id, balance)| each(id, balance))
    })
}

fn statement(node: i64, size: usize, ids: &str) -> String {
    let has_paid = has_paid("a");
    if !commit_id::has_allotments(node) {
        // A lone node has the whole balance.
        return format!(
            "SELECT a.id, a.available, a.held, a.credit_limit, 0, 0, {has_paid} FROM accounts a WHERE a.id IN ({ids})"
        );
    }
    let node = size + 1;
    // Unposted changes of other nodes are missing.
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

/// The credit of all accounts, available and held, without negative balances.
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
