//! Pages of ledger entries.

use tollgate_clock::Timestamp;
use tollgate_money::AccountId;
use tollgate_store::{LedgerLine, ReadError, Reader};

/// A page of entries, newest first, and the exclusive end of the next page: `None` on the last page.
pub(in crate::admin) type LinePage = (Vec<LedgerLine>, Option<Timestamp>);

/// The entries of an account before a time. A page has more than `limit` entries where the newest time alone has more.
pub(in crate::admin) fn lines_before(
    store: &Reader,
    account: AccountId,
    before: Timestamp,
    limit: usize,
) -> Result<LinePage, ReadError> {
    page(
        limit,
        |max| store.lines(account, before, max),
        |line| line.entry.at,
    )
}

/// Reads up to one item beyond the page. The store selects by time alone, so a page ends between two times.
fn page<T, E>(
    mut limit: usize,
    read: impl Fn(usize) -> Result<Vec<T>, E>,
    at: impl Fn(&T) -> Timestamp,
) -> Result<(Vec<T>, Option<Timestamp>), E> {
    loop {
        let mut items = read(limit + 1)?;
        let Some(beyond) = items.get(limit).map(&at) else {
            return Ok((items, None));
        };
        if let Some(end) = items.iter().rposition(|item| at(item) > beyond) {
            items.truncate(end + 1);
            let next = items.last().map(at);
            return Ok((items, next));
        }
        limit *= 2;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn pages_of_every_size_have_each_entry_once_also_where_several_have_one_time() {
        let times = [9, 7, 7, 7, 7, 7, 4, 4, 1];
        for limit in 1..=times.len() {
            let (mut found, mut before) = (Vec::new(), Timestamp::MAX);
            loop {
                let read = |max| {
                    let all = times.into_iter().map(Timestamp::from_secs);
                    Ok::<_, Infallible>(all.filter(|at| *at < before).take(max).collect())
                };
                let Ok((items, next)) = page(limit, read, |at| *at);
                found.extend(items);
                let Some(next) = next else { break };
                before = next;
            }
            assert_eq!(found, times.map(Timestamp::from_secs), "pages of {limit}");
        }
    }
}
