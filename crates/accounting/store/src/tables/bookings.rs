//! Rows of booked references.

use std::ops::ControlFlow;

use tollgate_money::{AccountId, Micros, OperationId};

use crate::engine::{Booking, EngineError, RowError, Select, Sql, values};

/// Operation, code of the kind and amount of the booking of an account's reference.
pub(crate) fn booked(
    connection: &dyn Sql,
    account: AccountId,
    reference: &str,
) -> Result<Option<(OperationId, i64, Micros)>, RowError> {
    let sql = "SELECT op_id, kind, amount FROM credit_references WHERE account_id = ?1 AND reference = ?2";
    connection.first(sql, values![account, reference], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    })
}

/// Visits every booked reference.
pub(crate) fn all(connection: &dyn Sql, each: &mut dyn FnMut(Booking<'_>)) -> Result<(), RowError> {
    let sql = "SELECT account_id, reference, op_id, kind, amount FROM credit_references";
    connection.query(sql, values![], &mut |row| {
        each(Booking {
            account: row.get(0)?,
            reference: row.get(1)?,
            operation: row.get(2)?,
            kind: row.get(3)?,
            amount: row.get(4)?,
        });
        Ok(ControlFlow::Continue(()))
    })
}

/// Books a reference.
pub(crate) fn insert(connection: &dyn Sql, booking: Booking<'_>) -> Result<(), EngineError> {
    let sql = "INSERT INTO credit_references (account_id, reference, op_id, kind, amount) VALUES (?1, ?2, ?3, ?4, ?5)";
    let values = values![
        booking.account,
        booking.reference,
        booking.operation,
        booking.kind,
        booking.amount,
    ];
    connection.write(sql, values)
}
