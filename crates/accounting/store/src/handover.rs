//! Handover of a store to a successor: units of open requests, sent to the process that writes the database now.
//!
//! One process writes at any moment. In an upgrade the old process makes its queue durable, closes the database, and passes the locks on.
//! The old process still finishes open requests, whose holds are on the disk. The end of an open request is sent to the new process as a
//! unit of work. The unit is acknowledged when it is durable in the new process. The end of a request needs few kinds of parts: the end of
//! a hold, the usage of a request without cost, and the end of an idempotency key's claim. Any other unit is refused, as for a full queue.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use tollgate_money::AccountId;

use crate::codes::Endpoint;
use crate::entries::{Body, LedgerPart};
use crate::error::{Failure, FailureKind, Refusal};
use crate::idempotency::{IdempotencyKey, IdempotencyPart, KeptAnswer};
use crate::journal::Packer;
use crate::unit::{Admission, Part, Receipt, UnitOfWork};

/// Maximum length of a message in bytes. A unit is at most a recorded response with its charge.
const MESSAGE_BYTES_MAX: usize = 1 << 28;

/// The results of units, in order.
pub type Answers = Vec<Result<Receipt, Refusal>>;

/// The connection to the process that writes the database now.
pub trait Successor: Send {
    /// Commits units in order; returns when every unit is durable or refused.
    ///
    /// # Errors
    ///
    /// The connection is lost. Whether the units are durable is unknown here. The successor releases every hold whose end it has not
    /// received.
    fn commit(&mut self, units: &[&UnitOfWork]) -> Result<Answers, Failure>;
}

/// A store whose database is closed, for its successor.
#[derive(Debug)]
pub struct Handover {
    /// Open files whose locks the successor takes over; empty for a database on a server.
    pub files: Vec<File>,
    pub(crate) to: SyncSender<Box<dyn Successor>>,
}

impl Handover {
    /// Sends the waiting units, and all later units, to the successor. Dropping the handover stops the store.
    pub fn forward(self, successor: Box<dyn Successor>) {
        // The writer's thread waits for the successor, unless a panic has stopped the thread and the store.
        let _ = self.to.send(successor);
    }
}

/// Whether a unit can be sent to a successor.
pub(crate) fn is_forwarded(unit: &UnitOfWork) -> bool {
    unit.parts().iter().all(|part| match part {
        Part::Ledger(part) => matches!(
            part,
            LedgerPart::Settle { .. } | LedgerPart::Release { .. } | LedgerPart::Charge { .. }
        ),
        Part::Idempotency(part) => matches!(
            **part,
            IdempotencyPart::Keep { .. }
                | IdempotencyPart::Free { .. }
                | IdempotencyPart::Lapse { .. }
        ),
        _ => false,
    })
}

/// A successor at the other end of a stream.
#[derive(Debug)]
pub struct SuccessorLink<S>(pub S);

/// Encodes units of the kinds that are sent to a successor.
pub(crate) fn encode_units<'u>(units: impl ExactSizeIterator<Item = &'u UnitOfWork>) -> Vec<u8> {
    let mut message = Message::default();
    message.number(units.len() as u64);
    units.for_each(|unit| message.unit(unit));
    message.0
}

/// Decodes units.
pub(crate) fn decode_units(bytes: &[u8]) -> io::Result<Vec<UnitOfWork>> {
    let mut fields = Fields(bytes);
    let count = fields.number()?;
    (0..count).map(|_| fields.unit()).collect()
}

impl<S: Read + Write + Send> Successor for SuccessorLink<S> {
    fn commit(&mut self, units: &[&UnitOfWork]) -> Result<Answers, Failure> {
        let lost = |error: io::Error| Failure {
            kind: FailureKind::Closed,
            message: Arc::from(format!(
                "the process that took over the database does not answer any more ({error})"
            )),
        };
        let message = encode_units(units.iter().copied());
        write_message(&mut self.0, &message).map_err(lost)?;
        let bytes = read_message(&mut self.0).and_then(|bytes| bytes.ok_or_else(ended));
        let bytes = bytes.map_err(lost)?;
        let mut answers = Fields(&bytes);
        units
            .iter()
            .map(|unit| answers.answer(unit))
            .collect::<io::Result<_>>()
            .map_err(lost)
    }
}

/// Receives units of a predecessor until the predecessor closes the connection. Answers a message when `commit` has returned. `goes_on` is
/// asked before every message: with `false` the next message is left unread, for another process that gets the connection.
///
/// # Errors
///
/// When the connection breaks, `commit` fails, or the predecessor sends a message that this release cannot read.
pub fn serve_predecessor<S: Read + Write>(
    stream: &mut S,
    mut goes_on: impl FnMut(&S) -> io::Result<bool>,
    mut commit: impl FnMut(Vec<UnitOfWork>) -> io::Result<Answers>,
) -> io::Result<()> {
    while goes_on(stream)?
        && let Some(bytes) = read_message(stream)?
    {
        let mut message = Message::default();
        for answer in commit(decode_units(&bytes)?)? {
            message.0.push(match answer {
                Ok(_) => ACCEPTED,
                Err(Refusal::NoHold(_)) => NO_HOLD,
                Err(_) => REFUSED,
            });
        }
        write_message(stream, &message.0)?;
    }
    Ok(())
}

const ACCEPTED: u8 = 0;
const NO_HOLD: u8 = 1;
const REFUSED: u8 = 2;

