//! Rows of allotments, recalls and the order of changes.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use tollgate_clock::{Month, Timestamp};
use tollgate_money::{AccountId, CredentialId};

use super::id_lists;
use crate::allotment::{
    AllotmentRow, Budget, CapAllotmentRow, CapRow, KeyCap, KeySpending, LEFT, Recall, SPENT_BEFORE,
    SharedBalance,
};
use crate::codes::ChangeKind;
use crate::commit_id;
use crate::engine::{
    Balance, Dialect, EngineError, FeedBounds, RowError, Select, Sql, SqlRow, values,
};
use crate::store::ChangeRow;

/// Of balances of accounts: id, available, held, credit limit, and time. The limit is 0, since the limit applies to the shared balance: a
/// node decides by its own credit.
pub(crate) fn posted_balances_sql(node: usize, ids: &str) -> String {
    format!(
        "SELECT a.id, COALESCE(m.available, 0), COALESCE(m.held, 0), 0, COALESCE(m.at, a.updated_at)
        FROM accounts a LEFT JOIN allotments m ON m.account_id = a.id AND m.node_id = ?{node} WHERE a.id IN ({ids})"
    )
}

pub(crate) fn post_balances(
    connection: &dyn Sql,
    node: i64,
    balances: &[(AccountId, Balance)],
) -> Result<(), EngineError> {
    // A take or a booking has inserted the row of every account of which the node has credit. A row inserted here belongs to an account
    // without credit of the node. The row counts as having answered every recall: an earlier answer was an UPDATE that matched no row.
    let sql = "INSERT INTO allotments (account_id, node_id, available, held, at, recall) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
        ON CONFLICT (account_id, node_id) DO UPDATE SET available = excluded.available, held = excluded.held, at = excluded.at";
    connection.execute_rows(sql, &mut |run| {
        balances.iter().try_for_each(|(account, balance)| {
            run(values![
                account,
                node,
                balance.available,
                balance.held,
                balance.at,
                LEFT,
            ])
        })
    })
}

/// Visits the allotments of a node, as last posted.
pub(crate) fn of_node(
    connection: &dyn Sql,
    node: i64,
    each: &mut dyn FnMut(AllotmentRow),
) -> Result<(), RowError> {
    let sql = "SELECT account_id, available, held FROM allotments WHERE node_id = ?1 AND (available <> 0 OR held <> 0)";
    let read = |row: &dyn SqlRow| {
        Ok(AllotmentRow {
            account: row.get(0)?,
            available: row.get(1)?,
            held: row.get(2)?,
        })
    };
    connection.each(sql, values![node], read, each)
}

/// Visits the shared balances of accounts; an unknown account has no balance.
pub(crate) fn shared_balances(
    connection: &dyn Sql,
    accounts: &[AccountId],
    each: &mut dyn FnMut(AccountId, SharedBalance),
) -> Result<(), RowError> {
    id_lists::each(accounts, &mut |values, ids| {
        let sql = format!(
            "SELECT a.id, a.available, a.credit_limit, COALESCE(r.number, 0), COALESCE(r.need, 0), COALESCE(r.short_at, 0),
                CASE WHEN r.number IS NULL THEN 0 ELSE CAST(
                    (SELECT COALESCE(SUM(t.owed), 0) FROM top_ups t WHERE t.account_id = a.id)
                    + (SELECT COALESCE(SUM(p.owed), 0) FROM payments p WHERE p.account_id = a.id) AS BIGINT) END
            FROM accounts a LEFT JOIN recalls r ON r.account_id = a.id WHERE a.id IN ({ids})"
        );
        let read = |row: &dyn SqlRow| {
            let shared = SharedBalance {
                available: row.get(1)?,
                credit_limit: row.get(2)?,
                recall: Recall {
                    number: row.get(3)?,
                    need: row.get(4)?,
                    short_at: row.get(5)?,
                },
                owed: row.get(6)?,
            };
            Ok((row.get(0)?, shared))
        };
        connection.each(&sql, &values, read, &mut |(id, shared)| each(id, shared))
    })
}

