//! The model of a PostgreSQL database: the properties that the store relies on, over an SQLite database in memory that runs the statements.
//!
//! A session's transaction is the list of its writes so far. The writes are in the SQLite database while the session is active. Before the
//! session's next statement the writes are run again, if another session has been active in between. The result is READ COMMITTED: a
//! statement sees the commits before its beginning, and the writes of its own transaction. The written rows are locked: no other session
//! can have changed the rows.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::types::Value as Sqlite;

use super::schema::Schema;
use super::sql::{Kind, Lock, Translated};

/// The table of the server's clock.
const SERVER_CLOCK: &str = "
    CREATE TABLE server_clock (us INTEGER NOT NULL);
    INSERT INTO server_clock (us) VALUES (0);";

/// For how long a transaction may be idle, where the client has set a limit.
const IDLE_MAX_US: u64 = 5_000_000;

/// A row: its table and its number in the table.
type RowKey = (String, i64);

/// The result of a statement.
pub(super) struct Done {
    pub(super) tag: &'static str,
    pub(super) has_count: bool,
    pub(super) changed: usize,
    pub(super) rows: Vec<Vec<Sqlite>>,
}

/// An error of a statement.
pub(super) struct SqlError {
    pub(super) code: &'static str,
    pub(super) message: String,
}

/// Why a statement has no result.
pub(super) enum Undone {
    /// Another session has a lock.
    Blocked,
    Failed(SqlError),
}

#[derive(Default)]
struct Session {
    is_in_transaction: bool,
    /// The transaction reads a snapshot, without interruption by another session.
    is_snapshot: bool,
    /// An error has ended the transaction, except for its `ROLLBACK`.
    is_failed: bool,
    writes: Vec<(Arc<Translated>, Vec<Sqlite>)>,
    used_us: u64,
    idle_max_us: Option<u64>,
    /// The sessions that the session waits for.
    waits_for: HashSet<u64>,
    /// Rows of the journal written by the session.
    journal: Vec<i64>,
}

#[derive(Default)]
struct RowLock {
    exclusive: Option<u64>,
    shared: HashSet<u64>,
}

/// The database.
pub(super) struct Database {
    file: rusqlite::Connection,
    /// [`Schema::numbers`].
    numbers: fn(i64) -> (i64, i64, i64),
    statements: HashMap<String, Arc<Translated>>,
    sessions: BTreeMap<u64, Session>,
    next: u64,
    /// The session whose writes are in the file's open transaction.
    active: Option<u64>,
    locks: HashMap<RowKey, RowLock>,
    /// Rows written by the statement under way.
    touched: Arc<Mutex<Vec<RowKey>>>,
    has_released: bool,
    /// Violated invariants.
    pub(super) violations: Vec<String>,
}

impl Database {
    /// A database with the tables of `schema`.
    pub(super) fn new(schema: &Schema) -> Database {
        let mut file = rusqlite::Connection::open_in_memory().expect("a database in memory");
        file.set_prepared_statement_cache_capacity(512);
        // Values do not change a plan.
        let config = rusqlite::config::DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG;
        file.set_db_config(config, true).expect("a setting");
        template(&mut file, schema);
        let touched = Arc::<Mutex<Vec<RowKey>>>::default();
        let writes = Arc::clone(&touched);
        file.update_hook(Some(move |_, _: &str, table: &str, row: i64| {
            let mut touched = writes.lock();
            touched.push((table.to_owned(), row));
        }))
        .expect("a hook");
        Database {
            file,
            numbers: schema.numbers,
            statements: HashMap::new(),
            sessions: BTreeMap::new(),
            next: 1,
            active: None,
            locks: HashMap::new(),
            touched,
            has_released: false,
            violations: Vec::new(),
        }
    }

    pub(super) fn connect(&mut self, now_us: u64) -> u64 {
        let session = self.next;
        self.next += 1;
        let made = Session {
            used_us: now_us,
            ..Session::default()
        };
        self.sessions.insert(session, made);
        session
    }

    pub(super) fn is_snapshot(&self, session: u64) -> bool {
        (self.sessions.get(&session)).is_some_and(|session| session.is_snapshot)
    }

    pub(super) fn is_in_transaction(&self, session: u64) -> bool {
        (self.sessions.get(&session)).is_some_and(|session| session.is_in_transaction)
    }

    /// The status of a session's transaction, for `ReadyForQuery`.
    pub(super) fn status(&self, session: u64) -> u8 {
        match self.sessions.get(&session) {
            Some(session) if session.is_failed => b'E',
            Some(session) if session.is_in_transaction => b'T',
            _ => b'I',
        }
    }

