//! Queries of the write-ahead journal: its rows, and its unposted tail.

use std::collections::HashMap;

use rusqlite::{Connection, Row, params};
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros, OperationId};

use super::columns::{each_row, hold};
use crate::engine::RowError;
use crate::entries::{Body, DecodeError, Entry, LedgerPart, Record, Seal};
use crate::rows::OpenHold;

/// The layout of an id: seven bits of node, twenty-two of run, thirty-four of commit.
const NODE: u32 = 56;
const EPOCH: u32 = 34;

/// The greatest run that fits.
pub(crate) const EPOCH_MAX: i64 = (1 << (NODE - EPOCH)) - 1;

/// The id of a commit's row: ascending within a node.
pub(crate) fn id(node: i64, epoch: i64, number: i64) -> i64 {
    assert!(
        (0..1 << 7).contains(&node)
            && (0..=EPOCH_MAX).contains(&epoch)
            && (0..1 << EPOCH).contains(&number),
        "commit {number} of node {node}, run {epoch} has no place in the journal"
    );
    node << NODE | epoch << EPOCH | number
}

/// The smallest and the greatest id of a node.
pub(crate) fn ids(node: i64) -> (i64, i64) {
    (node << NODE, node << NODE | ((1 << NODE) - 1))
}

/// Node, run and number of the commit with an id.
pub(crate) fn numbers(id: i64) -> (i64, i64, i64) {
    let epoch = id >> EPOCH & EPOCH_MAX;
    (id >> NODE, epoch, id & ((1 << EPOCH) - 1))
}

pub(crate) const INSERT: &str = "INSERT INTO journal (id, entries, sum_avail, sum_held, prev, hash, at, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

pub(crate) const ALL: &str =
    "SELECT body, id, entries, sum_avail, sum_held, prev, hash, at FROM journal ORDER BY id";

/// Every node's rows after its last posted one. They are in the order of the ids; the clause says so to avoid a sort.
pub(crate) const TAIL: &str = "SELECT j.body, j.id FROM nodes n JOIN journal j
     ON j.id BETWEEN max(n.posted + 1, n.id << 56) AND (n.id << 56 | 72057594037927935) ORDER BY n.id, j.id";

const POSTED: &str = "SELECT j.body, j.id FROM nodes n JOIN journal j ON j.id BETWEEN n.id << 56 AND n.posted ORDER BY n.id, j.id";

pub(crate) fn seal(row: &Row<'_>) -> Result<Seal, RowError> {
    let (node, epoch, number) = numbers(row.get(1)?);
    Ok(Seal {
        node,
        epoch,
        number,
        entries: row.get(2)?,
        sum_available: Micros::new(row.get(3)?),
        sum_held: Micros::new(row.get(4)?),
        previous: row.get(5)?,
        hash: row.get(6)?,
        at: row.get(7).map(Timestamp::from_micros)?,
    })
}

/// The error for a damaged row `id`.
pub(crate) fn decode_error(id: i64) -> impl Fn(DecodeError) -> RowError {
    move |decode_error| {
        let (node, epoch, number) = numbers(id);
        RowError::Damaged(format!(
            "commit {number} of node {node}, run {epoch} {decode_error}"
        ))
    }
}

/// Receives each body, with the id of its row.
pub(crate) type EachBody<'a> = dyn FnMut(i64, &[u8]) -> Result<(), RowError> + 'a;

/// Visits the bodies that a query selects, whose first columns are body and id.
pub(crate) fn each_body(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    each: &mut EachBody<'_>,
) -> Result<(), RowError> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    while let Some(row) = rows.next()? {
        each(row.get(1)?, row.get_ref(0)?.as_blob()?)?;
    }
    Ok(())
}

