//! The writing connection: the transaction of a commit with the fence inside, and the outcome of a commit whose connection was lost.
//!
//! A commit of ledger parts alone is one statement. The statement inserts the journal row only after the preceding row and in the node's
//! own epoch. After a lost connection the writer sends the statement again: the statement inserts the row or finds the row. Any other
//! commit is a transaction. The transaction begins with the fence and with the transaction's number; the fence locks the node's row.
//! After a lost `COMMIT` the writer locks the node's row exclusively and reads the recorded number. The lock waits until the server has
//! ended the lost transaction. If the number is missing, the writer records a later number, so that a late copy of the lost transaction
//! fails (`lost`). The writer then runs the transaction again under a new number, from the kept statements; their results have to be
//! equal.
//!
//! An error of the server before `COMMIT` is a refusal: no row of the transaction is durable. An error of `COMMIT` leaves the outcome
//! open, like a lost connection. After an error that passes (`Fault::passes`), the writer retries on a new connection with backoff
//! (`attempts`).
//!
//! Commits of one statement and transactions without reads are pipelined: sent without a wait for earlier commits (`sent`). Every other
//! exchange with the server first reads the results of the pipelined commits.

mod attempts;
mod lost;
mod sent;
mod session;

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use self::attempts::Attempts;
use self::sent::SentCommits;
pub(super) use self::session::set_idle_limit;
use self::session::set_up;
use super::failure::{self, retry_login};
use super::lease;
use crate::commit_id;
use crate::engine::{
    Dialect, EachRow, EngineError, Fault, Feed, RowError, Select as _, Sql, Value, values,
};
use crate::entries::Seal;
use crate::outage::Outage;
use tollgate_postgres::RowValues;
use tollgate_postgres::ServerError;
use tollgate_postgres::{Connection, Sent, Target, is_select, refuse_nul};
use tollgate_postgres::{Expected, NothingChanged};

/// Begins a transaction: the fence, and the transaction's number. The number may not be null. So the statement fails if the node has
/// another epoch, or if the transaction was already made and the server received a late copy. `COMMIT` is sent with the transaction.
const FENCE: &str = "UPDATE node_marks
    SET commits = CASE WHEN commits < ?3 THEN (SELECT CAST(?3 AS BIGINT) FROM nodes WHERE id = ?1 AND epoch = ?2 FOR SHARE) END WHERE id = ?1";

/// Ends a transaction with a journal row. Fails like [`FENCE`] without the row.
const CHECK_ROW: &str = "UPDATE node_marks
    SET commits = (SELECT CAST(?2 AS BIGINT) FROM journal WHERE id = ?3 AND hash = ?4) WHERE id = ?1";

/// Inserts a journal row in this epoch after the preceding row.
const INSERT_COMMIT: &str = "WITH f AS (SELECT 1 FROM nodes WHERE id = ?1 AND epoch = ?2 FOR SHARE),
        p AS (SELECT 1 FROM journal WHERE id = ?3 AND hash = ?4)
    INSERT INTO journal (id, entries, sum_avail, sum_held, prev, hash, at, body)
    SELECT CAST(?5 AS BIGINT), CAST(?6 AS BIGINT), CAST(?7 AS BIGINT), CAST(?8 AS BIGINT), CAST(?4 AS BYTEA), CAST(?9 AS BYTEA),
        CAST(?10 AS BIGINT), CAST(?11 AS BYTEA) FROM f, p";

/// Like [`INSERT_COMMIT`], for the first row of a node.
const INSERT_FIRST_COMMIT: &str = "WITH f AS (SELECT 1 FROM nodes WHERE id = ?1 AND epoch = ?2 FOR SHARE),
        p AS (SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM journal WHERE id BETWEEN ?3 AND ?12))
    INSERT INTO journal (id, entries, sum_avail, sum_held, prev, hash, at, body)
    SELECT CAST(?5 AS BIGINT), CAST(?6 AS BIGINT), CAST(?7 AS BIGINT), CAST(?8 AS BIGINT), CAST(?4 AS BYTEA), CAST(?9 AS BYTEA),
        CAST(?10 AS BIGINT), CAST(?11 AS BYTEA) FROM f, p";