    /// Whether a lock was released since the last call.
    pub(super) fn take_released(&mut self) -> bool {
        std::mem::take(&mut self.has_released)
    }

    /// Ends a session and undoes its uncommitted writes.
    pub(super) fn close(&mut self, session: u64) {
        self.end_transaction(session);
        self.sessions.remove(&session);
    }

    /// Sessions whose transactions are idle for longer than their clients allow.
    pub(super) fn idle(&self, now_us: u64) -> Vec<u64> {
        let is_idle = |session: &Session| {
            session.is_in_transaction
                && session.waits_for.is_empty()
                && (session.idle_max_us).is_some_and(|max| session.used_us + max < now_us)
        };
        let idle = self.sessions.iter().filter(|(_, session)| is_idle(session));
        idle.map(|(session, _)| *session).collect()
    }

    /// The number of parameters and of columns of a statement.
    pub(super) fn describe(&mut self, sql: &str) -> Result<(usize, usize), SqlError> {
        let statement = self.statement(sql);
        match statement.kind {
            Kind::Read | Kind::Write => {
                let prepared = self.file.prepare_cached(&statement.sql)?;
                Ok((prepared.parameter_count(), prepared.column_count()))
            }
            _ => Ok((0, 0)),
        }
    }

    /// The number of the cluster's last committed change.
    pub(super) fn change(&mut self) -> i64 {
        self.committed("SELECT number FROM cluster WHERE id = 1")
    }

