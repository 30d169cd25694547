//! Messages of the protocol on a socket: authentication, bound statements and their results.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::time::Duration;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator as _;
use postgres_protocol::Oid;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::{DataRowBody, Message};
use postgres_protocol::message::frontend;

use tollgate_sql::{EngineError, Fault, Value};

use crate::connection::{Target, changed};
use crate::profile::Profile;
use crate::socket::Socket;
use crate::value;

/// The socket of a connection, and the messages on the way.
pub(crate) struct Wire {
    pub(crate) socket: Socket,
    /// Bytes to send with the next flush.
    pub(crate) out: BytesMut,
    received: BytesMut,
    /// The buffer of one read.
    buffer: Box<[u8; 16 << 10]>,
    /// Expectations of the queued statements, whose results precede the result of the next statement.
    queued: Vec<Expected>,
    /// Expectations of sent transactions whose results were not read.
    sent: VecDeque<Vec<Expected>>,
    /// Results of sent transactions, read because a later statement was sent.
    results: VecDeque<Result<(), EngineError>>,
    is_in_transaction: bool,
    pub(crate) is_broken: bool,
    /// The server's own report (version 14 and later).
    pub(crate) is_standby: bool,
    profile: &'static Profile,
}

/// The expectation of a statement whose result is read later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// No error.
    Success,
    /// No error, and a changed row: the statement contains a fence.
    Change,
    /// The end of a transaction that has not failed.
    Commit,
}

/// A statement that was to change a row changed no row.
#[derive(Debug)]
pub struct NothingChanged;

impl std::fmt::Display for NothingChanged {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("a statement with a fence changed nothing")
    }
}

impl std::error::Error for NothingChanged {}

/// A statement that the server has prepared.
pub(crate) struct Prepared {
    pub(crate) name: String,
    pub(crate) parameters: Vec<Oid>,
    pub(crate) columns: Vec<Oid>,
}

/// How a statement has ended.
pub(crate) enum End {
    /// With a command's tag.
    Complete(String),
    /// More rows are available.
    Suspended,
}

impl Wire {
    /// Connects and authenticates, with a time limit for a wait for the server.
    pub(crate) fn start(target: &Target, limit: Duration) -> Result<Wire, EngineError> {
        let socket = Socket::connect(target, limit).map_err(lost)?;
        let mut wire = Wire {
            socket,
            out: BytesMut::new(),
            received: BytesMut::new(),
            buffer: Box::new([0; 16 << 10]),
            queued: Vec::new(),
            sent: VecDeque::new(),
            results: VecDeque::new(),
            is_in_transaction: false,
            is_broken: false,
            is_standby: false,
            profile: target.profile,
        };
        let parameters = [
            ("user", target.url.user.as_str()),
            ("database", target.url.database.as_str()),
            ("client_encoding", "UTF8"),
            ("application_name", target.profile.application),
            // A commit is durable when it returns, whatever the default of the role.
            ("synchronous_commit", "on"),
            // No limits of the role: a commit that waits for another node's commit is not ended.
            ("statement_timeout", "0"),
            ("lock_timeout", "0"),
            // After a wait for a lock, a commit reads the writes of the other commit.
            ("default_transaction_isolation", "read committed"),
            ("DateStyle", "ISO"),
            // No table of another schema stands before the store's, whatever the role or the database has set.
            ("search_path", target.profile.search_path),
        ];
        frontend::startup_message(parameters, &mut wire.out).map_err(unusable)?;
        wire.flush()?;
        wire.authenticate(target)?;
        wire.until_ready()?;
        Ok(wire)
    }

