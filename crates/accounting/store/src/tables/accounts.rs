//! Rows of accounts, as last posted.

use std::sync::Arc;

use tollgate_money::AccountId;

use super::{allotment, id_lists};
use crate::codes::EntryKind;
use crate::commit_id;
use crate::engine::{
    Accounts, Balance, Dialect, EngineError, RowError, Select, Sql, SqlRow, Value, values,
};
use crate::rows::AccountRow;

/// Visits accounts, as last posted.
pub(crate) fn posted(
    connection: &dyn Sql,
    which: Accounts<'_>,
    each: &mut dyn FnMut(AccountRow),
) -> Result<(), RowError> {
    match which {
        Accounts::All => posted_where(connection, "", values![], each),
        Accounts::Of(accounts) => id_lists::each(accounts, &mut |values, ids| {
            posted_where(connection, &format!("WHERE id IN ({ids})"), &values, each)
        }),
        Accounts::After(after, limit) => {
            let after = after.as_ref().map_or(&[][..], |id| &id.as_bytes()[..]);
            let which = "WHERE id > ?1 ORDER BY id LIMIT ?2";
            posted_where(connection, which, values![after, limit], each)
        }
    }
}

/// Visits the accounts that a clause selects.
fn posted_where(
    connection: &dyn Sql,
    which: &str,
    values: &[Value<'_>],
    each: &mut dyn FnMut(AccountRow),
) -> Result<(), RowError> {
    // SQLite has a single node and no allotments.
    let (available, held) = match connection.dialect() {
        Dialect::Sqlite => ("available", "held"),
        Dialect::Postgres => (
            "available + (SELECT CAST(COALESCE(SUM(m.available), 0) AS BIGINT) FROM allotments m WHERE m.account_id = accounts.id)",
            "held + (SELECT CAST(COALESCE(SUM(m.held), 0) AS BIGINT) FROM allotments m WHERE m.account_id = accounts.id)",
        ),
    };
    let sql = format!(
        "SELECT id, status, rate_class, cache_scope, {available}, {held}, credit_limit, created_at, updated_at, plan_class, plan_until,
                {has_paid} FROM accounts {which}",
        has_paid = has_paid("accounts"),
    );
    let mut classes = Words::default();
    connection.each(&sql, values, |row| account(row, &mut classes), each)
}

/// Whether the account of a row has ever paid.
///
/// With `OFFSET` PostgreSQL asks the index per account. Without `OFFSET` PostgreSQL may read all rows once instead. PostgreSQL did so for
/// tables without statistics, such as the tables of a migration.
pub(crate) fn has_paid(accounts: &str) -> String {
    let top_up = EntryKind::TopUp.code();
    format!(
        "EXISTS (SELECT 1 FROM credit_references c WHERE c.account_id = {accounts}.id AND c.kind = {top_up} LIMIT 1 OFFSET 0)
                OR EXISTS (SELECT 1 FROM payments p WHERE p.account_id = {accounts}.id LIMIT 1 OFFSET 0)"
    )
}

/// The few distinct words of a column with many rows; a word is allocated once.
#[derive(Default)]
struct Words(Vec<Arc<str>>);

impl Words {
    fn get(&mut self, word: &str) -> Arc<str> {
        match self.0.iter().find(|known| &***known == word) {
            Some(known) => Arc::clone(known),
            None => {
                let word = Arc::<str>::from(word);
                self.0.push(Arc::clone(&word));
                word
            }
        }
    }
}

fn account(row: &dyn SqlRow, classes: &mut Words) -> Result<AccountRow, RowError> {
    Ok(AccountRow {
        id: row.get(0)?,
        status: row.get(1)?,
        class: classes.get(row.get(2)?),
        cache_scope: row.get(3)?,
        available: row.get(4)?,
        held: row.get(5)?,
        credit_limit: row.get(6)?,
        created_at: row.get(7)?,
        updated_at: row.get(8)?,
        plan: match (row.get::<Option<&str>>(9)?, row.get(10)?) {
            (Some(class), Some(until)) => Some((classes.get(class), until)),
            _ => None,
        },
        has_paid: row.get(11)?,
    })
}

/// Every rate class of an account.
pub(crate) fn classes(connection: &dyn Sql) -> Result<Vec<Arc<str>>, RowError> {
    let sql = "SELECT DISTINCT rate_class FROM accounts";
    connection.all(sql, values![], |row| row.get::<Arc<str>>(0))
}

/// Sets the posted balances of a node, in the order of the accounts.
pub(crate) fn post_balances(
    connection: &dyn Sql,
    node: i64,
    balances: &[(AccountId, Balance)],
) -> Result<(), EngineError> {
    if commit_id::has_allotments(node) {
        return allotment::post_balances(connection, node, balances);
    }
    let sql = match connection.dialect() {
        // Without a savepoint, which would copy every page: an error here rolls back the whole transaction.
        Dialect::Sqlite => {
            "UPDATE OR FAIL accounts SET available = ?2, held = ?3, updated_at = max(updated_at, ?4) WHERE id = ?1"
        }
        Dialect::Postgres => {
            "UPDATE accounts AS a SET available = v.available, held = v.held, updated_at = greatest(a.updated_at, v.at)
             FROM (VALUES (CAST(?1 AS BYTEA), CAST(?2 AS BIGINT), CAST(?3 AS BIGINT), CAST(?4 AS BIGINT))) AS v (id, available, held, at)
             WHERE a.id = v.id"
        }
    };
    connection.execute_rows(sql, &mut |run| {
        balances.iter().try_for_each(|(account, balance)| {
            run(values![
                account,
                balance.available,
                balance.held,
                balance.at
            ])
        })
    })
}

#[cfg(test)]
mod tests {
    use tollgate_testing::Postgres;

    use super::has_paid;

    #[test]
    fn whether_an_account_has_paid_is_read_by_an_index_without_statistics_too() {
        let server = Postgres::shared();
        let url = server.database();
        let name = url.rsplit('/').next().expect("a name");
        let table = |name: &str, more: &str| {
            format!("CREATE TABLE {name} ({more}) WITH (autovacuum_enabled = false);")
        };
        let tables = [
            table("accounts", "id INT PRIMARY KEY"),
            table(
                "credit_references",
                "account_id INT, reference TEXT, kind INT, PRIMARY KEY (account_id, reference)",
            ),
            table(
                "payments",
                "account_id INT, at INT, PRIMARY KEY (account_id, at)",
            ),
        ];
        server.run(
            name,
            &format!(
                "{} INSERT INTO accounts SELECT generate_series(1, 50000);
                 INSERT INTO credit_references SELECT id, '', 1 FROM accounts; INSERT INTO payments SELECT id, 1 FROM accounts",
                tables.concat()
            ),
        );
        let plan = server.run(
            name,
            &format!(
                "EXPLAIN SELECT {} FROM accounts a WHERE a.id IN (1, 2, 3, 4, 5, 6, 7, 8)",
                has_paid("a")
            ),
        );
        assert!(!plan.contains("Seq Scan"), "{plan}");
    }
}