/// Whether another node has not answered a recall of a budget.
pub(crate) fn is_recall_pending(
    connection: &dyn Sql,
    node: i64,
    budget: Budget,
    recall: i64,
) -> Result<bool, RowError> {
    match budget {
        Budget::Account(account) => connection.exists(
            "SELECT 1 FROM allotments WHERE account_id = ?1 AND node_id <> ?2 AND recall < ?3",
            values![account, node, recall],
        ),
        Budget::Cap(cap) => connection.exists(
            "SELECT 1 FROM cap_allotments WHERE credential_id = ?1 AND month = ?2 AND node_id <> ?3 AND recall < ?4",
            values![cap.credential, cap.month_number(), node, recall],
        ),
    }
}

/// The recall of a budget.
pub(crate) fn recall(connection: &dyn Sql, budget: Budget) -> Result<Recall, RowError> {
    let read = |row: &dyn SqlRow| {
        Ok(Recall {
            number: row.get(0)?,
            need: row.get(1)?,
            short_at: row.get(2)?,
        })
    };
    let found = match budget {
        Budget::Account(account) => connection.first(
            "SELECT number, need, short_at FROM recalls WHERE account_id = ?1",
            values![account],
            read,
        ),
        Budget::Cap(cap) => connection.first(
            "SELECT number, need, short_at FROM cap_recalls WHERE credential_id = ?1 AND month = ?2",
            values![cap.credential, cap.month_number()],
            read,
        ),
    };
    Ok(found?.unwrap_or_default())
}

fn last_change(connection: &dyn Sql) -> Result<i64, RowError> {
    connection.number("SELECT number FROM cluster WHERE id = 1", values![])
}

