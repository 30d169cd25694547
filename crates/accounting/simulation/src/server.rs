//! The server's side of the protocol: messages in, messages out (PostgreSQL, "Message Formats").

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use bytes::{Buf as _, BufMut as _};
use rusqlite::types::Value as Sqlite;

use tollgate_postgres::any::ANY;

use super::database::{Database, Done, SqlError, Undone};
use super::process::{Statement, Tamper};
use super::schema::Schema;
use super::value;

/// The place at which actors wait for a lock.
pub(super) const RELEASED: usize = 1;

/// The server's progress with the received statements.
pub(super) enum Progress {
    Done,
    /// Another session has a lock.
    Blocked,
}

/// A portal: a statement with values, and the rows that were not fetched.
struct Portal {
    sql: String,
    values: Vec<Sqlite>,
    result: Option<(Done, VecDeque<Vec<Sqlite>>)>,
}

/// A connection.
#[derive(Default)]
struct Link {
    process: String,
    inbox: Vec<u8>,
    is_started: bool,
    /// After an error, until the next `Sync`.
    skips: bool,
    prepared: HashMap<String, String>,
    portals: HashMap<String, Portal>,
    /// The rest of a simple query.
    query: VecDeque<String>,
    in_query: bool,
    /// The client is gone: at this time the received statements run, and the session ends.
    orphaned_us: Option<u64>,
    has_ended: bool,
}

/// The server.
pub(super) struct Server {
    pub(super) database: Database,
    links: BTreeMap<u64, Link>,
    /// Sessions that were idle in a transaction for too long, until their clients read the error.
    idled_out: BTreeSet<u64>,
    pub(super) tamper: Option<Tamper>,
    /// For the trace.
    pub(super) lines: Vec<String>,
    /// A lock was released.
    pub(super) has_released: bool,
    /// The end of a stall.
    pub(super) stalled_until_us: u64,
}

impl Server {
    pub(super) fn new(schema: &Schema) -> Server {
        Server {
            database: Database::new(schema),
            links: BTreeMap::new(),
            idled_out: BTreeSet::new(),
            tamper: None,
            lines: Vec::new(),
            has_released: false,
            stalled_until_us: 0,
        }
    }

    pub(super) fn connect(&mut self, process: &str, now_us: u64) -> u64 {
        let session = self.database.connect(now_us);
        let link = Link {
            process: process.to_owned(),
            ..Link::default()
        };
        self.links.insert(session, link);
        session
    }

    pub(super) fn is_open(&self, session: u64) -> bool {
        let link = self.links.get(&session);
        link.is_some_and(|link| link.orphaned_us.is_none())
    }

    pub(super) fn is_snapshot(&self, session: u64) -> bool {
        self.database.is_snapshot(session)
    }

    pub(super) fn send(&mut self, session: u64, bytes: &[u8]) {
        if let Some(link) = self.links.get_mut(&session) {
            link.inbox.extend_from_slice(bytes);
        }
    }

    /// Ends a session and undoes its uncommitted writes.
    pub(super) fn close(&mut self, session: u64) {
        if self.links.remove(&session).is_some() {
            self.database.close(session);
            self.has_released = true;
        }
    }

    /// The client of a session is gone; the received statements run at `due_us`.
    pub(super) fn orphan(&mut self, session: u64, due_us: u64) {
        if let Some(link) = self.links.get_mut(&session) {
            link.orphaned_us = Some(due_us);
        }
    }

    /// A client ends its connection.
    pub(super) fn leave(&mut self, session: u64, due_us: u64) {
        if let Some(link) = self.links.get_mut(&session) {
            link.orphaned_us.get_or_insert(due_us);
        }
    }

    /// Every session ends, as in a crash of the server.
    pub(super) fn crash(&mut self) {
        let sessions: Vec<u64> = self.links.keys().copied().collect();
        sessions.into_iter().for_each(|session| self.close(session));
    }

    /// Whether a session without a client is left.
    pub(super) fn has_orphans(&self) -> bool {
        self.links.values().any(|link| link.orphaned_us.is_some())
    }