    /// The first number of a committed row.
    pub(super) fn committed(&mut self, sql: &str) -> i64 {
        self.deactivate();
        let found = self
            .file
            .prepare_cached(sql)
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)));
        found.expect("a number")
    }

    /// Runs a statement of a session.
    pub(super) fn execute(
        &mut self,
        session: u64,
        sql: &str,
        values: &[Sqlite],
        now_us: u64,
    ) -> Result<Done, Undone> {
        let statement = self.statement(sql);
        let open = self.sessions.get_mut(&session).expect("it is open");
        open.used_us = now_us;
        open.waits_for.clear();
        match statement.kind {
            Kind::Session => {
                if sql.contains("idle_in_transaction") {
                    open.idle_max_us = Some(IDLE_MAX_US);
                }
                return Ok(Done::of(statement.tag));
            }
            Kind::Begin => {
                open.is_in_transaction = true;
                open.is_snapshot = sql.contains("READ ONLY");
                return Ok(Done::of("BEGIN"));
            }
            Kind::Rollback => {
                self.end_transaction(session);
                return Ok(Done::of("ROLLBACK"));
            }
            Kind::Commit if open.is_failed => {
                self.end_transaction(session);
                return Ok(Done::of("ROLLBACK"));
            }
            Kind::Commit => {
                if !open.writes.is_empty() {
                    self.activate(session);
                    self.commit_file();
                    self.check_fence(session);
                }
                self.end_transaction(session);
                return Ok(Done::of("COMMIT"));
            }
            Kind::Read | Kind::Write if open.is_failed && statement.tag != "ROLLBACK" => {
                return Err(Undone::Failed(SqlError {
                    code: "25P02",
                    message: String::from("the transaction is aborted"),
                }));
            }
            Kind::Read | Kind::Write => open.is_failed = false,
        }
        let is_short = !open.is_in_transaction;
        if let Some(lock) = statement.lock {
            let key = lock.row(values);
            self.acquire(session, &[key], lock.is_exclusive, is_short)?;
        }
        if statement.has_clock {
            self.deactivate();
            let set = (self.file).prepare_cached("UPDATE server_clock SET us = ?1");
            set.and_then(|mut set| set.execute([now_us as i64]))
                .expect("the clock is set");
        }
        match is_short {
            false => self.activate(session),
            true => self.deactivate(),
        }
        match statement.kind {
            Kind::Read => {
                let ran = self.run(&statement, values);
                let (_, rows) = ran.map_err(|error| self.fail(session, error))?;
                Ok(Done {
                    changed: rows.len(),
                    rows,
                    ..Done::of("SELECT").counted()
                })
            }
            _ => self.write(session, statement, values, is_short),
        }
    }

    fn write(
        &mut self,
        session: u64,
        statement: Arc<Translated>,
        values: &[Sqlite],
        is_short: bool,
    ) -> Result<Done, Undone> {
        let is_savepoint = statement.is_savepoint;
        if is_short {
            self.control("BEGIN");
        }
        if !is_savepoint {
            self.control("SAVEPOINT one");
        }
        self.touched().clear();
        let ran = self.run(&statement, values);
        let touched = std::mem::take(&mut *self.touched());
        let locked = match &ran {
            Ok(_) => self.acquire(session, &touched, true, is_short),
            Err(_) => Ok(()),
        };
        if ran.is_err() || locked.is_err() {
            if !is_savepoint {
                self.control("ROLLBACK TO one");
                self.control("RELEASE one");
            }
            if is_short {
                self.control("ROLLBACK");
            }
            locked?;
        }
        let (changed, rows) = ran.map_err(|error| self.fail(session, error))?;
        if !is_savepoint {
            self.control("RELEASE one");
        }
        let open = self.sessions.get_mut(&session).expect("it is open");
        let of_journal = touched.iter().filter(|(table, _)| table == "journal");
        open.journal.extend(of_journal.map(|(_, row)| *row));
        let tag = statement.tag;
        if is_short {
            self.commit_file();
            self.check_fence(session);
            self.end_transaction(session);
        } else {
            open.writes.push((statement, values.to_vec()));
        }
        let done = Done {
            changed,
            rows,
            ..Done::of(tag)
        };
        Ok(match is_savepoint {
            true => done,
            false => done.counted(),
        })
    }

    /// Takes locks for a session. For a single-statement transaction the locks only have to be free.
    fn acquire(
        &mut self,
        session: u64,
        rows: &[RowKey],
        is_exclusive: bool,
        is_short: bool,
    ) -> Result<(), Undone> {
        let mut holders = HashSet::new();
        for row in rows {
            let Some(lock) = self.locks.get(row) else {
                continue;
            };
            holders.extend(lock.exclusive);
            if is_exclusive {
                holders.extend(&lock.shared);
            }
        }
        holders.remove(&session);
        if !holders.is_empty() {
            if self.waits_in_circle(session, &holders) {
                let error = SqlError {
                    code: "40P01",
                    message: String::from("deadlock detected"),
                };
                return Err(self.fail(session, error));
            }
            let open = self.sessions.get_mut(&session).expect("it is open");
            open.waits_for = holders;
            return Err(Undone::Blocked);
        }
        if !is_short {
            for row in rows {
                let lock = self.locks.entry(row.clone()).or_default();
                match is_exclusive {
                    true => lock.exclusive = Some(session),
                    false => _ = lock.shared.insert(session),
                }
            }
        }
        Ok(())
    }

    fn waits_in_circle(&self, session: u64, holders: &HashSet<u64>) -> bool {
        let mut seen = HashSet::new();
        let mut next: Vec<u64> = holders.iter().copied().collect();
        while let Some(holder) = next.pop() {
            if holder == session {
                return true;
            }
            if seen.insert(holder)
                && let Some(open) = self.sessions.get(&holder)
            {
                next.extend(&open.waits_for);
            }
        }
        false
    }

    /// An error ends the transaction.
    fn fail(&mut self, session: u64, error: SqlError) -> Undone {
        if let Some(open) = self.sessions.get_mut(&session) {
            open.is_failed = open.is_in_transaction;
        }
        Undone::Failed(error)
    }

    fn end_transaction(&mut self, session: u64) {
        if self.active == Some(session) {
            self.deactivate();
        }
        if let Some(open) = self.sessions.get_mut(&session) {
            open.is_in_transaction = false;
            open.is_snapshot = false;
            open.is_failed = false;
            open.writes.clear();
            open.journal.clear();
            open.waits_for.clear();
        }
        let before = self.locks.len();
        self.locks.retain(|_, lock| {
            lock.shared.remove(&session);
            if lock.exclusive == Some(session) {
                lock.exclusive = None;
            }
            lock.exclusive.is_some() || !lock.shared.is_empty()
        });
        self.has_released |= before > 0;
    }

    /// Puts the writes of a session's transaction into the file's transaction.
    fn activate(&mut self, session: u64) {
        if self.active == Some(session) {
            return;
        }
        self.deactivate();
        self.control("BEGIN");
        self.active = Some(session);
        let open = self.sessions.get_mut(&session).expect("it is open");
        let writes = std::mem::take(&mut open.writes);
        for (statement, values) in &writes {
            let again = self.run(statement, values);
            assert!(again.is_ok(), "a kept statement runs again");
        }
        self.sessions.get_mut(&session).expect("it is open").writes = writes;
    }

    fn deactivate(&mut self) {
        if self.active.take().is_some() {
            self.control("ROLLBACK");
        }
    }

    fn commit_file(&mut self) {
        self.control("COMMIT");
        self.active = None;
    }

    /// No row of a run is committed after the beginning of a later run.
    fn check_fence(&mut self, session: u64) {
        let open = self.sessions.get_mut(&session).expect("it is open");
        for row in std::mem::take(&mut open.journal) {
            let (node, epoch, number) = (self.numbers)(row);
            let current = self
                .file
                .prepare_cached("SELECT epoch FROM nodes WHERE id = ?1")
                .and_then(|mut statement| statement.query_row([node], |row| row.get::<_, i64>(0)));
            if current.as_ref().ok() != Some(&epoch) {
                self.violations.push(format!(
                    "a fenced run has committed: row {number} of node {node}, run {epoch}, and the run is {current:?}"
                ));
            }
        }
    }

    fn control(&self, sql: &str) {
        let mut statement = self.file.prepare_cached(sql).expect("a statement");
        statement.execute([]).expect("it runs");
    }

    fn touched(&self) -> parking_lot::MutexGuard<'_, Vec<RowKey>> {
        self.touched.lock()
    }

    fn run(
        &self,
        statement: &Translated,
        values: &[Sqlite],
    ) -> Result<(usize, Vec<Vec<Sqlite>>), SqlError> {
        let mut prepared = self.file.prepare_cached(&statement.sql)?;
        for (index, value) in (1..=prepared.parameter_count()).zip(values) {
            prepared.raw_bind_parameter(index, value)?;
        }
        let columns = prepared.column_count();
        if columns == 0 {
            return Ok((prepared.raw_execute()?, Vec::new()));
        }
        let mut found = Vec::new();
        let mut rows = prepared.raw_query();
        while let Some(row) = rows.next()? {
            let column = |index| row.get::<_, Sqlite>(index);
            found.push((0..columns).map(column).collect::<Result<_, _>>()?);
        }
        Ok((found.len(), found))
    }

    fn statement(&mut self, sql: &str) -> Arc<Translated> {
        if let Some(statement) = self.statements.get(sql) {
            return Arc::clone(statement);
        }
        let statement = Arc::new(Translated::of(sql));
        self.statements
            .insert(sql.to_owned(), Arc::clone(&statement));
        statement
    }
}