/// Visits the changes after a number, in the order of their commits, until `limit`.
pub(crate) fn changes(
    connection: &dyn Sql,
    after: i64,
    limit: usize,
    each: &mut dyn FnMut(ChangeRow),
) -> Result<FeedBounds, RowError> {
    // One statement, with one snapshot and one round trip: a removal is seen as a whole or not at all.
    let sql = "SELECT c.pruned, c.number, h.number, h.kind, h.subject FROM cluster c
        LEFT JOIN (SELECT number, kind, subject FROM changes WHERE number > ?1 ORDER BY number LIMIT ?2) h ON TRUE
        WHERE c.id = 1 ORDER BY h.number";
    let mut bounds = FeedBounds::default();
    connection.query(sql, values![after, limit], &mut |row| {
        bounds = FeedBounds {
            pruned: row.get(0)?,
            last: row.get(1)?,
        };
        if let Some(number) = row.get(2)? {
            each(ChangeRow {
                number,
                kind: row.get(3)?,
                subject: row.get(4)?,
            });
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(bounds)
}

/// Maximum number of changes removed at once: a longer removal would delay waiting commits.
const PRUNED_MAX: i64 = 4096;

/// Removes changes that every node has read. A running node reports the number of its last read change in its lease. A change needed by a
/// node without a report is kept; a starting node needs no earlier change. A node that misses a removed change stops (`postgres::feed`).
pub(crate) fn prune_changes(connection: &dyn Sql) -> Result<(), RowError> {
    if connection.dialect() == Dialect::Sqlite {
        return Ok(());
    }
    let sql = "SELECT CAST(least(MIN(c.number), MIN(l.feed)) AS BIGINT) FROM cluster c LEFT JOIN leases l ON l.node >= ?1";
    let read = connection.number(sql, values![commit_id::FIRST_OF_MANY])?;
    let sql = "SELECT number FROM changes WHERE number <= ?1 ORDER BY number LIMIT ?2";
    let mut last = None;
    connection.query(sql, values![read, PRUNED_MAX], &mut |row| {
        last = Some(row.get::<i64>(0)?);
        Ok(ControlFlow::Continue(()))
    })?;
    if let Some(last) = last {
        connection.write("UPDATE cluster SET pruned = ?1 WHERE id = 1", values![last])?;
        connection.write("DELETE FROM changes WHERE number <= ?1", values![last])?;
    }
    Ok(())
}

/// Writes a row of the feed of changes.
pub(crate) fn insert_change(
    connection: &dyn Sql,
    id: [u8; 16],
    at: Timestamp,
    kind: ChangeKind,
    subject: &[u8; 16],
    number: i64,
) -> Result<(), EngineError> {
    let sql = "INSERT INTO changes (id, at, kind, subject, number) VALUES (?1, ?2, ?3, ?4, ?5)";
    connection.write(sql, values![id, at, kind, subject, number])
}

/// The number of the next change of the cluster. The commit holds the lock on shared rows.
pub(crate) fn next_number(connection: &dyn Sql) -> Result<i64, RowError> {
    connection.write(
        "UPDATE cluster SET number = number + 1 WHERE id = 1",
        values![],
    )?;
    last_change(connection)
}

/// Visits the recalls in force of accounts that a node has not answered, and the recalls of all caps: budget and number.
pub(crate) fn recalls(
    connection: &dyn Sql,
    node: i64,
    each: &mut dyn FnMut(Budget, i64),
) -> Result<(), RowError> {
    let sql = "SELECT r.account_id, r.number FROM recalls r JOIN allotments m ON m.account_id = r.account_id AND m.node_id = ?1
        WHERE m.recall < r.number";
    let read = |row: &dyn SqlRow| Ok((Budget::Account(row.get(0)?), row.get(1)?));
    connection.each(sql, values![node], read, &mut |(budget, number)| {
        each(budget, number)
    })?;
    let sql = "SELECT credential_id, month, number FROM cap_recalls";
    let read = |row: &dyn SqlRow| {
        let cap = KeyCap::from_numbers(row.get(0)?, row.get(1)?);
        Ok((Budget::Cap(cap), row.get(2)?))
    };
    connection.each(sql, values![], read, &mut |(budget, number)| {
        each(budget, number)
    })
}

/// Visits the caps of keys with a change that some node has not read, where other nodes have rows and the node has no row.
pub(crate) fn changed_caps_without(
    connection: &dyn Sql,
    node: i64,
    each: &mut dyn FnMut(KeyCap),
) -> Result<(), RowError> {
    let sql = "SELECT DISTINCT o.credential_id, o.month FROM changes c
        JOIN cap_allotments o ON o.credential_id = c.subject AND o.node_id = ?2
        LEFT JOIN cap_allotments m ON m.credential_id = o.credential_id AND m.month = o.month AND m.node_id = ?1
        WHERE c.kind = ?3 AND m.node_id IS NULL";
    let read = |row: &dyn SqlRow| Ok(KeyCap::from_numbers(row.get(0)?, row.get(1)?));
    let values = values![node, SPENT_BEFORE, ChangeKind::Credential];
    connection.each(sql, values, read, each)
}

/// Begins or changes the recall of a budget, or ends the recall with the number 0.
pub(crate) fn set_recall(
    connection: &dyn Sql,
    budget: Budget,
    recall: Recall,
) -> Result<(), EngineError> {
    let Recall {
        number,
        need,
        short_at,
    } = recall;
    match (budget, number) {
        (Budget::Account(account), 0) => connection.write(
            "DELETE FROM recalls WHERE account_id = ?1",
            values![account],
        ),
        (Budget::Account(account), _) => connection.write(
            "INSERT INTO recalls (account_id, number, need, short_at) VALUES (?1, ?2, ?3, ?4)
            ON CONFLICT (account_id) DO UPDATE SET number = excluded.number, need = excluded.need, short_at = excluded.short_at",
            values![account, number, need, short_at],
        ),
        (Budget::Cap(cap), 0) => connection.write(
            "DELETE FROM cap_recalls WHERE credential_id = ?1 AND month = ?2",
            values![cap.credential, cap.month_number()],
        ),
        (Budget::Cap(cap), _) => connection.write(
            "INSERT INTO cap_recalls (credential_id, month, number, need, short_at) VALUES (?1, ?2, ?3, ?4, ?5)
            ON CONFLICT (credential_id, month) DO UPDATE
                SET number = excluded.number, need = excluded.need, short_at = excluded.short_at",
            values![cap.credential, cap.month_number(), number, need, short_at],
        ),
    }
}

/// Adds to the shared balances of accounts, or takes from the balances.
pub(crate) fn move_shared(
    connection: &dyn Sql,
    moves: &BTreeMap<AccountId, i64>,
) -> Result<(), EngineError> {
    let sql = match connection.dialect() {
        Dialect::Sqlite => "UPDATE accounts SET available = available + ?2 WHERE id = ?1",
        Dialect::Postgres => {
            "WITH v (id, moved) AS (VALUES (CAST(?1 AS BYTEA), CAST(?2 AS BIGINT)))
            UPDATE accounts AS a SET available = a.available + v.moved FROM v WHERE a.id = v.id"
        }
    };
    connection.execute_rows(sql, &mut |run| {
        let mut moves = moves.iter();
        moves.try_for_each(|(account, by)| run(values![account, by]))
    })
}

/// Inserts allotments of a node, or reopens empty allotments, with the recall known to the node.
pub(crate) fn open_allotments(
    connection: &dyn Sql,
    node: i64,
    opened: &BTreeMap<AccountId, i64>,
) -> Result<(), EngineError> {
    let sql = format!(
        "INSERT INTO allotments (account_id, node_id, recall) VALUES (?1, ?2, ?3)
        ON CONFLICT (account_id, node_id) DO UPDATE
            SET recall = CASE WHEN allotments.recall = {LEFT} OR excluded.recall = 0 THEN excluded.recall ELSE allotments.recall END"
    );
    connection.execute_rows(&sql, &mut |run| {
        let mut opened = opened.iter();
        opened.try_for_each(|(account, recall)| run(values![account, node, recall]))
    })
}

/// Records the answers of a node to recalls of accounts, up to a number per account.
pub(crate) fn answer_recalls(
    connection: &dyn Sql,
    node: i64,
    answers: &BTreeMap<AccountId, i64>,
) -> Result<(), EngineError> {
    let sql = match connection.dialect() {
        Dialect::Sqlite => {
            "UPDATE allotments SET recall = ?3 WHERE account_id = ?1 AND node_id = ?2 AND recall < ?3"
        }
        Dialect::Postgres => {
            "WITH v (account, node, recall) AS (VALUES (CAST(?1 AS BYTEA), CAST(?2 AS BIGINT), CAST(?3 AS BIGINT)))
            UPDATE allotments AS m SET recall = v.recall
            FROM v WHERE m.account_id = v.account AND m.node_id = v.node AND m.recall < v.recall"
        }
    };
    connection.execute_rows(sql, &mut |run| {
        let mut answers = answers.iter();
        answers.try_for_each(|(account, number)| run(values![account, node, number]))
    })
}

/// Records the answer of a node to recalls of a cap up to a number.
pub(crate) fn answer_cap_recall(
    connection: &dyn Sql,
    node: i64,
    cap: KeyCap,
    number: i64,
) -> Result<(), EngineError> {
    let sql = "UPDATE cap_allotments SET recall = ?4 WHERE credential_id = ?1 AND month = ?2 AND node_id = ?3 AND recall < ?4";
    let month = cap.month_number();
    let values = values![cap.credential, month, node, number];
    connection.write(sql, values)
}

/// Answers every recall of every budget for a node.
pub(crate) fn leave(connection: &dyn Sql, node: i64) -> Result<(), EngineError> {
    for sql in [
        "UPDATE allotments SET recall = ?2 WHERE node_id = ?1 AND recall < ?2",
        "UPDATE cap_allotments SET recall = ?2 WHERE node_id = ?1 AND recall < ?2",
    ] {
        connection.write(sql, values![node, LEFT])?;
    }
    Ok(())
}

/// Visits a node's parts of caps, as of the last posting.
pub(crate) fn caps_of_node(
    connection: &dyn Sql,
    node: i64,
    each: &mut dyn FnMut(CapAllotmentRow),
) -> Result<(), RowError> {
    let sql = "SELECT credential_id, month, granted - spent FROM cap_allotments WHERE node_id = ?1";
    let read = |row: &dyn SqlRow| {
        Ok(CapAllotmentRow {
            cap: KeyCap::from_numbers(row.get(0)?, row.get(1)?),
            left: row.get(2)?,
        })
    };
    connection.each(sql, values![node], read, each)
}

/// The rows of a cap.
pub(crate) fn cap_rows(connection: &dyn Sql, cap: KeyCap) -> Result<Vec<CapRow>, RowError> {
    let sql = "SELECT node_id, granted, spent FROM cap_allotments WHERE credential_id = ?1 AND month = ?2 ORDER BY node_id";
    connection.all(sql, values![cap.credential, cap.month_number()], |row| {
        Ok(CapRow {
            node: row.get(0)?,
            granted: row.get(1)?,
            spent: row.get(2)?,
        })
    })
}

/// The months in which nodes have parts of the monthly cap of a key.
pub(crate) fn cap_months(
    connection: &dyn Sql,
    credential: CredentialId,
) -> Result<Vec<Month>, RowError> {
    let sql = "SELECT DISTINCT month FROM cap_allotments WHERE credential_id = ?1 AND month > 0 ORDER BY month";
    connection.all(sql, values![credential], |row| {
        row.get(0).map(Month::from_number)
    })
}

/// Inserts a node's row of a cap. Deletes the key's rows of earlier months, except the previous month.
pub(crate) fn insert_cap_row(
    connection: &dyn Sql,
    node: i64,
    cap: KeyCap,
    granted: i64,
    spent: i64,
    recall: i64,
) -> Result<(), EngineError> {
    let month = cap.month_number();
    // Not where a node has a part: this node's clock may be ahead by months, and the other nodes' spending of their parts has to be
    // counted.
    let sql = "DELETE FROM cap_allotments WHERE credential_id = ?1 AND month > 0 AND month < ?2 - 1 AND NOT EXISTS
        (SELECT 1 FROM cap_allotments o WHERE o.credential_id = ?1 AND o.month = cap_allotments.month AND o.granted <> o.spent)";
    connection.write(sql, values![cap.credential, month])?;
    let sql = "DELETE FROM cap_recalls WHERE credential_id = ?1 AND month > 0 AND month < ?2 - 1 AND NOT EXISTS
        (SELECT 1 FROM cap_allotments o WHERE o.credential_id = ?1 AND o.month = cap_recalls.month)";
    connection.write(sql, values![cap.credential, month])?;
    let sql = "INSERT INTO cap_allotments (credential_id, month, node_id, granted, spent, recall) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let values = values![cap.credential, month, node, granted, spent, recall];
    connection.write(sql, values)
}

/// Reopens a node's empty row of a cap, as [`open_allotments`].
pub(crate) fn open_cap_row(
    connection: &dyn Sql,
    node: i64,
    cap: KeyCap,
    recall: i64,
) -> Result<(), EngineError> {
    let sql = "UPDATE cap_allotments SET recall = ?4 WHERE credential_id = ?1 AND month = ?2 AND node_id = ?3 AND recall = ?5";
    let month = cap.month_number();
    let values = values![cap.credential, month, node, recall, LEFT];
    connection.write(sql, values)
}

const GRANT_CAP: &str = "UPDATE cap_allotments SET granted = granted + ?4 WHERE credential_id = ?1 AND month = ?2 AND node_id = ?3";

/// Adds to a node's grant of a cap, where the node has a row.
pub(crate) fn grant_cap(
    connection: &dyn Sql,
    node: i64,
    cap: KeyCap,
    by: i64,
) -> Result<(), EngineError> {
    let month = cap.month_number();
    connection.write(GRANT_CAP, values![cap.credential, month, node, by])
}

/// Adds to a node's grant of a cap; `false` where the node has no row.
pub(crate) fn try_grant_cap(
    connection: &dyn Sql,
    node: i64,
    cap: KeyCap,
    by: i64,
) -> Result<bool, EngineError> {
    let month = cap.month_number();
    let values = values![cap.credential, month, node, by];
    connection.execute(GRANT_CAP, values).map(|rows| rows > 0)
}

/// Adds charges of keys to their node's spending of caps.
pub(crate) fn spend_caps(
    connection: &dyn Sql,
    node: i64,
    spent: &KeySpending,
) -> Result<(), EngineError> {
    let sql = "UPDATE cap_allotments SET spent = spent + ?4 WHERE credential_id = ?1 AND month IN (0, ?2) AND node_id = ?3";
    connection.execute_each(sql, &mut |run| {
        let mut spent = spent.iter().filter(|(_, sum)| **sum != 0);
        spent.try_for_each(|((credential, month), sum)| {
            run(values![credential, month.number(), node, sum])
        })
    })?;
    Ok(())
}

/// Removes all rows of caps, before a lone node begins: a lone node counts by itself.
pub(crate) fn remove_caps(connection: &dyn Sql) -> Result<(), EngineError> {
    for sql in ["DELETE FROM cap_allotments", "DELETE FROM cap_recalls"] {
        connection.write(sql, values![])?;
    }
    Ok(())
}