    fn authenticate(&mut self, target: &Target) -> Result<(), EngineError> {
        let known = target.password();
        let password = || {
            known.as_deref().ok_or_else(|| EngineError {
                fault: Fault::Other,
                source: format!(
                    "the server asks for a password; {}",
                    target.profile.password_remedy
                )
                .into(),
            })
        };
        let mut scram = None;
        loop {
            match self.next()? {
                Message::AuthenticationOk => return Ok(()),
                Message::AuthenticationCleartextPassword => {
                    frontend::password_message(password()?, &mut self.out).map_err(unusable)?;
                }
                Message::AuthenticationMd5Password(body) => {
                    let user = target.url.user.as_bytes();
                    let hash = md5_hash(user, password()?, body.salt());
                    frontend::password_message(hash.as_bytes(), &mut self.out).map_err(unusable)?;
                }
                Message::AuthenticationSasl(body) => {
                    let mut mechanisms = body.mechanisms();
                    let mut is_offered = false;
                    while let Some(mechanism) = mechanisms.next().map_err(unusable)? {
                        is_offered |= mechanism == SCRAM_SHA_256;
                    }
                    if !is_offered {
                        return Err(unusable(io::Error::other(
                            "the server does not offer SCRAM-SHA-256",
                        )));
                    }
                    let exchange = ScramSha256::new(password()?, ChannelBinding::unsupported());
                    frontend::sasl_initial_response(
                        SCRAM_SHA_256,
                        exchange.message(),
                        &mut self.out,
                    )
                    .map_err(unusable)?;
                    scram = Some(exchange);
                }
                Message::AuthenticationSaslContinue(body) => {
                    let exchange = scram.as_mut().ok_or_else(|| self.unexpected())?;
                    exchange.update(body.data()).map_err(unusable)?;
                    frontend::sasl_response(exchange.message(), &mut self.out).map_err(unusable)?;
                }
                Message::AuthenticationSaslFinal(body) => {
                    let exchange = scram.as_mut().ok_or_else(|| self.unexpected())?;
                    exchange.finish(body.data()).map_err(unusable)?;
                    continue;
                }
                Message::ErrorResponse(body) => return Err(self.profile.error(body.fields())),
                _ => {
                    return Err(unusable(io::Error::other(
                        "the server asks for an authentication other than SCRAM-SHA-256, MD5 or a password",
                    )));
                }
            }
            self.flush()?;
        }
    }

