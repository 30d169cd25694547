//! The savepoint of a unit of work, and its parts.

use super::{
    acme, allotment, checkout, erasure, keys, mandate, oauth, parts, plan, refusals, signin, topup,
    x402,
};
use crate::engine::{EngineError, Sql, WriteError, values};
use crate::unit::Part;

/// Begins a unit of several parts: a savepoint.
pub(crate) fn begin(connection: &dyn Sql) -> Result<(), EngineError> {
    connection.write("SAVEPOINT unit", values![])
}

/// Keeps the writes since [`begin`].
pub(crate) fn keep(connection: &dyn Sql) -> Result<(), EngineError> {
    connection.write("RELEASE unit", values![])
}

/// Undoes the writes since [`begin`].
pub(crate) fn undo(connection: &dyn Sql) -> Result<(), EngineError> {
    connection.write("ROLLBACK TO unit", values![])?;
    keep(connection)
}

/// Writes a part to its tables, except parts of the ledger and of the audit log.
pub(crate) fn write_part(connection: &dyn Sql, part: &Part) -> Result<(), WriteError> {
    match part {
        Part::CreateAccount(account) => parts::create_account(connection, account),
        Part::ChangeAccount(change) => parts::change_account(connection, change),
        Part::InsertCredential(credential) => parts::insert_credential(connection, credential),
        Part::ChangeCredential(change) => parts::change_credential(connection, change),
        Part::RevokeCredential { id, at } => parts::revoke_credential(connection, *id, *at),
        Part::InsertLogin(login) => parts::insert_login(connection, login),
        Part::RecordPrice(row) => parts::record_price(connection, row),
        Part::Idempotency(part) => keys::write(connection, part),
        Part::OAuth(part) => oauth::write(connection, part),
        Part::Plan(part) => plan::write(connection, part),
        Part::Authorization(part) => x402::write(connection, part),
        Part::Acme(part) => acme::write(connection, part),
        Part::TopUp(part) => topup::write(connection, part),
        Part::Checkout(part) => checkout::write(connection, part),
        Part::Mandate(part) => mandate::write(connection, part),
        Part::Signin(part) => signin::write(connection, part),
        Part::RecordRefusals(rows) => refusals::write(connection, rows),
        // The part is only the change.
        Part::PurgeCache { .. } => Ok(()),
        Part::EraseAccount(account) => Ok(erasure::erase(connection, *account)?),
        Part::PruneChanges => Ok(allotment::prune_changes(connection)?),
        Part::Audit(_) => unreachable!("an event of the audit log is chained by the writer"),
        Part::Load(_) => unreachable!("a load writes nothing"),
        Part::Ledger(_) | Part::Allotment(_) | Part::Carry(_) => {
            unreachable!("a part of the ledger is packed into the journal")
        }
    }
}
