//! Queries for many accounts at once: a statement per account would be a message to a server per account.

use tollgate_money::AccountId;

use crate::engine::{RowError, ToValue, Value};

/// Numbers of accounts in a statement. Few sizes, since a connection keeps a statement per size.
const SIZES: [usize; 3] = [1, 8, 64];

/// Runs a query with the values of ids and the list of their parameters.
type Run<'r, 'a> = dyn FnMut(Vec<Value<'a>>, &str) -> Result<(), RowError> + 'r;

/// Calls `run` with the accounts in groups: the values of their ids, and the list of their parameters, such as `?1, ?2`. A group smaller
/// than its statement repeats its last account, which makes no difference within `IN`.
pub(super) fn each<'a>(accounts: &'a [AccountId], run: &mut Run<'_, 'a>) -> Result<(), RowError> {
    let [.., largest] = SIZES;
    for group in accounts.chunks(largest) {
        let fits = |size: &&usize| **size >= group.len();
        let size = SIZES.iter().find(fits).copied().unwrap_or(largest);
        let repeated = group.last().into_iter().cycle();
        let values = group.iter().chain(repeated).take(size);
        let ids: Vec<String> = (1..=size).map(|number| format!("?{number}")).collect();
        run(values.map(ToValue::to_value).collect(), &ids.join(", "))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_read_by_as_few_statements_as_there_are_sixty_fours_of_them() {
        let account = |number: usize| AccountId::from_bytes((number as u128).to_be_bytes());
        //   accounts, parameters of each statement
        for (count, sizes) in [
            (0, &[][..]),
            (1, &[1]),
            (2, &[8]),
            (8, &[8]),
            (9, &[64]),
            (64, &[64]),
            (65, &[64, 1]),
            (130, &[64, 64, 8]),
        ] {
            let accounts: Vec<AccountId> = (0..count).map(account).collect();
            let (mut found, mut ran) = (Vec::new(), Vec::new());
            each(&accounts, &mut |values, ids| {
                ran.push(values.len());
                assert_eq!(ids.split(", ").count(), values.len());
                found.extend(values.iter().map(|value| format!("{value:?}")));
                Ok(())
            })
            .expect("nothing fails");
            assert_eq!(ran, sizes, "{count}");
            found.dedup();
            let all = accounts.iter().map(|id| format!("{:?}", id.to_value()));
            assert!(found.into_iter().eq(all), "{count}");
        }
    }
}