    /// Runs the due statements of lost clients, and ends transactions that are idle for too long.
    pub(super) fn pass_time(&mut self, now_us: u64) {
        if self.stalled_until_us > now_us {
            return;
        }
        let is_due = |link: &Link| link.orphaned_us.is_some_and(|due| due <= now_us);
        let due: Vec<u64> = (self.links.iter())
            .filter(|(_, link)| is_due(link))
            .map(|(session, _)| *session)
            .collect();
        for session in due {
            let mut lost = Vec::new();
            if let Progress::Done = self.serve(session, now_us, &mut lost) {
                self.close(session);
            }
        }
        for session in self.database.idle(now_us) {
            self.lines.push(format!(
                "server ends session {session}: idle in its transaction"
            ));
            self.close(session);
            self.idled_out.insert(session);
        }
    }

    /// Whether a client can still send to its session: the client of an idle session notices the session's end only at the next read.
    pub(super) fn takes_from(&self, session: u64) -> bool {
        self.is_open(session) || self.idled_out.contains(&session)
    }

    /// The message with which the server has ended an idle session. Returned once.
    pub(super) fn last_message(&mut self, session: u64) -> Option<Vec<u8>> {
        self.idled_out.remove(&session).then(|| {
            let mut out = Vec::new();
            let error = SqlError {
                code: "25P03",
                message: String::from("terminating connection due to idle-in-transaction timeout"),
            };
            error_response(&mut out, &error);
            out
        })
    }

    /// The unread statements of a session, for the trace.
    pub(super) fn pending(&self, session: u64) -> String {
        let Some(link) = self.links.get(&session) else {
            return String::from("the server has ended it");
        };
        let mut inbox = &link.inbox[..];
        let mut sql = String::new();
        while let Some((tag, body)) = message(&mut inbox) {
            let mut body = body;
            match tag {
                b'B' => {
                    text(&mut body);
                    let name = text(&mut body);
                    sql = link.prepared.get(&name).cloned().unwrap_or_default();
                }
                b'Q' | b'P' => sql = format!("{} {}", text(&mut body), sql),
                _ => {}
            }
        }
        head(&sql)
    }

    /// Runs the received statements of a session; `out` receives the replies.
    pub(super) fn serve(&mut self, session: u64, now_us: u64, out: &mut Vec<u8>) -> Progress {
        loop {
            let Some(link) = self.links.get_mut(&session) else {
                return Progress::Done;
            };
            if link.in_query {
                match self.run_query(session, now_us, out) {
                    Progress::Done => continue,
                    Progress::Blocked => return Progress::Blocked,
                }
            }
            if !link.is_started {
                let length = link.inbox.len();
                let mut startup = &link.inbox[..];
                if length < 4 || startup.get_u32() as usize > length {
                    return Progress::Done;
                }
                link.inbox.clear();
                link.is_started = true;
                reply(out, b'R', |out| out.put_i32(0));
                self.ready(session, out);
                continue;
            }
            let mut rest = &link.inbox[..];
            let Some((tag, body)) = message(&mut rest) else {
                return Progress::Done;
            };
            let body = body.to_vec();
            let left = rest.len();
            match self.handle(session, tag, &body, now_us, out) {
                Progress::Done => {}
                Progress::Blocked => return Progress::Blocked,
            }
            if let Some(link) = self.links.get_mut(&session) {
                let done = link.inbox.len() - left;
                link.inbox.drain(..done);
            }
        }
    }

