//! Queries for many accounts at once: a statement for each would be a message to a server for each.

use tollgate_money::AccountId;

use crate::engine::{RowError, ToValue, Value};

/// Numbers of accounts in one statement: few, since each is a statement that a connection keeps.
const SIZES: [usize; 3] = [64, 8, 1];

/// Runs a query with the values of ids and the list of their parameters.
type Run<'r, 'a> = dyn FnMut(Vec<Value<'a>>, &str) -> Result<(), RowError> + 'r;

/// Calls `run` with the accounts in groups: the values of their ids, and the list of their parameters, such as `?1, ?2`.
pub(super) fn each<'a>(
    mut accounts: &'a [AccountId],
    run: &mut Run<'_, 'a>,
) -> Result<(), RowError> {
    while !accounts.is_empty() {
        let fits = |size: &&usize| **size <= accounts.len();
        let size = SIZES.iter().find(fits).copied().unwrap_or(1);
        let (now, later) = accounts.split_at(size);
        let ids: Vec<String> = (1..=size).map(|number| format!("?{number}")).collect();
        run(now.iter().map(ToValue::to_value).collect(), &ids.join(", "))?;
        accounts = later;
    }
    Ok(())
}