/// The writer's connection, replaced after a loss.
pub(super) struct Writer {
    target: Arc<Target>,
    outage: Arc<Outage>,
    node: i64,
    epoch: i64,
    link: RefCell<Option<Connection>>,
    transaction: RefCell<Transaction>,
    /// The last row of the node that is durable, or was sent: id and hash.
    last: Cell<Option<(i64, [u8; 32])>>,
    sent: SentCommits,
    /// Failed attempts at the commit under way, where no row is durable and the caller makes the commit from the beginning.
    again: RefCell<Attempts>,
    /// The number of the last transaction.
    commits: Cell<i64>,
}

/// The open commit.
#[derive(Default)]
struct Transaction {
    /// `BEGIN` and the fence were sent.
    is_begun: bool,
    /// No statement is sent before the end of the transaction, unless the result of a statement is needed.
    is_deferred: bool,
    /// The shared state is locked.
    is_locked: bool,
    /// The transaction's statements that change rows.
    written: Vec<Written>,
    /// The journal row, until the row is sent.
    row: Option<JournalRow>,
    /// The journal row that was sent: id and hash.
    inserted: Option<(i64, [u8; 32])>,
}

/// A kept statement.
struct Written {
    sent: Sent,
    /// The number of changed rows, where known.
    rows: Option<usize>,
    /// How the statement is queued where `rows` is `None`.
    queue: QueueEach,
}

