//! The columns of each table, and the conversion of their values.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{CapPeriod, Micros, Price, SpendingCap, TokenPrice};

use crate::codes::EntryKind;
use crate::engine::{Dialect, RowError, Select, Sql, SqlRow, Value, values};
use crate::rows::{AccountRow, CredentialRow, LoginRow, NewCredential, OpenHold, PriceRow};

/// Stored for an expiry that never comes; the column is not nullable.
pub(crate) const NEVER: Timestamp = Timestamp::MAX;

/// Visits accounts as they were last posted.
pub(crate) fn posted_accounts(
    connection: &dyn Sql,
    which: &str,
    values: &[Value<'_>],
    each: &mut dyn FnMut(AccountRow),
) -> Result<(), RowError> {
    // Not asked of SQLite, which has one node.
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
/// With `OFFSET` PostgreSQL asks the index for each account. Without, it may read all rows once instead, which it did for tables that it has no
/// statistics of yet, such as those of a migration.
pub(crate) fn has_paid(accounts: &str) -> String {
    let top_up = EntryKind::TopUp.code();
    format!(
        "EXISTS (SELECT 1 FROM credit_references c WHERE c.account_id = {accounts}.id AND c.kind = {top_up} LIMIT 1 OFFSET 0)
                OR EXISTS (SELECT 1 FROM payments p WHERE p.account_id = {accounts}.id LIMIT 1 OFFSET 0)"
    )
}

pub(crate) fn all_credentials(
    connection: &dyn Sql,
    which: &str,
    values: &[Value<'_>],
    each: &mut dyn FnMut(CredentialRow),
) -> Result<(), RowError> {
    let sql = format!(
        "SELECT hash, id, kind, account_id, client_id, grant_id, resource, scopes, label, hint, models, cap, created_at, expires_at,
                revoked_at, cap_period, used_at, version FROM credentials {which}"
    );
    connection.each(&sql, values, credential, each)
}

pub(crate) fn all_prices(
    connection: &dyn Sql,
    each: &mut dyn FnMut(PriceRow),
) -> Result<(), RowError> {
    let sql = "SELECT ver, model, in_per_mtok, out_per_mtok, per_request, valid_from FROM prices ORDER BY valid_from, model";
    connection.each(sql, values![], price, each)
}

fn price(row: &dyn SqlRow) -> Result<PriceRow, RowError> {
    let tokens = |at| -> Result<TokenPrice, RowError> {
        let amount: i64 = row.get(at)?;
        TokenPrice::new(Micros::new(amount)).ok_or_else(|| RowError::Unknown {
            what: "a price",
            value: amount.to_string(),
        })
    };
    Ok(PriceRow {
        version: row.get(0)?,
        model: row.get(1)?,
        price: Price {
            input: tokens(2)?,
            output: tokens(3)?,
            request: row.get(4)?,
        },
        valid_from: row.get(5)?,
    })
}

/// The few distinct words of a column with many rows, each allocated once.
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

fn credential(row: &dyn SqlRow) -> Result<CredentialRow, RowError> {
    let models: Option<&str> = row.get(10)?;
    let expires_at = row.get(13)?;
    Ok(CredentialRow {
        made: NewCredential {
            hash: row.get(0)?,
            id: row.get(1)?,
            kind: row.get(2)?,
            account: row.get(3)?,
            client_id: row.get(4)?,
            grant_id: row.get(5)?,
            resource: row.get(6)?,
            scopes: row.get(7)?,
            label: row.get(8)?,
            hint: row.get(9)?,
            // An empty list of models is stored as an empty text, which has no line.
            models: models.map(|models| models.lines().map(Arc::from).collect()),
            spending_cap: match row.get(11)? {
                None => None,
                Some(max) => Some(SpendingCap {
                    max,
                    // Rows from before periods existed count over all time.
                    period: row.get::<Option<_>>(15)?.unwrap_or(CapPeriod::Total),
                }),
            },
            created_at: row.get(12)?,
            expires_at: (expires_at != NEVER).then_some(expires_at),
        },
        revoked_at: row.get(14)?,
        used_at: row.get(16)?,
        version: row.get(17)?,
    })
}

pub(crate) fn login(row: &dyn SqlRow) -> Result<LoginRow, RowError> {
    Ok(LoginRow {
        id: row.get(0)?,
        account: row.get(1)?,
        kind: row.get(2)?,
        address: row.get(3)?,
        verified_at: row.get(4)?,
        created_at: row.get(5)?,
    })
}

pub(crate) fn hold(row: &dyn SqlRow) -> Result<OpenHold, RowError> {
    Ok(OpenHold {
        operation: row.get(0)?,
        account: row.get(1)?,
        amount: row.get(2)?,
        node: row.get(3)?,
        epoch: row.get(4)?,
        created_at: row.get(5)?,
        expires_at: row.get(6)?,
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
