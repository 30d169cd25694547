//! A connection: start-up and authentication, prepared statements, pipelined statements and portals.

use std::borrow::Cow;
use std::cell::{Cell, RefCell, RefMut};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postgres_protocol::message::backend::DataRowBody;
use postgres_protocol::message::frontend;
use rustls::ClientConfig;

use super::key_set::SpillingSet;
use super::row_values::RowValues;
use super::tls;
use super::url::DatabaseUrl;
use super::value::Row;
use super::wire::{End, Expected, Prepared, Wire, lost, unusable};
use crate::engine::{
    Dialect, EachRow, EngineError, Fault, Feed, KeySet, RowError, Run, Sql, Value,
};

/// Time limit of a wait for the server, unless a connection has another.
const WAIT: Duration = Duration::from_secs(30);

/// Rows that a portal returns at once, at first and at most. A read of 64 accounts is complete with the first: the server would not say so if it
/// was asked for as many.
const FETCH_MIN: i32 = 65;
const FETCH_MAX: i32 = 4096;

/// Statements that are sent before their results are read: both sides would wait for the other if neither read, and these results fit into the
/// buffers between them. The bytes are limited for memory; each time costs a round trip, for which commits wait.
const PIPELINE_MAX: usize = 256;
const PIPELINE_BYTES_MAX: usize = 1 << 20;

/// Rows that one statement writes at most, and their bytes: a statement costs the server several times what a row costs.
const ROWS_MAX: usize = 256;
const ROW_BYTES_MAX: usize = 64 << 10;

/// How a database is reached.
pub(super) struct Target {
    pub(super) url: DatabaseUrl,
    /// Of connections from now on.
    password: Mutex<Option<Arc<[u8]>>>,
    pub(super) tls: Option<Arc<ClientConfig>>,
}

impl Target {
    pub(super) fn new(url: DatabaseUrl, password: Option<&[u8]>) -> io::Result<Target> {
        Ok(Target {
            tls: tls::config(&url)?,
            url,
            password: Mutex::new(password.map(Arc::from)),
        })
    }

    pub(super) fn password(&self) -> Option<Arc<[u8]>> {
        let password = self.password.lock();
        password.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn replace_password(&self, new: Option<&[u8]>) {
        let password = self.password.lock();
        *password.unwrap_or_else(PoisonError::into_inner) = new.map(Arc::from);
    }
}

/// A connection that is ready for statements.
pub(super) struct Connection {
    wire: RefCell<Wire>,
    prepared: RefCell<HashMap<Box<str>, Arc<Prepared>>>,
    portals: Cell<u32>,
    keys: SpillingSet,
}

impl Connection {
    /// Connects and authenticates.
    pub(super) fn open(target: &Target) -> Result<Connection, EngineError> {
        let wire = Wire::start(target)?;
        wire.socket.limit(WAIT).map_err(lost)?;
        Ok(Connection {
            wire: RefCell::new(wire),
            prepared: RefCell::default(),
            portals: Cell::new(0),
            keys: SpillingSet::default(),
        })
    }

    /// Sets the time limit of each wait for the server.
    pub(super) fn limit(&self, limit: Duration) -> Result<(), EngineError> {
        self.wire()?.socket.limit(limit).map_err(lost)
    }

    /// Whether it can be used for an unrelated statement.
    pub(super) fn is_reusable(&self) -> bool {
        match self.wire.try_borrow() {
            Ok(wire) => !wire.is_broken && !wire.is_in_transaction() && !wire.socket.is_stale(),
            Err(_) => false,
        }
    }