impl Done {
    fn of(tag: &'static str) -> Done {
        Done {
            tag,
            has_count: false,
            changed: 0,
            rows: Vec::new(),
        }
    }

    fn counted(self) -> Done {
        Done {
            has_count: true,
            ..self
        }
    }
}

impl Lock {
    fn row(&self, values: &[Sqlite]) -> RowKey {
        let value = self.parameter.and_then(|number| values.get(number - 1));
        let key = match value {
            Some(Sqlite::Integer(key)) => *key,
            _ => 1,
        };
        (self.table.to_owned(), key)
    }
}

impl From<rusqlite::Error> for SqlError {
    fn from(error: rusqlite::Error) -> SqlError {
        use rusqlite::ErrorCode::ConstraintViolation;
        use rusqlite::ffi::{
            SQLITE_CONSTRAINT_NOTNULL, SQLITE_CONSTRAINT_PRIMARYKEY, SQLITE_CONSTRAINT_UNIQUE,
        };
        let code = match &error {
            rusqlite::Error::SqliteFailure(failure, _) => match failure.extended_code {
                SQLITE_CONSTRAINT_PRIMARYKEY | SQLITE_CONSTRAINT_UNIQUE => "23505",
                SQLITE_CONSTRAINT_NOTNULL => "23502",
                _ if failure.code == ConstraintViolation => "23514",
                _ => "XX000",
            },
            _ => "XX000",
        };
        SqlError {
            code,
            message: error.to_string(),
        }
    }
}

/// Copies the empty database, which is built only once.
fn template(file: &mut rusqlite::Connection, schema: &Schema) {
    static MADE: Mutex<Option<rusqlite::Connection>> = Mutex::new(None);
    let mut made = MADE.lock();
    let made = made.get_or_insert_with(|| {
        let made = rusqlite::Connection::open_in_memory().expect("a database in memory");
        for statements in &schema.tables {
            made.execute_batch(statements).expect("a table");
        }
        made.execute_batch(SERVER_CLOCK)
            .expect("the server's clock");
        made
    });
    let backup = rusqlite::backup::Backup::new(made, file).expect("a copy");
    backup.step(-1).expect("a copy");
}
