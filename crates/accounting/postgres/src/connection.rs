//! A connection: start-up and authentication, prepared statements, pipelined statements and portals.

use std::borrow::Cow;
use std::cell::{Cell, RefCell, RefMut};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use postgres_protocol::message::backend::DataRowBody;
use postgres_protocol::message::frontend;
use rustls::ClientConfig;
use tollgate_sql::{Dialect, EachRow, EngineError, Fault, Feed, RowError, Run, Sql, Value};

use crate::profile::Profile;
use crate::row_values::RowValues;
use crate::socket::CONNECT;
use crate::tls;
use crate::url::DatabaseUrl;
use crate::value::Row;
use crate::wire::{End, Expected, Prepared, Wire, lost, unusable};

/// Time limit of a wait for the server, unless a connection has another.
pub const WAIT: Duration = Duration::from_secs(30);

/// Rows that a portal returns per fetch, at first and at most. A read of 64 accounts is complete after the first fetch. A fetch of exactly
/// 64 rows would not report the end.
const FETCH_MIN: i32 = 65;
const FETCH_MAX: i32 = 4096;

/// Limit on statements sent before their results are read. Both sides would block if neither side read; the results of 256 statements fit
/// into the buffers between the sides. The bytes are limited for memory. Every batch costs a round trip, and commits wait for the round
/// trip.
const PIPELINE_MAX: usize = 256;
const PIPELINE_BYTES_MAX: usize = 1 << 20;

/// Maximum number of rows per statement, and their bytes: a statement costs the server several times the cost of a row.
const ROWS_MAX: usize = 256;
const ROW_BYTES_MAX: usize = 64 << 10;

/// How a database is reached.
pub struct Target {
    pub url: DatabaseUrl,
    /// Of connections from now on.
    password: Mutex<Option<Arc<[u8]>>>,
    pub(crate) tls: Option<Arc<ClientConfig>>,
    pub(crate) profile: &'static Profile,
    /// Whether a standby is acceptable. A read from a standby may be old: a revoked key is still valid in an old read.
    allows_standby: bool,
}

impl Target {
    /// The target of later connections.
    ///
    /// # Errors
    ///
    /// Certificates of authorities that cannot be read.
    pub fn new(
        url: DatabaseUrl,
        password: Option<&[u8]>,
        profile: &'static Profile,
    ) -> io::Result<Target> {
        Ok(Target {
            profile,
            tls: tls::config(&url)?,
            url,
            password: Mutex::new(password.map(Arc::from)),
            allows_standby: true,
        })
    }

    /// The target without standbys, for a gateway.
    pub fn of_primary(self) -> Target {
        Target {
            allows_standby: false,
            ..self
        }
    }

    pub fn password(&self) -> Option<Arc<[u8]>> {
        self.password.lock().clone()
    }

    pub fn replace_password(&self, new: Option<&[u8]>) {
        *self.password.lock() = new.map(Arc::from);
    }
}

/// A connection that is ready for statements.
pub struct Connection {
    wire: RefCell<Wire>,
    prepared: RefCell<HashMap<Box<str>, Arc<Prepared>>>,
    portals: Cell<u32>,
}

impl Connection {
    /// Connects and authenticates, without a retry by the caller. A server with many reconnecting clients, or with a slow disk, may take a
    /// while to answer.
    pub fn open(target: &Target) -> Result<Connection, EngineError> {
        Connection::open_within(target, WAIT)
    }

    /// [`Connection::open`] in place of a lost connection, while requests wait. The caller retries.
    pub fn reopen(target: &Target) -> Result<Connection, EngineError> {
        Connection::open_within(target, CONNECT)
    }

    fn open_within(target: &Target, limit: Duration) -> Result<Connection, EngineError> {
        let wire = Wire::start(target, limit)?;
        if wire.is_standby && !target.allows_standby {
            return Err(EngineError {
                fault: Fault::Lost,
                source: format!("the server is a standby; {}", target.profile.standby_remedy)
                    .into(),
            });
        }
        wire.socket.limit(WAIT).map_err(lost)?;
        Ok(Connection {
            wire: RefCell::new(wire),
            prepared: RefCell::default(),
            portals: Cell::new(0),
        })
    }

    /// Sets the time limit of a wait for the server.
    pub fn limit(&self, limit: Duration) -> Result<(), EngineError> {
        self.wire()?.socket.limit(limit).map_err(lost)
    }

    /// Whether the connection's end was noticed: no later statement can succeed.
    pub fn is_lost(&self) -> bool {
        self.wire.try_borrow().is_ok_and(|wire| wire.is_broken)
    }

    /// Whether the connection can be used for an unrelated statement.
    pub fn is_reusable(&self) -> bool {
        match self.wire.try_borrow() {
            Ok(wire) => !wire.is_broken && !wire.is_in_transaction() && !wire.socket.is_stale(),
            Err(_) => false,
        }
    }