    /// Runs a statement; returns its tag (`COMMIT`, `INSERT 0 1`).
    pub(super) fn run(&self, sql: &str, values: &[Value<'_>]) -> Result<String, EngineError> {
        let prepared = self.prepare(sql)?;
        let mut wire = self.wire()?;
        wire.bind("", &prepared, values.iter().copied())?;
        frontend::execute("", 0, &mut wire.out).map_err(unusable)?;
        wire.sync()?;
        let ended = wire.end(&mut |_| {});
        match wire.finish(ended)? {
            End::Complete(tag) => Ok(tag),
            End::Suspended => Err(wire.broken("a statement without a limit was suspended")),
        }
    }

    /// Adds a statement of a transaction to those that are sent together with the next one whose result is needed.
    pub(super) fn queue<'v>(
        &self,
        sql: &str,
        values: impl ExactSizeIterator<Item = Value<'v>>,
        expected: Expected,
    ) -> Result<(), EngineError> {
        let prepared = self.prepare(sql)?;
        let mut wire = self.wire()?;
        wire.bind("", &prepared, values)?;
        wire.queue(expected)?;
        match wire.queued() >= PIPELINE_MAX || wire.out.len() >= PIPELINE_BYTES_MAX {
            true => wire.complete(),
            false => Ok(()),
        }
    }

    /// [`queue`](Self::queue) for each list of values.
    pub(super) fn queue_each(&self, sql: &str, feed: &mut Feed<'_>) -> Result<(), EngineError> {
        feed(&mut |values| {
            refuse_nul(values)?;
            self.queue(sql, values.iter().copied(), Expected::Success)
        })
    }

    /// [`queue`](Self::queue) for statements that write up to [`ROWS_MAX`] rows each.
    pub(super) fn queue_rows(&self, sql: &str, feed: &mut Feed<'_>) -> Result<(), EngineError> {
        let mut rows = RowValues::default();
        feed(&mut |values| {
            refuse_nul(values)?;
            rows.push(values);
            if rows.len() >= ROWS_MAX || rows.size() >= ROW_BYTES_MAX {
                self.queue_row_values(sql, &rows)?;
                rows.clear();
            }
            Ok(())
        })?;
        self.queue_row_values(sql, &rows)
    }

    /// Queues a statement on all rows, by lengths that are powers of two: the server prepares no others.
    fn queue_row_values(&self, sql: &str, rows: &RowValues) -> Result<(), EngineError> {
        let mut begin = 0;
        while begin < rows.len() {
            let length = 1 << (rows.len() - begin).ilog2();
            let values = rows.of_rows(begin..begin + length);
            let sql = of_rows(sql, length, values.len() / length);
            self.queue(&sql, values, Expected::Success)?;
            begin += length;
        }
        Ok(())
    }

    /// Sends what is queued, and reads its results.
    pub(super) fn complete(&self) -> Result<(), EngineError> {
        self.wire()?.complete()
    }

    /// Runs several statements without parameters as one message, in one transaction unless they say otherwise.
    pub(super) fn run_all(&self, statements: &str) -> Result<(), EngineError> {
        let mut wire = self.wire()?;
        wire.complete()?;
        frontend::query(statements, &mut wire.out).map_err(unusable)?;
        wire.flush()?;
        wire.until_ready()
    }