/// A way to queue a statement with each of many lists of values.
type QueueEach = fn(&Connection, &str, &mut Feed<'_>) -> Result<(), EngineError>;

struct JournalRow {
    /// The preceding row, if any.
    before: Option<i64>,
    id: i64,
    seal: Seal,
    body: Box<[u8]>,
}

impl Writer {
    /// The writer of a run that has raised its epoch on this connection.
    pub(super) fn new(
        target: Arc<Target>,
        connection: Connection,
        (node, epoch): (i64, i64),
        outage: Arc<Outage>,
    ) -> Result<Writer, RowError> {
        set_up(&connection)?;
        let (first, greatest) = commit_id::range(node);
        let sql =
            "SELECT id, hash FROM journal WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT 1";
        let last = connection.first(sql, values![first, greatest], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
        let last: Option<(i64, _)> = last;
        outage.row_is_durable(last.map_or(first, |(id, _)| id));
        Ok(Writer {
            target,
            outage,
            node,
            epoch,
            link: RefCell::new(Some(connection)),
            transaction: RefCell::default(),
            last: Cell::new(last),
            sent: SentCommits::default(),
            again: RefCell::default(),
            commits: Cell::new(0),
        })
    }

    pub(super) fn begin(&self) {
        *self.transaction.borrow_mut() = Transaction::default();
    }

    /// Begins a transaction of statements whose results are not needed.
    pub(super) fn begin_deferred(&self) {
        *self.transaction.borrow_mut() = Transaction {
            is_deferred: true,
            ..Transaction::default()
        };
    }

    /// The result of a statement is needed: sends the earlier statements.
    fn end_deferral(&self) -> Result<(), EngineError> {
        if std::mem::take(&mut self.transaction.borrow_mut().is_deferred) {
            self.in_transaction(&mut |_| Ok(()))?;
        }
        Ok(())
    }

    /// Locks the shared state of a cluster, at the start of the transaction. A server ends the transaction of a node that sends no
    /// statement for [`IDLE_MAX`]: a paused node must not stop the other nodes.
    pub(super) fn lock_shared(&self) -> Result<(), EngineError> {
        if !self.is_one_of_many() || self.transaction.borrow().is_locked {
            return Ok(());
        }
        self.send_row()?;
        let sql = "SELECT number FROM cluster WHERE id = 1 FOR UPDATE";
        self.write_each(sql, &mut |run| run(&[]), Connection::queue_each)?;
        self.transaction.borrow_mut().is_locked = true;
        Ok(())
    }

    fn is_one_of_many(&self) -> bool {
        commit_id::has_allotments(self.node)
    }

    pub(super) fn insert_commit(&self, id: i64, seal: &Seal, body: &[u8]) {
        self.transaction.borrow_mut().row = Some(JournalRow {
            before: self.last.get().map(|(id, _)| id),
            id,
            seal: seal.clone(),
            body: body.into(),
        });
    }

    /// Commits; returns only when the outcome is known.
    pub(super) fn commit(&self) -> Result<(), EngineError> {
        self.end_deferral()?;
        if !self.transaction.borrow().is_begun {
            let row = self.transaction.borrow_mut().row.take();
            let Some(row) = row else { return Ok(()) };
            self.insert_alone(&row)?;
            self.set_durable((row.id, row.seal.hash));
            return Ok(());
        }
        self.send_row()?;
        let inserted = self.transaction.borrow().inserted;
        if let Some((id, hash)) = inserted {
            self.in_transaction(&mut |link| {
                let number = self.commits.get();
                let values = values![self.node, number, id, hash];
                link.queue(CHECK_ROW, values.iter().copied(), Expected::Change)
            })?;
        }
        let mut sent = None;
        let mut last = None;
        let is_done = self.reconnecting(&mut |link| {
            if let Some(number) = sent {
                if self.is_committed(link, number)? {
                    return Ok(true);
                }
                let is_refused =
                    (last.as_ref()).is_some_and(|it: &EngineError| it.fault == Fault::Value);
                if is_refused || self.is_one_of_many() {
                    return Ok(false);
                }
                self.run_again(link)?;
            }
            sent = Some(self.commits.get());
            let committed = link.send("COMMIT", [].into_iter(), Expected::Commit);
            let Err(error) = committed.and_then(|()| link.result_of_sent()) else {
                return Ok(true);
            };
            last = Some(failure::copy(&error));
            Err(match error.fault {
                // Unless the transaction is durable; the outcome has to be known first.
                Fault::Value => EngineError {
                    fault: Fault::Lost,
                    ..error
                },
                _ => error,
            })
        });
        let is_done = is_done.map_err(|error| self.explained(error))?;
        let transaction = std::mem::take(&mut *self.transaction.borrow_mut());
        if let (false, Some(error)) = (is_done, last) {
            return Err(self.begin_again(error));
        }
        if let Some(row) = transaction.inserted {
            self.set_durable(row);
        }
        self.is_durable();
        Ok(())
    }

    /// The commit under way is durable.
    fn is_durable(&self) {
        if self.again.take().have_paused() {
            tracing::info!(database = %self.target.url, "database accepts commits again");
        }
    }

    /// The error for a commit without durable rows. If the error passes, the caller retries the commit, after a pause here.
    fn begin_again(&self, error: EngineError) -> EngineError {
        if !error.fault.passes() {
            return error;
        }
        let paused = self.again.borrow_mut().pause_after_many(self, error);
        match paused {
            Ok(cause) => EngineError {
                fault: Fault::Conflict,
                source: cause.source,
            },
            Err(error) => error,
        }
    }

    pub(super) fn rollback(&self) {
        let transaction = std::mem::take(&mut *self.transaction.borrow_mut());
        if transaction.is_begun {
            let link = self.link.borrow();
            // With queued statements, the server would skip `ROLLBACK` after an error.
            let undone = link.as_ref().map(|link| {
                let _ = link.complete();
                link.run("ROLLBACK", &[])
            });
            let is_lost = !matches!(undone, Some(Ok(_)));
            drop(link);
            if is_lost {
                *self.link.borrow_mut() = None;
            }
        }
    }

    /// Ends the lease of the run. With `hands_over`, only the next run of the node may take the node.
    pub(super) fn release_lease(&self, hands_over: bool) {
        let released = self.reconnecting(&mut |link| match hands_over {
            true => lease::hand_over(link, self.node, self.epoch),
            false => lease::release(link, self.node, self.epoch),
        });
        if let Err(error) = released {
            tracing::warn!(error = %error.source, "releasing the node's lease failed; the next start waits for its end");
        }
    }

    /// Runs `act` within the transaction. Begins the transaction first, or runs the transaction again after a lost connection.
    fn in_transaction<T>(
        &self,
        act: &mut dyn FnMut(&Connection) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let mut is_open = std::mem::replace(&mut self.transaction.borrow_mut().is_begun, true);
        if is_open && self.is_one_of_many() {
            let done = act(self.link.borrow().as_ref().expect("it is open"));
            let done = done.map_err(|error| self.begin_again_after(error));
            return done.map_err(|error| self.explained(error));
        }
        let done = self.reconnecting(&mut |link| {
            // A new connection has no open transaction.
            if !std::mem::replace(&mut is_open, false) {
                self.run_again(link)?;
            }
            act(link)
        });
        done.map_err(|error| self.explained(error))
    }

    /// Explains the error of a fence.
    fn explained(&self, error: EngineError) -> EngineError {
        let is_of_fence = error.source.is::<NothingChanged>() || error.source.is::<ServerError>();
        match error.fault == Fault::Fenced && is_of_fence {
            true => self.fenced(),
            false => error,
        }
    }

    /// Runs `act`, and retries after each lost connection.
    fn reconnecting<T>(
        &self,
        act: &mut dyn FnMut(&Connection) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        self.finish_sent()?;
        let mut attempts = Attempts::default();
        loop {
            let done = self.connect().and_then(|()| {
                let link = self.link.borrow();
                act(link.as_ref().expect("connected above"))
            });
            let error = match done {
                Err(error) if error.fault.passes() => error,
                done => {
                    if attempts.have_paused() && done.is_ok() {
                        tracing::info!(database = %self.target.url, "connected to the database again");
                    }
                    return done;
                }
            };
            // After a conflict too: no part of the transaction stays on a new connection. The connection is in use while the rows of a
            // query are visited.
            match self.link.try_borrow_mut() {
                Ok(mut link) => *link = None,
                Err(_) => return Err(error),
            }
            attempts.pause_after(self, error)?;
        }
    }

    fn connect(&self) -> Result<(), EngineError> {
        if self.link.borrow().is_none() {
            let connection = Connection::reopen(&self.target).map_err(retry_login)?;
            set_up(&connection)?;
            *self.link.borrow_mut() = Some(connection);
        }
        Ok(())
    }

    /// Begins the transaction with its fence.
    fn begin_on(&self, link: &Connection, number: i64) -> Result<(), EngineError> {
        link.queue("BEGIN", [].into_iter(), Expected::Success)?;
        let values = values![self.node, self.epoch, number];
        link.queue(FENCE, values.iter().copied(), Expected::Change)
    }

    /// Checks that the run still has its epoch.
    pub(super) fn check_fence(&self) -> Result<(), EngineError> {
        let sql = "SELECT 1 FROM nodes WHERE id = ?1 AND epoch = ?2";
        let is_own = self.reconnecting(&mut |link| {
            let found = link.exists(sql, values![self.node, self.epoch]);
            found.map_err(engine_error)
        })?;
        match is_own {
            true => Ok(()),
            false => Err(self.fenced()),
        }
    }

    /// Sends the journal row within the transaction.
    fn send_row(&self) -> Result<(), EngineError> {
        let row = self.transaction.borrow_mut().row.take();
        let Some(row) = row else { return Ok(()) };
        self.with_row(&row, |sql, values| {
            self.in_transaction(&mut |link| {
                link.queue(sql, values.iter().copied(), Expected::Change)
            })?;
            self.keep(sql, || RowValues::of(values), Some(1));
            Ok::<_, EngineError>(())
        })?;
        self.transaction.borrow_mut().inserted = Some((row.id, row.seal.hash));
        Ok(())
    }

    /// Inserts the journal row as a separate commit, or finds the row of an earlier attempt.
    fn insert_alone(&self, row: &JournalRow) -> Result<(), EngineError> {
        self.reconnecting(&mut |link| {
            match self.with_row(row, |sql, values| link.execute(sql, values)) {
                Ok(1) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.fault == Fault::Key => {}
                Err(error) => return Err(error),
            }
            let sql = "SELECT hash FROM journal WHERE id = ?1";
            let found = link.first(sql, values![row.id], |found| found.get::<[u8; 32]>(0));
            match found.map_err(engine_error)? {
                Some(hash) if hash == row.seal.hash => Ok(()),
                _ => Err(self.fenced()),
            }
        })
    }

    /// Runs the statement that inserts the journal row, with the row's values.
    fn with_row<T>(&self, row: &JournalRow, run: impl FnOnce(&str, &[Value<'_>]) -> T) -> T {
        let (first, last) = commit_id::range(self.node);
        let (sql, before, count) = match row.before {
            Some(id) => (INSERT_COMMIT, id, 11),
            None => (INSERT_FIRST_COMMIT, first, 12),
        };
        let (seal, body) = (&row.seal, &*row.body);
        let values: &[Value<'_>] = values![
            self.node,
            self.epoch,
            before,
            seal.previous,
            row.id,
            seal.entries,
            seal.sum_available,
            seal.sum_held,
            seal.hash,
            seal.at,
            body,
            last,
        ];
        run(sql, &values[..count])
    }

    fn set_durable(&self, row: (i64, [u8; 32])) {
        self.last.set(Some(row));
        self.outage.row_is_durable(row.0);
        self.is_durable();
    }

    fn fenced(&self) -> EngineError {
        EngineError {
            fault: Fault::Fenced,
            source: format!(
                "node {} is not in epoch {} any more, or its last journal row is another one",
                self.node, self.epoch
            )
            .into(),
        }
    }

    /// Keeps a statement, if the transaction would be run again after a loss.
    fn keep(&self, sql: &str, values: impl FnOnce() -> RowValues, rows: Option<usize>) {
        if !self.is_one_of_many() {
            let kept = Written {
                sent: Sent::new(sql, values()),
                rows,
                queue: Connection::queue_each,
            };
            self.transaction.borrow_mut().written.push(kept);
        }
    }

    /// Queues a statement with each of many lists of values, by `queue`. Keeps the statement in a deferred transaction.
    fn write_each(
        &self,
        sql: &str,
        feed: &mut Feed<'_>,
        queue: QueueEach,
    ) -> Result<(), EngineError> {
        // The values are kept first, because `feed` runs once.
        let mut rows = RowValues::default();
        feed(&mut |values| {
            refuse_nul(values)?;
            rows.push(values);
            Ok(())
        })?;
        if rows.is_empty() {
            return Ok(());
        }
        let written = Written {
            sent: Sent::new(sql, rows),
            rows: None,
            queue,
        };
        if !self.transaction.borrow().is_deferred {
            self.send_row()?;
            let sent = &written.sent;
            self.in_transaction(&mut |link| queue(link, sql, &mut |run| sent.each(run)))?;
            if self.is_one_of_many() {
                return Ok(());
            }
        }
        self.transaction.borrow_mut().written.push(written);
        Ok(())
    }
}

impl Sql for Writer {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<usize, EngineError> {
        refuse_nul(values)?;
        self.end_deferral()?;
        self.send_row()?;
        let rows = self.in_transaction(&mut |link| link.execute(sql, values))?;
        self.keep(sql, || RowValues::of(values), Some(rows));
        Ok(rows)
    }

    fn execute_each(&self, sql: &str, feed: &mut Feed<'_>) -> Result<(), EngineError> {
        self.write_each(sql, feed, Connection::queue_each)
    }

    fn execute_rows(&self, sql: &str, feed: &mut Feed<'_>) -> Result<(), EngineError> {
        self.write_each(sql, feed, Connection::queue_rows)
    }

    /// Reads outside of a transaction while the commit has written no row. Most reads return few rows, and most of these commits then
    /// write only the journal.
    fn query(
        &self,
        sql: &str,
        values: &[Value<'_>],
        each: &mut EachRow<'_>,
    ) -> Result<(), RowError> {
        let is_select = is_select(sql);
        if !is_select {
            self.end_deferral()?;
        }
        let is_within = self.transaction.borrow().is_begun || !is_select;
        if is_within {
            self.send_row()?;
        }
        let mut visited = 0;
        let mut failed = Ok(());
        let mut act = |link: &Connection| {
            let done = link.query(sql, values, &mut |row| {
                visited += 1;
                each(row)
            });
            match done {
                Ok(()) => Ok(()),
                // No row was visited, so the query can run again.
                Err(RowError::Engine(error)) if visited == 0 => Err(error),
                Err(error) => {
                    failed = Err(error);
                    Ok(())
                }
            }
        };
        match is_within {
            true => self.in_transaction(&mut act)?,
            false => self.reconnecting(&mut act)?,
        }
        failed.map_err(|error| match error {
            // Rows were visited, so the query cannot run again.
            RowError::Engine(error) => RowError::Engine(self.begin_again_after(error)),
            error => error,
        })?;
        if !is_select {
            self.keep(sql, || RowValues::of(values), None);
        }
        Ok(())
    }
}

pub(super) fn engine_error(error: RowError) -> EngineError {
    match error {
        RowError::Engine(error) => error,
        other => EngineError {
            fault: Fault::Corrupt,
            source: format!("{other:?}").into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use tollgate_postgres::DatabaseUrl;
    use tollgate_testing::{Certificate, Postgres};

    use super::super::failure::PROFILE;
    use super::session::{BY_KEYS, IDLE_MAX};
    use super::*;
    use crate::tables::allotment::posted_balances_sql;

    #[test]
    fn the_server_notices_that_the_other_end_of_a_writing_tcp_connection_is_gone() {
        let certificate = Certificate::for_names(&["localhost"]);
        let server = Postgres::start_with_tls(&certificate.cert_pem, &certificate.key_pem);
        let url = format!("postgres://gateway@127.0.0.1:{}/postgres", server.port());
        let url = DatabaseUrl::parse(&url).expect("an address");
        let target = Target::new(url, Some(b"secret word".as_slice()), &PROFILE).expect("TLS");
        let connection = Connection::open(&target).expect("it opens");
        set_up(&connection).expect("settings");
        for (setting, value) in [
            ("idle_in_transaction_session_timeout", IDLE_MAX),
            ("tcp_keepalives_idle", "5"),
            ("tcp_keepalives_interval", "1"),
            ("tcp_keepalives_count", "5"),
            ("tcp_user_timeout", "10000"),
        ] {
            let show = format!("SHOW {setting}");
            let found = connection.first(&show, &[], |row| row.get::<String>(0));
            let found = found.expect("a setting");
            assert_eq!(found.as_deref(), Some(value), "{setting}");
        }
    }

    /// A connection keeps a plan, and the rows come later.
    #[test]
    fn a_plan_that_is_made_for_few_rows_finds_them_by_their_keys() {
        let server = Postgres::shared();
        for rows in [
            "SELECT 1",
            "INSERT INTO allotments VALUES (1, 16), (1, 17), (2, 16); ANALYZE",
        ] {
            let url = server.database();
            let name = url.rsplit('/').next().expect("a name");
            server.run(
                name,
                &format!(
                    "CREATE TABLE accounts (id INT PRIMARY KEY, updated_at INT);
                     CREATE TABLE allotments (account_id INT, node_id INT, available INT, held INT, at INT, PRIMARY KEY (account_id, node_id))
                         WITH (autovacuum_enabled = false);
                     CREATE INDEX allotments_node ON allotments (node_id);
                     INSERT INTO accounts SELECT generate_series(1, 5000); ANALYZE accounts; {rows}"
                ),
            );
            let read = posted_balances_sql(9, "1, 2, 3, 4, 5, 6, 7, 8").replace("?9", "16");
            let plan = server.run(name, &format!("{BY_KEYS}; EXPLAIN {read}"));
            assert!(plan.contains("allotments_pkey"), "{rows}: {plan}");
            assert!(
                !plan.contains("JIT") && !plan.contains("Materialize"),
                "{rows}: {plan}"
            );
            let without = server.run(name, &format!("EXPLAIN {read}"));
            assert!(!without.contains("allotments_pkey"), "{rows}: {without}");
        }
    }
}