    pub(crate) fn bind<'v>(
        &mut self,
        portal: &str,
        prepared: &Prepared,
        values: impl ExactSizeIterator<Item = Value<'v>>,
    ) -> Result<(), EngineError> {
        if values.len() != prepared.parameters.len() {
            return Err(EngineError {
                fault: Fault::Other,
                source: format!(
                    "a statement has {} parameters and got {}",
                    prepared.parameters.len(),
                    values.len()
                )
                .into(),
            });
        }
        let before = self.out.len();
        let typed = values.zip(&prepared.parameters);
        let bound = frontend::bind(
            portal,
            &prepared.name,
            [1],
            typed,
            |(value, oid), out| value::write(value, *oid, out),
            [1],
            &mut self.out,
        );
        bound.map_err(|error| {
            self.out.truncate(before);
            let source = match error {
                frontend::BindError::Conversion(error) => error,
                frontend::BindError::Serialization(error) => error.into(),
            };
            EngineError {
                fault: Fault::Other,
                source,
            }
        })
    }

    pub(crate) fn sync(&mut self) -> Result<(), EngineError> {
        frontend::sync(&mut self.out);
        self.flush()
    }

    pub(crate) fn flush(&mut self) -> Result<(), EngineError> {
        let bytes = self.out.split();
        let sent = self
            .socket
            .write_all(&bytes)
            .and_then(|()| self.socket.flush());
        sent.map_err(|error| {
            self.is_broken = true;
            lost(error)
        })
    }

    /// The next message that is not about the session.
    fn next(&mut self) -> Result<Message, EngineError> {
        loop {
            let message = Message::parse(&mut self.received).map_err(|error| {
                self.is_broken = true;
                lost(error)
            })?;
            match message {
                Some(Message::ParameterStatus(body)) => {
                    if matches!(body.name(), Ok("in_hot_standby")) {
                        self.is_standby = matches!(body.value(), Ok("on"));
                    }
                }
                Some(Message::NotificationResponse(_)) => {}
                Some(Message::NoticeResponse(body)) => {
                    tracing::debug!(notice = %self.profile.error(body.fields()).source, "notice of the database");
                }
                // Of portals that were closed with the statement.
                Some(Message::CloseComplete | Message::BackendKeyData(_)) => {}
                Some(message) => return Ok(message),
                None => self.receive()?,
            }
        }
    }

    fn receive(&mut self) -> Result<(), EngineError> {
        let read = loop {
            match self.socket.read(&mut *self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        let read = match read {
            Ok(0) => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the server closed the connection",
            )),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the server did not answer within its time limit",
                ))
            }
            other => other,
        };
        let read = read.map_err(|error| {
            self.is_broken = true;
            lost(error)
        })?;
        self.received.extend_from_slice(&self.buffer[..read]);
        Ok(())
    }

    /// Whether data can be read within a time, or the connection is lost.
    pub(crate) fn is_answered_within(&mut self, time: Duration) -> bool {
        !self.results.is_empty()
            || !self.received.is_empty()
            || self.socket.is_readable_within(time)
    }

    /// Adds a bound statement to the next flush.
    pub(crate) fn queue(&mut self, expected: Expected) -> Result<(), EngineError> {
        frontend::execute("", 0, &mut self.out).map_err(unusable)?;
        self.queued.push(expected);
        Ok(())
    }

    /// Number of statements whose results have not been read.
    pub(crate) fn queued(&self) -> usize {
        self.queued.len()
    }

    /// Sends a bound statement and the queued statements: a whole transaction.
    pub(crate) fn send(&mut self, expected: Expected) -> Result<(), EngineError> {
        self.queue(expected)?;
        let transaction = std::mem::take(&mut self.queued);
        self.sent.push_back(transaction);
        self.sync()
    }

    /// The result of the oldest sent transaction.
    pub(crate) fn result_of_sent(&mut self) -> Result<(), EngineError> {
        if let Some(result) = self.results.pop_front() {
            return result;
        }
        match self.sent.pop_front() {
            Some(transaction) => self.end_transaction(transaction),
            None => Err(self.broken("no transaction was sent")),
        }
    }

    fn end_transaction(&mut self, transaction: Vec<Expected>) -> Result<(), EngineError> {
        let ended = self.end_all(transaction);
        self.finish(ended)
    }

    /// Keeps the results of sent transactions, which precede the result of the next statement.
    fn read_sent(&mut self) -> Result<(), EngineError> {
        while let Some(transaction) = self.sent.pop_front() {
            match self.end_transaction(transaction) {
                // The transaction has failed and is still open: the server refuses every later statement. The reason is in the
                // transaction's error, or in the error of an earlier transaction that the transaction depends on.
                Err(error) if self.is_in_transaction && !self.is_broken => {
                    return Err(self.first_error_of_sent().unwrap_or(error));
                }
                ended => self.results.push_back(ended),
            }
            if self.is_broken {
                return Err(lost(io::ErrorKind::NotConnected.into()));
            }
        }
        Ok(())
    }

    /// The error of the oldest failed transaction, among the kept results.
    fn first_error_of_sent(&mut self) -> Option<EngineError> {
        self.results.drain(..).find_map(Result::err)
    }

    /// Whether the next statement runs in a transaction. Only statements of a transaction are queued.
    pub(crate) fn is_in_transaction(&self) -> bool {
        self.is_in_transaction || !self.queued.is_empty()
    }

    /// Sends the queued statements, and reads their results.
    pub(crate) fn complete(&mut self) -> Result<(), EngineError> {
        if self.queued.is_empty() {
            return self.read_sent();
        }
        self.sync()?;
        let ended = self.end_queued();
        self.finish(ended)
    }

    /// Reads the results of one statement, after the results of queued statements.
    pub(crate) fn end(&mut self, each: &mut dyn FnMut(DataRowBody)) -> Result<End, EngineError> {
        self.end_queued()?;
        self.end_one(each)
    }

    fn end_queued(&mut self) -> Result<(), EngineError> {
        self.read_sent()?;
        let queued = std::mem::take(&mut self.queued);
        self.end_all(queued)
    }

    /// After an error the server skips every later statement of the message.
    fn end_all(&mut self, statements: Vec<Expected>) -> Result<(), EngineError> {
        for expected in statements {
            let End::Complete(tag) = self.end_one(&mut |_| {})? else {
                continue;
            };
            match expected {
                Expected::Change if changed(&tag) == 0 => {
                    return Err(EngineError {
                        fault: Fault::Fenced,
                        source: Box::new(NothingChanged),
                    });
                }
                Expected::Commit if tag != "COMMIT" => {
                    return Err(EngineError {
                        fault: Fault::Other,
                        source: format!("the database answered COMMIT with {tag}").into(),
                    });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn end_one(&mut self, each: &mut dyn FnMut(DataRowBody)) -> Result<End, EngineError> {
        loop {
            match self.next()? {
                Message::BindComplete => {}
                Message::DataRow(row) => each(row),
                Message::CommandComplete(body) => {
                    return Ok(End::Complete(body.tag().map_err(unusable)?.to_owned()));
                }
                Message::PortalSuspended => return Ok(End::Suspended),
                Message::EmptyQueryResponse => return Ok(End::Complete(String::new())),
                Message::ErrorResponse(body) => return Err(self.profile.error(body.fields())),
                _ => return Err(self.unexpected()),
            }
        }
    }

    pub(crate) fn description(&mut self) -> Result<(Vec<Oid>, Vec<Oid>), EngineError> {
        self.end_queued()?;
        let mut parameters = Vec::new();
        loop {
            match self.next()? {
                Message::ParseComplete => {}
                Message::ParameterDescription(body) => {
                    parameters = body.parameters().collect().map_err(unusable)?;
                }
                Message::RowDescription(body) => {
                    let columns = body.fields().map(|field| Ok(field.type_oid()));
                    return Ok((parameters, columns.collect().map_err(unusable)?));
                }
                Message::NoData => return Ok((parameters, Vec::new())),
                Message::ErrorResponse(body) => return Err(self.profile.error(body.fields())),
                _ => return Err(self.unexpected()),
            }
        }
    }

    /// Reads to the end of an exchange whose `result` is known.
    pub(crate) fn finish<T>(&mut self, result: Result<T, EngineError>) -> Result<T, EngineError> {
        if self.is_broken {
            return result;
        }
        match (result, self.until_ready()) {
            (Ok(result), Ok(())) => Ok(result),
            (Err(error), _) | (Ok(_), Err(error)) => Err(error),
        }
    }

    /// Reads to `ReadyForQuery`. The first error on the way is returned.
    pub(crate) fn until_ready(&mut self) -> Result<(), EngineError> {
        let mut ended = Ok(());
        loop {
            let message = match self.next() {
                Ok(message) => message,
                // A fatal error is followed by the end of the connection, which is less informative.
                Err(error) => return ended.and(Err(error)),
            };
            match message {
                Message::ReadyForQuery(body) => {
                    self.is_in_transaction = body.status() != b'I';
                    return ended;
                }
                Message::ErrorResponse(body) => {
                    ended = ended.and(Err(self.profile.error(body.fields())));
                }
                _ => {}
            }
        }
    }

    fn unexpected(&mut self) -> EngineError {
        self.broken("the server sent an unexpected message")
    }

    pub(crate) fn broken(&mut self, problem: &'static str) -> EngineError {
        self.is_broken = true;
        lost(io::Error::new(io::ErrorKind::InvalidData, problem))
    }
}

pub fn lost(error: io::Error) -> EngineError {
    EngineError {
        fault: Fault::Lost,
        source: Box::new(error),
    }
}

pub(crate) fn unusable(error: io::Error) -> EngineError {
    EngineError {
        fault: Fault::Other,
        source: Box::new(error),
    }
}