fn each_record(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    each: &mut dyn FnMut(i64, Record<'_>) -> Result<(), DecodeError>,
) -> Result<(), RowError> {
    each_body(connection, sql, params, &mut |id, body| {
        let body = Body::read(body).map_err(decode_error(id))?;
        body.records()
            .try_for_each(|record| each(id, record?))
            .map_err(decode_error(id))
    })
}

/// Visits every unposted record, in commit order, with the id of its row.
pub(crate) fn each_unposted(
    connection: &Connection,
    each: &mut dyn FnMut(i64, Record<'_>) -> Result<(), DecodeError>,
) -> Result<(), RowError> {
    each_record(connection, TAIL, [], each)
}

/// Visits every posted record.
pub(crate) fn each_posted(
    connection: &Connection,
    each: &mut dyn FnMut(Record<'_>) -> Result<(), DecodeError>,
) -> Result<(), RowError> {
    each_record(connection, POSTED, [], &mut |_, record| each(record))
}

/// Every part of one operation. Scans the whole journal: for an operator's query, not for a request.
pub(crate) fn of_operation(
    connection: &Connection,
    operation: OperationId,
) -> Result<Vec<LedgerPart>, RowError> {
    let mut found = Vec::new();
    each_record(
        connection,
        "SELECT body, id FROM journal ORDER BY id",
        [],
        &mut |_, record| {
            if record.operation() == operation {
                found.push(record.part()?);
            }
            Ok(())
        },
    )?;
    Ok(found)
}

/// What entries add to an account's stored fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BalanceDelta {
    pub(crate) available: i64,
    pub(crate) held: i64,
    /// The time of the last of them.
    pub(crate) at: Timestamp,
}

impl BalanceDelta {
    pub(crate) fn add(&mut self, entry: &Entry) {
        // The order of addition differs from that of the decisions; the sum is in range even if partial sums are not.
        self.available = self.available.wrapping_add(entry.d_available.get());
        self.held = self.held.wrapping_add(entry.d_held.get());
        self.at = self.at.max(entry.at);
    }
}

/// The unposted changes of one account, or of all.
pub(crate) fn unposted_deltas(
    connection: &Connection,
    only: Option<AccountId>,
) -> Result<HashMap<AccountId, BalanceDelta>, RowError> {
    let mut deltas: HashMap<AccountId, BalanceDelta> = HashMap::new();
    each_unposted(connection, &mut |_, record| {
        if only.is_some_and(|only| only != record.account()) {
            return Ok(());
        }
        if let Some(entry) = Entry::of(&record.part()?) {
            deltas.entry(entry.account).or_default().add(&entry);
        }
        Ok(())
    })?;
    Ok(deltas)
}

const HOLDS: &str =
    "SELECT id, account_id, amount, node_id, epoch, created_at, expires_at FROM holds";

/// Every open hold, in no order.
pub(crate) fn open_holds(
    connection: &Connection,
) -> Result<HashMap<OperationId, OpenHold>, RowError> {
    let mut open = posted_holds(connection)?;
    each_unposted(connection, &mut |id, record| {
        match record.part()? {
            LedgerPart::Hold {
                operation,
                account,
                amount,
                at,
                expires_at,
                ..
            } => {
                let (node, epoch, _) = numbers(id);
                let hold = OpenHold {
                    operation,
                    account,
                    amount,
                    node,
                    epoch,
                    created_at: at,
                    expires_at,
                };
                open.insert(operation, hold);
            }
            LedgerPart::Settle { operation, .. } | LedgerPart::Release { operation, .. } => {
                open.remove(&operation);
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(open)
}

/// The holds that were open when the last row was posted.
pub(crate) fn posted_holds(
    connection: &Connection,
) -> Result<HashMap<OperationId, OpenHold>, RowError> {
    let mut open = HashMap::new();
    each_row(connection, HOLDS, [], hold, &mut |hold| {
        open.insert(hold.operation, hold);
    })?;
    Ok(open)
}

/// The last seal's hash of a node, zero before the first.
pub(crate) fn last_hash(connection: &Connection, node: i64) -> Result<[u8; 32], RowError> {
    let (first, last) = ids(node);
    let mut hash = [0; 32];
    each_row(
        connection,
        "SELECT hash FROM journal WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT 1",
        params![first, last],
        |row| Ok(row.get(0)?),
        &mut |found| hash = found,
    )?;
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::super::{Options, file};
    use super::*;
    use crate::rows::RootSecret;

    #[test]
    fn posted_and_unposted_rows_are_read_without_a_sort() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options::new(Timestamp::from_micros(1), RootSecret([7; 32]));
        let path = folder.path().join("t.db");
        file::create_if_missing(&path, &options).expect("a store");
        let connection = file::connect(&path, &options).expect("it opens");
        //   the query    its query plan
        for (sql, way) in [
            (TAIL, "SEARCH j USING INTEGER PRIMARY KEY"),
            (POSTED, "SEARCH j USING INTEGER PRIMARY KEY"),
            (ALL, "SCAN journal"),
        ] {
            let plan: Vec<String> = connection
                .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
                .expect("a plan")
                .query_map([], |row| row.get(3))
                .and_then(Iterator::collect)
                .expect("its steps");
            assert!(plan.iter().any(|step| step.starts_with(way)), "{plan:#?}");
            let sorts = plan.iter().any(|step| step.contains("TEMP B-TREE"));
            assert!(!sorts, "`{sql}`: {plan:#?}");
        }
    }

    #[test]
    fn an_id_has_its_numbers_and_the_order_of_the_commits() {
        let mut last = i64::MIN;
        for key in [
            (1, 1, 1),
            (1, 1, (1 << 34) - 1),
            (1, 2, 0),
            (1, (1 << 22) - 1, 5),
            (127, 1, 1),
            (127, (1 << 22) - 1, (1 << 34) - 1),
        ] {
            let made = id(key.0, key.1, key.2);
            assert_eq!(numbers(made), key);
            assert!(made > last);
            let (first, greatest) = ids(key.0);
            assert!((first..=greatest).contains(&made));
            last = made;
        }
    }
}