    /// Takes all rows of a statement before the first of them is visited.
    fn collect(
        &self,
        prepared: &Prepared,
        values: &[Value<'_>],
    ) -> Result<Vec<DataRowBody>, EngineError> {
        let mut wire = self.wire()?;
        wire.bind("", prepared, values.iter().copied())?;
        frontend::execute("", 0, &mut wire.out).map_err(unusable)?;
        wire.sync()?;
        let mut rows = Vec::new();
        let ended = wire.end(&mut |row| rows.push(row));
        wire.finish(ended)?;
        Ok(rows)
    }

    /// Visits the rows of a query by a portal, which exists as long as the transaction: other statements may run while it is open.
    fn by_portal(
        &self,
        prepared: &Prepared,
        values: &[Value<'_>],
        each: &mut EachRow<'_>,
    ) -> Result<(), RowError> {
        let number = self.portals.get();
        self.portals.set(number.wrapping_add(1));
        let portal = format!("p{number}");
        let mut fetch = FETCH_MIN;
        let mut is_bound = false;
        loop {
            let mut rows = Vec::new();
            let end = {
                let mut wire = self.wire()?;
                if !is_bound {
                    wire.bind(&portal, prepared, values.iter().copied())?;
                    is_bound = true;
                }
                frontend::execute(&portal, fetch, &mut wire.out).map_err(unusable)?;
                wire.sync()?;
                let ended = wire.end(&mut |row| rows.push(row));
                wire.finish(ended)?
            };
            let visited = visit(&rows, prepared, each);
            let is_over = matches!(end, End::Complete(_))
                || !matches!(visited, Ok(ControlFlow::Continue(())));
            if is_over {
                // Sent with the next statement.
                frontend::close(b'P', &portal, &mut self.wire()?.out).map_err(unusable)?;
                return visited.map(|_| ());
            }
            fetch = fetch.saturating_mul(4).min(FETCH_MAX);
        }
    }

    /// The rows of a query outside of a transaction, if they are few; `None` when there are more.
    fn few(
        &self,
        prepared: &Prepared,
        values: &[Value<'_>],
    ) -> Result<Option<Vec<DataRowBody>>, EngineError> {
        let mut wire = self.wire()?;
        wire.bind("", prepared, values.iter().copied())?;
        frontend::execute("", FETCH_MIN, &mut wire.out).map_err(unusable)?;
        wire.sync()?;
        let mut rows = Vec::new();
        let ended = wire.end(&mut |row| rows.push(row));
        let is_all = matches!(wire.finish(ended)?, End::Complete(_));
        Ok(is_all.then_some(rows))
    }

    /// Visits the rows of a query in a transaction of its own, which portals need.
    fn in_own_transaction(
        &self,
        prepared: &Prepared,
        values: &[Value<'_>],
        each: &mut EachRow<'_>,
    ) -> Result<(), RowError> {
        self.run("BEGIN READ ONLY", &[])?;
        let done = self.by_portal(prepared, values, each);
        let ended = self.run("ROLLBACK", &[]);
        done?;
        ended?;
        Ok(())
    }

    fn prepare(&self, sql: &str) -> Result<Arc<Prepared>, EngineError> {
        if let Some(prepared) = self.prepared.borrow().get(sql) {
            return Ok(prepared.clone());
        }
        let name = format!("s{}", self.prepared.borrow().len());
        let mut wire = self.wire()?;
        frontend::parse(&name, &with_dollars(sql), [], &mut wire.out).map_err(unusable)?;
        frontend::describe(b'S', &name, &mut wire.out).map_err(unusable)?;
        wire.sync()?;
        let described = wire.description();
        let (parameters, columns) = wire.finish(described)?;
        let prepared = Arc::new(Prepared {
            name,
            parameters,
            columns,
        });
        self.prepared
            .borrow_mut()
            .insert(sql.into(), prepared.clone());
        Ok(prepared)
    }

    fn wire(&self) -> Result<RefMut<'_, Wire>, EngineError> {
        // Borrowed for one exchange: rows are visited after it.
        let wire = self.wire.borrow_mut();
        match wire.is_broken {
            false => Ok(wire),
            true => Err(lost(io::Error::from(io::ErrorKind::NotConnected))),
        }
    }
}

/// Visits rows that were received.
fn visit(
    rows: &[DataRowBody],
    prepared: &Prepared,
    each: &mut EachRow<'_>,
) -> Result<ControlFlow<()>, RowError> {
    for body in rows {
        if each(&Row::new(body, &prepared.columns)?)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

impl Sql for Connection {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<usize, EngineError> {
        refuse_nul(values)?;
        Ok(changed(&self.run(sql, values)?))
    }

    /// Sends many statements before it reads their results.
    fn execute_each(&self, sql: &str, feed: &mut Feed<'_>) -> Result<(), EngineError> {
        let queued = self.queue_each(sql, feed);
        self.complete()?;
        queued
    }

    /// Writes up to [`ROWS_MAX`] rows by one statement, and sends many statements before it reads their results.
    fn execute_rows(&self, sql: &str, feed: &mut Feed<'_>) -> Result<(), EngineError> {
        let queued = self.queue_rows(sql, feed);
        self.complete()?;
        queued
    }

    fn query(
        &self,
        sql: &str,
        values: &[Value<'_>],
        each: &mut EachRow<'_>,
    ) -> Result<(), RowError> {
        let is_select = is_select(sql);
        if let Err(error) = refuse_nul(values) {
            // No stored text has such a character.
            return if is_select { Ok(()) } else { Err(error.into()) };
        }
        let prepared = self.prepare(sql)?;
        if !is_select {
            let rows = self.collect(&prepared, values)?;
            return visit(&rows, &prepared, each).map(|_| ());
        }
        if self.wire()?.is_in_transaction() {
            return self.by_portal(&prepared, values, each);
        }
        match self.few(&prepared, values)? {
            Some(rows) => visit(&rows, &prepared, each).map(|_| ()),
            None => self.in_own_transaction(&prepared, values, each),
        }
    }
}

impl KeySet for Connection {
    fn begin_set(&self) -> Result<(), RowError> {
        self.keys.begin()
    }

    fn add_to_set(&self, key: &[u8]) -> Result<bool, RowError> {
        self.keys.add(key)
    }

    fn end_set(&self) -> Result<(), RowError> {
        self.keys.end();
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Ok(mut wire) = self.wire.try_borrow_mut()
            && !wire.is_broken
        {
            frontend::terminate(&mut wire.out);
            // The server notices the end of the connection too.
            let _ = wire.flush();
        }
    }
}

/// A statement with one row of values, with so many. The types of the first row are those of all.
fn of_rows(sql: &str, rows: usize, columns: usize) -> Cow<'_, str> {
    let Some(begin) = sql.find("VALUES (").filter(|_| rows > 1) else {
        return sql.into();
    };
    let mut depth = 0;
    let end = sql[begin..].find(|character| {
        depth += i32::from(character == '(') - i32::from(character == ')');
        character == ')' && depth == 0
    });
    let end = begin + end.expect("a list ends") + 1;
    let mut all = String::with_capacity(sql.len() + rows * columns * 6);
    all.push_str(&sql[..end]);
    for row in 1..rows {
        for column in 1..=columns {
            let before = if column == 1 { ", (" } else { ", " };
            let _ = write!(all, "{before}?{}", row * columns + column);
        }
        all.push(')');
    }
    all.push_str(&sql[end..]);
    all.into()
}

/// A statement that is kept, for a transaction that may have to be run again, with the values of each time it was run.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) sql: Box<str>,
    pub(super) rows: RowValues,
}

impl Sent {
    pub(super) fn new(sql: &str, rows: RowValues) -> Sent {
        Sent {
            sql: sql.into(),
            rows,
        }
    }

    /// Passes on the values of each time.
    pub(super) fn each(&self, run: &mut Run<'_>) -> Result<(), EngineError> {
        let mut values = Vec::new();
        (0..self.rows.len()).try_for_each(|row| {
            values.clear();
            values.extend(self.rows.of_rows(row..row + 1));
            run(&values)
        })
    }
}

/// Whether a statement only reads.
pub(super) fn is_select(sql: &str) -> bool {
    sql.trim_start().starts_with("SELECT")
}

/// The number of rows that a command's tag names last.
pub(super) fn changed(tag: &str) -> usize {
    let count = tag.rsplit(' ').next();
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// PostgreSQL stores no text with a NUL character.
pub(super) fn refuse_nul(values: &[Value<'_>]) -> Result<(), EngineError> {
    let has_nul = |value: &Value<'_>| matches!(value, Value::Text(text) if text.contains('\0'));
    match values.iter().any(has_nul) {
        false => Ok(()),
        true => Err(EngineError {
            fault: Fault::Unstorable,
            source: "a text contains a NUL character".into(),
        }),
    }
}

/// Parameters in the server's form: `$1` for `?1`.
fn with_dollars(sql: &str) -> String {
    let mut is_quoted = false;
    let dollar = |character| match character {
        '\'' => {
            is_quoted = !is_quoted;
            '\''
        }
        '?' if !is_quoted => '$',
        other => other,
    };
    sql.chars().map(dollar).collect()
}

#[cfg(test)]
mod tests {
    use tollgate_testing::Postgres;

    use super::*;
    use crate::engine::Select as _;

    #[test]
    fn parameters_are_written_in_the_servers_form_outside_of_texts() {
        let sql = "SELECT '?1', a FROM t WHERE b = ?1 AND c = ?12";
        assert_eq!(
            with_dollars(sql),
            "SELECT '?1', a FROM t WHERE b = $1 AND c = $12"
        );
    }

    fn connect(url: &str) -> Connection {
        let url = DatabaseUrl::parse(url).expect("an address");
        let target = Target::new(url, None).expect("no TLS");
        Connection::open(&target).expect("it opens")
    }

    #[test]
    fn commits_are_durable_where_the_default_of_the_database_says_otherwise() {
        let server = Postgres::shared();
        let url = server.database();
        let name = url.rsplit('/').next().expect("a name");
        let off = format!("ALTER DATABASE {name} SET synchronous_commit = off");
        server.run("postgres", &off);
        assert_eq!(server.run(name, "SHOW synchronous_commit"), "off");
        let own = connect(&url).first("SHOW synchronous_commit", &[], |row| row.get::<String>(0));
        assert_eq!(own.expect("a setting").as_deref(), Some("on"));
    }

    #[test]
    fn other_statements_run_while_the_rows_of_a_large_result_are_visited() {
        let connection = connect(&Postgres::shared().database());
        let many = "SELECT g FROM generate_series(1, 10000) g";
        for begin in [None, Some("BEGIN")] {
            if let Some(begin) = begin {
                connection.run(begin, &[]).expect("a transaction");
            }
            let mut sum = 0;
            let visited = connection.query(many, &[], &mut |row| {
                let number: i64 = row.get(0)?;
                sum += connection.number("SELECT ?1 * 2", &[Value::Integer(number)])?;
                Ok(ControlFlow::Continue(()))
            });
            visited.expect("a read");
            assert_eq!(sum, 10_000 * 10_001);
            // One that ends early leaves nothing behind.
            let first = connection.first(many, &[], |row| row.get::<i64>(0));
            assert_eq!(first.expect("a row"), Some(1));
            let last = connection.number("SELECT 7", &[]);
            assert_eq!(last.expect("a row"), 7);
        }
    }

    #[test]
    fn statements_that_are_sent_together_are_all_run_and_the_first_error_is_returned() {
        let connection = connect(&Postgres::shared().database());
        connection
            .run_all("CREATE TABLE t (id BIGINT PRIMARY KEY, body BYTEA NOT NULL)")
            .expect("a table");
        let insert = "INSERT INTO t (id, body) VALUES (?1, ?2)";
        // More than both sides buffer.
        let body = vec![7; 1000];
        let ids = |ids: std::ops::Range<i64>| {
            connection.execute_each(insert, &mut |run| {
                ids.clone()
                    .try_for_each(|id| run(&[Value::Integer(id), Value::Bytes(&body)]))
            })
        };
        ids(0..5000).expect("they are inserted");
        let count = || {
            connection
                .number("SELECT count(*) FROM t", &[])
                .expect("a count")
        };
        assert_eq!(count(), 5000);
        let error = ids(4990..5010).expect_err("some are there");
        assert_eq!(error.fault, Fault::Key);
        assert_eq!(
            count(),
            5000,
            "those that are sent together are one transaction"
        );
    }

    #[test]
    fn queued_statements_run_before_the_next_one_whose_result_says_that_they_failed() {
        let connection = connect(&Postgres::shared().database());
        connection
            .run_all("CREATE TABLE t (id BIGINT PRIMARY KEY)")
            .expect("a table");
        let queue = |sql: &str, expected| {
            let queued = connection.queue(sql, [].into_iter(), expected);
            queued.expect("it is not sent yet");
        };
        let count = || connection.number("SELECT count(*) FROM t", &[]);
        let rollback = || connection.run("ROLLBACK", &[]).expect("a transaction");
        // What is not prepared yet is not queued.
        for _ in 0..2 {
            queue("BEGIN", Expected::Success);
            queue(
                "INSERT INTO t SELECT generate_series(1, 100)",
                Expected::Change,
            );
            // More rows than are fetched at once: in the transaction that has not begun.
            let all = connection.all("SELECT id FROM t", &[], |row| row.get::<i64>(0));
            assert_eq!(all.expect("rows").len(), 100);
            assert_eq!(count().expect("a count"), 100, "it goes on");
            rollback();
        }

        queue("BEGIN", Expected::Success);
        for _ in 0..3 {
            queue("INSERT INTO t VALUES (1)", Expected::Success);
        }
        let Err(RowError::Engine(error)) = count() else {
            panic!("an earlier statement has failed");
        };
        assert_eq!(error.fault, Fault::Key);
        rollback();

        queue("BEGIN", Expected::Success);
        queue("DELETE FROM t", Expected::Change);
        let error = connection.complete().expect_err("it changes no row");
        assert_eq!(error.fault, Fault::Fenced);
        rollback();
        assert_eq!(count().expect("a count"), 0);
    }

    #[test]
    fn a_statement_on_one_row_becomes_one_on_many() {
        let one = "INSERT INTO t (a, b) VALUES (?1, ?2) ON CONFLICT (a) DO NOTHING";
        assert_eq!(of_rows(one, 1, 2), one);
        assert_eq!(
            of_rows(one, 3, 2),
            "INSERT INTO t (a, b) VALUES (?1, ?2), (?3, ?4), (?5, ?6) ON CONFLICT (a) DO NOTHING"
        );
        let one =
            "UPDATE t SET b = v.b FROM (VALUES (CAST(?1 AS BIGINT))) AS v (a) WHERE t.a = v.a";
        assert_eq!(
            of_rows(one, 2, 1),
            "UPDATE t SET b = v.b FROM (VALUES (CAST(?1 AS BIGINT)), (?2)) AS v (a) WHERE t.a = v.a"
        );
    }

    #[test]
    fn any_number_of_rows_is_written_by_few_statements() {
        let connection = connect(&Postgres::shared().database());
        connection
            .run_all("CREATE TABLE t (id BIGINT PRIMARY KEY, body BYTEA, name TEXT)")
            .expect("a table");
        let insert = "INSERT INTO t (id, body, name) VALUES (?1, ?2, ?3)
            ON CONFLICT (id) DO UPDATE SET name = excluded.name";
        let mut prepared = 0;
        for length in [0, 1, 63, 64, 65, 200, 1000] {
            let body = vec![7; length];
            let row = |id: i64| [Value::Integer(id), Value::Bytes(&body), Value::Null];
            connection
                .execute_rows(insert, &mut |run| {
                    (0..length as i64).try_for_each(|id| run(&row(id)))
                })
                .expect("they are inserted");
            let sql = "SELECT count(*) FROM t WHERE length(body) <= ?1 AND name IS NULL";
            assert_eq!(
                connection.number(sql, &[Value::Integer(1000)]).expect("it"),
                length as i64
            );
            prepared = connection.prepared.borrow().len();
        }
        // 1, 2, 4, 8, 16, 32, 64 and 128 rows, and the count.
        assert_eq!(prepared, 9);
        let named = connection.execute_rows(insert, &mut |run| {
            (990..1010).try_for_each(|id| {
                run(&[Value::Integer(id), Value::Bytes(&[1]), Value::Text("new")])
            })
        });
        named.expect("ten are changed and ten inserted");
        let sql = "SELECT count(*) FROM t WHERE name = ?1";
        let found = connection.number(sql, &[Value::Text("new")]);
        assert_eq!(found.expect("a count"), 20);
        let update = "UPDATE t SET name = v.name FROM (VALUES (CAST(?1 AS BIGINT), CAST(?2 AS TEXT))) AS v (id, name)
            WHERE t.id = v.id";
        let renamed = connection.execute_rows(update, &mut |run| {
            (0..100).try_for_each(|id| run(&[Value::Integer(id), Value::Text("other")]))
        });
        renamed.expect("a hundred are changed");
        let found = connection.number(sql, &[Value::Text("other")]);
        assert_eq!(found.expect("a count"), 100);
    }

    #[test]
    fn the_number_of_rows_is_the_last_word_of_a_tag() {
        for (tag, rows) in [("INSERT 0 5", 5), ("UPDATE 3", 3), ("COMMIT", 0), ("", 0)] {
            assert_eq!(changed(tag), rows, "{tag}");
        }
    }
}