    fn handle(
        &mut self,
        session: u64,
        tag: u8,
        mut body: &[u8],
        now_us: u64,
        out: &mut Vec<u8>,
    ) -> Progress {
        let link = self.links.get_mut(&session).expect("it is open");
        if link.skips && !matches!(tag, b'S' | b'X') {
            return Progress::Done;
        }
        match tag {
            b'P' => {
                let name = text(&mut body);
                let sql = text(&mut body).replace('$', "?");
                link.prepared.insert(name, sql);
                reply(out, b'1', |_| {});
            }
            b'D' => {
                body.advance(1);
                let sql = link.prepared[&text(&mut body)].clone();
                match self.database.describe(&sql) {
                    Ok((parameters, columns)) => describe(out, parameters, columns),
                    Err(error) => self.error(session, &error, out),
                }
            }
            b'B' => {
                let name = text(&mut body);
                let sql = link.prepared[&text(&mut body)].clone();
                let values = values(&mut body);
                let portal = Portal {
                    sql,
                    values,
                    result: None,
                };
                link.portals.insert(name, portal);
                reply(out, b'2', |_| {});
            }
            b'E' => {
                let name = text(&mut body);
                let max = body.get_i32();
                return self.execute_portal(session, &name, max, now_us, out);
            }
            b'C' => {
                body.advance(1);
                link.portals.remove(&text(&mut body));
                reply(out, b'3', |_| {});
            }
            b'S' => {
                link.skips = false;
                self.ready(session, out);
            }
            b'Q' => {
                let sql = text(&mut body);
                let statements = sql.split(';').map(str::trim);
                link.query = statements
                    .filter(|sql| !sql.is_empty())
                    .map(str::to_owned)
                    .collect();
                link.in_query = true;
            }
            b'X' => link.has_ended = true,
            _ => {}
        }
        let has_ended = self.links.get(&session).is_some_and(|link| link.has_ended);
        if has_ended {
            self.close(session);
        }
        Progress::Done
    }

    fn run_query(&mut self, session: u64, now_us: u64, out: &mut Vec<u8>) -> Progress {
        loop {
            let link = self.links.get_mut(&session).expect("it is open");
            let Some(sql) = link.query.front().cloned() else {
                link.in_query = false;
                self.ready(session, out);
                return Progress::Done;
            };
            match self.run(session, &sql, &[], now_us) {
                Ok(done) => {
                    complete(out, &done);
                    let link = self.links.get_mut(&session).expect("it is open");
                    link.query.pop_front();
                }
                Err(Undone::Blocked) => return Progress::Blocked,
                Err(Undone::Failed(error)) => {
                    error_response(out, &error);
                    let link = self.links.get_mut(&session).expect("it is open");
                    link.query.clear();
                }
            }
        }
    }

    fn execute_portal(
        &mut self,
        session: u64,
        name: &str,
        max: i32,
        now_us: u64,
        out: &mut Vec<u8>,
    ) -> Progress {
        let link = self.links.get_mut(&session).expect("it is open");
        let mut portal = link.portals.remove(name).expect("it was bound");
        if portal.result.is_none() {
            match self.run(session, &portal.sql, &portal.values, now_us) {
                Ok(mut done) => {
                    let rows = std::mem::take(&mut done.rows).into();
                    portal.result = Some((done, rows));
                }
                Err(Undone::Failed(error)) => {
                    self.error(session, &error, out);
                    return Progress::Done;
                }
                Err(Undone::Blocked) => {
                    let link = self.links.get_mut(&session).expect("it is open");
                    link.portals.insert(name.to_owned(), portal);
                    return Progress::Blocked;
                }
            }
        }
        if let Some((done, rows)) = &mut portal.result {
            let max = usize::try_from(max).ok().filter(|max| *max > 0);
            let count = max.unwrap_or(usize::MAX).min(rows.len());
            for row in rows.drain(..count) {
                data_row(out, &row);
            }
            match rows.is_empty() {
                true => complete(out, done),
                false => reply(out, b's', |_| {}),
            }
        }
        let link = self.links.get_mut(&session).expect("it is open");
        link.portals.insert(name.to_owned(), portal);
        Progress::Done
    }

    fn run(
        &mut self,
        session: u64,
        sql: &str,
        values: &[Sqlite],
        now_us: u64,
    ) -> Result<Done, Undone> {
        let process = self.links[&session].process.clone();
        let changed = match &mut self.tamper {
            None => None,
            Some(tamper) => {
                let change = self.database.change();
                tamper(Statement {
                    process: &process,
                    sql,
                    is_in_transaction: self.database.is_in_transaction(session),
                    change,
                })
            }
        };
        let sql = changed.as_deref().unwrap_or(sql);
        let done = self.database.execute(session, sql, values, now_us);
        self.has_released |= self.database.take_released();
        let is_noted = !sql.starts_with("SELECT") && !sql.starts_with("SET");
        match &done {
            Ok(done) if is_noted => self.lines.push(format!(
                "{:>12} {process}[{session}] {} = {}",
                "",
                head(sql),
                done.changed
            )),
            Err(Undone::Failed(error)) => {
                let line = format!("{process}[{session}] {}: {}", head(sql), error.message);
                self.lines.push(line);
            }
            _ => {}
        }
        done
    }