const LEDGER: u8 = 1;
const KEEP: u8 = 2;
const FREE: u8 = 3;
const LAPSE: u8 = 4;

/// A message, as a sequence of fields.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn unit(&mut self, unit: &UnitOfWork) {
        self.number(unit.parts().len() as u64);
        for part in unit.parts() {
            match part {
                Part::Ledger(part) => {
                    let mut packer = Packer::default();
                    packer.push(part);
                    self.0.push(LEDGER);
                    self.bytes(&packer.finish());
                }
                Part::Idempotency(part) => match &**part {
                    IdempotencyPart::Keep { key, token, answer } => {
                        self.claim(KEEP, key, *token);
                        self.number(u64::from(answer.status));
                        self.bytes(answer.headers.as_bytes());
                        self.0.push(u8::from(answer.body.is_some()));
                        self.bytes(answer.body.as_deref().unwrap_or_default());
                    }
                    IdempotencyPart::Free { key, token } => self.claim(FREE, key, *token),
                    IdempotencyPart::Lapse { key, token } => self.claim(LAPSE, key, *token),
                    _ => unreachable!("such a unit is not forwarded"),
                },
                _ => unreachable!("such a unit is not forwarded"),
            }
        }
    }

    fn claim(&mut self, kind: u8, key: &IdempotencyKey, token: i64) {
        self.0.push(kind);
        self.0.extend_from_slice(key.account.as_bytes());
        self.number(key.endpoint.code() as u64);
        self.bytes(key.key.as_bytes());
        self.number(token as u64);
    }
}

/// The unread fields of a message.
struct Fields<'m>(&'m [u8]);

impl<'m> Fields<'m> {
    fn take(&mut self, length: usize) -> io::Result<&'m [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(unreadable)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8)?);
        Ok(u64::from_be_bytes(bytes))
    }

    fn bytes(&mut self) -> io::Result<&'m [u8]> {
        let length = usize::try_from(self.number()?).map_err(|_| unreadable())?;
        self.take(length)
    }

    fn text(&mut self) -> io::Result<Arc<str>> {
        let text = std::str::from_utf8(self.bytes()?).map_err(|_| unreadable())?;
        Ok(Arc::from(text))
    }

    fn unit(&mut self) -> io::Result<UnitOfWork> {
        let count = self.number()?;
        let parts = (0..count)
            .map(|_| self.part())
            .collect::<io::Result<Vec<_>>>()?;
        Ok(UnitOfWork::of_all(parts, Admission::Always))
    }

    fn part(&mut self) -> io::Result<Part> {
        let kind = self.byte()?;
        if kind == LEDGER {
            let body = Body::read(self.bytes()?).map_err(|_| unreadable())?;
            let mut parts = body
                .records()
                .map(|record| record.and_then(|record| record.part()));
            return match (parts.next(), parts.next()) {
                (Some(Ok(part)), None) => Ok(Part::Ledger(part)),
                _ => Err(unreadable()),
            };
        }
        let mut account = [0; 16];
        account.copy_from_slice(self.take(16)?);
        let endpoint = i64::try_from(self.number()?).ok();
        let key = IdempotencyKey {
            account: AccountId::from_bytes(account),
            endpoint: endpoint
                .and_then(Endpoint::from_code)
                .ok_or_else(unreadable)?,
            key: self.text()?,
        };
        let token = self.number()? as i64;
        let part = match kind {
            KEEP => {
                let status = u16::try_from(self.number()?).map_err(|_| unreadable())?;
                let headers = self.text()?;
                let has_body = self.byte()? == 1;
                let body = self.bytes()?;
                let answer = KeptAnswer {
                    status,
                    headers,
                    body: has_body.then(|| Arc::from(body)),
                };
                IdempotencyPart::Keep { key, token, answer }
            }
            FREE => IdempotencyPart::Free { key, token },
            LAPSE => IdempotencyPart::Lapse { key, token },
            _ => return Err(unreadable()),
        };
        Ok(Part::Idempotency(Box::new(part)))
    }

    fn answer(&mut self, unit: &UnitOfWork) -> io::Result<Result<Receipt, Refusal>> {
        let operation = unit.parts().iter().find_map(|part| match part {
            Part::Ledger(LedgerPart::Settle { operation, .. })
            | Part::Ledger(LedgerPart::Release { operation, .. }) => Some(*operation),
            _ => None,
        });
        Ok(match (self.byte()?, operation) {
            (ACCEPTED, _) => Ok(Receipt::default()),
            (NO_HOLD, Some(operation)) => Err(Refusal::NoHold(operation)),
            _ => Err(Refusal::Invalid(
                "the process that took over the database refused it",
            )),
        })
    }
}

fn unreadable() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the other release sent a message that this one cannot read",
    )
}

fn ended() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

/// Writes a message: its length in eight bytes, then its fields.
fn write_message(stream: &mut impl Write, message: &[u8]) -> io::Result<()> {
    stream.write_all(&(message.len() as u64).to_be_bytes())?;
    stream.write_all(message)?;
    stream.flush()
}

/// Reads a message; `None` when the other end has closed the connection between two messages.
fn read_message(stream: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 8];
    loop {
        match stream.read(&mut length[..1]) {
            Ok(0) => return Ok(None),
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    stream.read_exact(&mut length[1..])?;
    let length = usize::try_from(u64::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > MESSAGE_BYTES_MAX {
        return Err(unreadable());
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message)?;
    Ok(Some(message))
}
