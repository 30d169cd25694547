//! Removal of a deleted account's personal data.

use tollgate_money::AccountId;

use crate::engine::{EngineError, Sql, values};

/// Remaining rows name the account only by its id: the ledger, usage by day, payments with their references at the provider or on the
/// chain. Stored answers of idempotency keys expire by themselves.
const STATEMENTS: [&str; 10] = [
    "DELETE FROM notices WHERE login_id IN (SELECT id FROM logins WHERE account_id = ?1)",
    "DELETE FROM outbox WHERE recipient IN (SELECT address FROM logins WHERE account_id = ?1)",
    "DELETE FROM login_codes WHERE address IN (SELECT address FROM logins WHERE account_id = ?1)",
    "DELETE FROM sessions WHERE account_id = ?1",
    "DELETE FROM logins WHERE account_id = ?1",
    "DELETE FROM signup_grants WHERE account_id = ?1",
    "DELETE FROM refusals WHERE account_id = ?1",
    "UPDATE credentials SET label = NULL, hint = NULL WHERE account_id = ?1",
    "UPDATE checkouts SET buyer = NULL, platform = NULL WHERE account_id = ?1",
    "UPDATE top_ups SET approve_url = NULL, note = NULL WHERE account_id = ?1",
];

pub(crate) fn erase(connection: &dyn Sql, account: AccountId) -> Result<(), EngineError> {
    for sql in STATEMENTS {
        connection.execute(sql, values![account])?;
    }
    let sql = "UPDATE mandates SET approve_url = NULL, return_url = '', cancel_url = '', note = NULL WHERE account_id = ?1";
    connection.execute(sql, values![account]).map(|_| ())
}