    fn error(&mut self, session: u64, error: &SqlError, out: &mut Vec<u8>) {
        error_response(out, error);
        if let Some(link) = self.links.get_mut(&session) {
            link.skips = true;
        }
    }

    fn ready(&self, session: u64, out: &mut Vec<u8>) {
        let status = self.database.status(session);
        reply(out, b'Z', |out| out.put_u8(status));
    }
}

/// The next message of a client.
fn message<'b>(bytes: &mut &'b [u8]) -> Option<(u8, &'b [u8])> {
    let mut header = *bytes;
    if header.len() < 5 {
        return None;
    }
    let tag = header.get_u8();
    let length = header.get_u32() as usize;
    let body = bytes.get(5..1 + length)?;
    *bytes = &bytes[1 + length..];
    Some((tag, body))
}

/// A text that ends with a zero byte.
fn text(bytes: &mut &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).expect("its end");
    let found = String::from_utf8_lossy(&bytes[..end]).into_owned();
    bytes.advance(end + 1);
    found
}

/// The values of a `Bind` message.
fn values(body: &mut &[u8]) -> Vec<Sqlite> {
    let formats = body.get_i16();
    body.advance(2 * formats as usize);
    let count = body.get_i16();
    let mut values = Vec::new();
    for _ in 0..count {
        let length = body.get_i32();
        let Ok(length) = usize::try_from(length) else {
            values.push(Sqlite::Null);
            continue;
        };
        values.push(value::parse(&body[..length]));
        body.advance(length);
    }
    values
}

fn reply(out: &mut Vec<u8>, tag: u8, body: impl FnOnce(&mut Vec<u8>)) {
    out.put_u8(tag);
    let start = out.len();
    out.put_i32(0);
    body(out);
    let length = (out.len() - start) as i32;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

fn describe(out: &mut Vec<u8>, parameters: usize, columns: usize) {
    reply(out, b't', |out| {
        out.put_i16(parameters as i16);
        (0..parameters).for_each(|_| out.put_u32(ANY));
    });
    if columns == 0 {
        return reply(out, b'n', |_| {});
    }
    reply(out, b'T', |out| {
        out.put_i16(columns as i16);
        for _ in 0..columns {
            // Name, table, column, type, size, modifier, format.
            out.put_u8(0);
            out.put_u32(0);
            out.put_i16(0);
            out.put_u32(ANY);
            out.put_i16(-1);
            out.put_i32(-1);
            out.put_i16(1);
        }
    });
}

fn data_row(out: &mut Vec<u8>, row: &[Sqlite]) {
    reply(out, b'D', |out| {
        out.put_i16(row.len() as i16);
        for value in row {
            match value::encode(value) {
                None => out.put_i32(-1),
                Some(bytes) => {
                    out.put_i32(bytes.len() as i32);
                    out.put_slice(&bytes);
                }
            }
        }
    });
}

fn complete(out: &mut Vec<u8>, done: &Done) {
    reply(out, b'C', |out| {
        out.put_slice(done.tag.as_bytes());
        if done.has_count {
            out.put_slice(format!(" {}", done.changed).as_bytes());
        }
        out.put_u8(0);
    });
}

fn error_response(out: &mut Vec<u8>, error: &SqlError) {
    reply(out, b'E', |out| {
        for (field, value) in [(b'S', "ERROR"), (b'C', error.code), (b'M', &error.message)] {
            out.put_u8(field);
            out.put_slice(value.as_bytes());
            out.put_u8(0);
        }
        out.put_u8(0);
    });
}

/// The beginning of a statement, for the trace.
fn head(sql: &str) -> String {
    let words: Vec<&str> = sql.split_whitespace().collect();
    words.join(" ").chars().take(72).collect()
}