    /// Runs a statement; returns its tag (`COMMIT`, `INSERT 0 1`).
    pub fn run(&self, sql: &str, values: &[Value<'_>]) -> Result<String, EngineError> {
        let prepared = self.prepared(sql)?;
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

    /// Sends a statement and the queued statements before it, together a whole transaction; [`result_of_sent`](Self::result_of_sent)
    /// returns the transaction's result.
    pub fn send<'v>(
        &self,
        sql: &str,
        values: impl ExactSizeIterator<Item = Value<'v>>,
        expected: Expected,
    ) -> Result<(), EngineError> {
        let prepared = self.prepared(sql)?;
        let mut wire = self.wire()?;
        wire.bind("", &prepared, values)?;
        wire.send(expected)
    }

    /// Whether the server answers within a time. A lost connection is an answer.
    pub fn is_answered_within(&self, time: Duration) -> bool {
        self.wire()
            .map_or(true, |mut wire| wire.is_answered_within(time))
    }

    /// The result of the oldest sent transaction. A lost connection loses unread results.
    pub fn result_of_sent(&self) -> Result<(), EngineError> {
        self.wire()?.result_of_sent()
    }

    /// Queues a statement of a transaction. Queued statements are sent with the next statement whose result is needed.
    pub fn queue<'v>(
        &self,
        sql: &str,
        values: impl ExactSizeIterator<Item = Value<'v>>,
        expected: Expected,
    ) -> Result<(), EngineError> {
        let prepared = self.prepared(sql)?;
        let mut wire = self.wire()?;
        wire.bind("", &prepared, values)?;
        wire.queue(expected)?;
        match wire.queued() >= PIPELINE_MAX || wire.out.len() >= PIPELINE_BYTES_MAX {
            true => wire.complete(),
            false => Ok(()),
        }
    }

    /// [`queue`](Self::queue) for every list of values.
    pub fn queue_each(&self, sql: &str, feed: &mut Feed<'_>) -> Result<(), EngineError> {
        feed(&mut |values| {
            refuse_nul(values)?;
            self.queue(sql, values.iter().copied(), Expected::Success)
        })
    }

    /// [`queue`](Self::queue) for statements that write up to `ROWS_MAX` rows.
    pub fn queue_rows(&self, sql: &str, feed: &mut Feed<'_>) -> Result<(), EngineError> {
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

    /// Queues a statement on all rows, in lengths that are powers of two: the server prepares only statements of these lengths.
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

    /// Sends the queued statements, and reads their results.
    pub fn complete(&self) -> Result<(), EngineError> {
        self.wire()?.complete()
    }

    /// Runs several statements without parameters as one message, in one transaction unless the statements say otherwise.
    pub fn run_all(&self, statements: &str) -> Result<(), EngineError> {
        let mut wire = self.wire()?;
        wire.complete()?;
        frontend::query(statements, &mut wire.out).map_err(unusable)?;
        wire.flush()?;
        wire.until_ready()
    }

    /// Takes all rows of a statement before the visit of the first row.
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

    /// Visits the rows of a query by a portal, which lasts for the transaction. Other statements may run while the portal is open.
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

    /// The rows of a query outside of a transaction, if there are few; `None` for more rows.
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

    /// Visits the rows of a query in a separate transaction, since portals need a transaction.
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

    fn prepared(&self, sql: &str) -> Result<Arc<Prepared>, EngineError> {
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
        // Borrowed for one exchange: rows are visited after the exchange.
        let wire = self.wire.borrow_mut();
        match wire.is_broken {
            false => Ok(wire),
            true => Err(lost(io::Error::from(io::ErrorKind::NotConnected))),
        }
    }
}

/// Visits received rows.
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

    /// Sends many statements before reading their results.
    fn execute_each(&self, sql: &str, feed: &mut Feed<'_>) -> Result<(), EngineError> {
        let queued = self.queue_each(sql, feed);
        self.complete()?;
        queued
    }

    /// Writes up to `ROWS_MAX` rows by a statement, and sends many statements before reading their results.
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
            // No stored text has a NUL character.
            return if is_select { Ok(()) } else { Err(error.into()) };
        }
        let prepared = self.prepared(sql)?;
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

/// Expands a statement with one row of values to `rows` rows. The types of the first row apply to every row.
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

/// A statement with the values of every run, kept for a transaction that may have to be run again.
#[derive(Debug)]
pub struct Sent {
    pub sql: Box<str>,
    pub rows: RowValues,
}

impl Sent {
    pub fn new(sql: &str, rows: RowValues) -> Sent {
        Sent {
            sql: sql.into(),
            rows,
        }
    }

    /// Passes on the values of every run.
    pub fn each(&self, run: &mut Run<'_>) -> Result<(), EngineError> {
        let mut values = Vec::new();
        (0..self.rows.len()).try_for_each(|row| {
            values.clear();
            values.extend(self.rows.of_rows(row..row + 1));
            run(&values)
        })
    }
}

/// Whether a statement only reads.
pub fn is_select(sql: &str) -> bool {
    sql.trim_start().starts_with("SELECT")
}

/// The number of rows at the end of a command's tag.
pub(crate) fn changed(tag: &str) -> usize {
    let count = tag.rsplit(' ').next();
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// PostgreSQL stores no text with a NUL character.
pub fn refuse_nul(values: &[Value<'_>]) -> Result<(), EngineError> {
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
mod tests;
