//! Rows of open holds, as last posted by their node.

use tollgate_money::OperationId;

use crate::engine::{EngineError, RowError, Select, Sql, SqlRow, values};
use crate::rows::OpenHold;

/// Visits the holds that were open at their node's last posting, in no order.
pub(crate) fn posted(connection: &dyn Sql, each: &mut dyn FnMut(OpenHold)) -> Result<(), RowError> {
    let sql = "SELECT id, account_id, amount, node_id, epoch, created_at, expires_at FROM holds";
    connection.each(sql, values![], hold, each)
}

/// Removes holds that have ended since their posting.
pub(crate) fn remove(connection: &dyn Sql, ended: &[OperationId]) -> Result<(), EngineError> {
    connection.execute_each("DELETE FROM holds WHERE id = ?1", &mut |run| {
        (ended.iter()).try_for_each(|operation| run(values![operation]))
    })
}

/// Inserts holds that have begun since the last posting.
pub(crate) fn insert<'h>(
    connection: &dyn Sql,
    mut begun: impl Iterator<Item = &'h OpenHold>,
) -> Result<(), EngineError> {
    let sql = "INSERT INTO holds (id, account_id, amount, node_id, epoch, created_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    connection.execute_rows(sql, &mut |run| {
        begun.try_for_each(|hold| {
            run(values![
                hold.operation,
                hold.account,
                hold.amount,
                hold.node,
                hold.epoch,
                hold.created_at,
                hold.expires_at,
            ])
        })
    })
}

fn hold(row: &dyn SqlRow) -> Result<OpenHold, RowError> {
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
