//! The write-ahead journal's record format: the ledger parts of one commit, packed into bytes and read back.
//!
//! ```text
//! body    = version (1), number of words, words, records
//! word    = length, UTF-8          a model, a provider, a reference: written once, named by its place
//! record  = length (2 bytes), kind (1), operation (16), account (16), time (8), what the kind needs
//! ```
//!
//! The head of a record has fixed places: a reader searching for an account or an operation skips other records without decoding. Numbers
//! after the head are LEB128, signed numbers zigzag first. All other integers are little-endian.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, Micros, OperationId};

use crate::codes::{Endpoint, EntryKind};
use crate::entries::LedgerPart;
use crate::rows::{UsageFlags, UsageRecord};

const VERSION: u8 = 1;

/// Maximum number of recent words compared with a new word.
const WORDS_COMPARED: usize = 32;

const OPERATION: usize = 1;
const ACCOUNT: usize = 17;
const AT: usize = 33;
const HEAD: usize = 41;

/// Why a body, or a record in a body, cannot be decoded. No version writes undecodable data: the file was damaged or edited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(&'static str);

/// Packs ledger parts, in the order of the pushes.
#[derive(Debug, Default)]
pub(crate) struct Packer {
    words: Vec<Arc<str>>,
    records: Vec<u8>,
    count: usize,
}

/// A position in a [`Packer`] to rewind to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    words: usize,
    records: usize,
    count: usize,
}

impl Packer {
    /// Adds a part.
    pub(crate) fn push(&mut self, part: &LedgerPart) {
        let (kind, operation, account, at) = match *part {
            LedgerPart::Hold {
                operation,
                account,
                at,
                ..
            } => (EntryKind::Hold, operation, account, at),
            LedgerPart::Settle {
                operation,
                account,
                at,
                ..
            } => (EntryKind::Settle, operation, account, at),
            LedgerPart::Release {
                operation,
                account,
                at,
                ..
            } => (EntryKind::Release, operation, account, at),
            LedgerPart::Charge {
                operation,
                account,
                at,
                ..
            } => (EntryKind::Charge, operation, account, at),
            LedgerPart::Credit {
                operation,
                account,
                kind,
                at,
                ..
            } => (kind, operation, account, at),
            LedgerPart::Allot {
                operation,
                account,
                at,
                ..
            } => (EntryKind::Allotment, operation, account, at),
            LedgerPart::Carry { operation, at, .. } => {
                (EntryKind::Carry, operation, part.account(), at)
            }
        };
        let begin = self.records.len();
        self.records.extend_from_slice(&[0, 0, kind.code() as u8]);
        self.records.extend_from_slice(operation.as_bytes());
        self.records.extend_from_slice(account.as_bytes());
        self.records
            .extend_from_slice(&at.as_micros().to_le_bytes());
        match part {
            LedgerPart::Hold {
                amount,
                price_version,
                expires_at,
                ..
            } => {
                self.signed(amount.get());
                self.optional(*price_version);
                // Wraps: every pair of times can be read back.
                self.signed(expires_at.as_micros().wrapping_sub(at.as_micros()));
            }
            LedgerPart::Settle {
                held,
                charged,
                written_off,
                price_version,
                usage,
                ..
            } => {
                self.signed(held.get());
                self.signed(charged.get());
                self.signed(written_off.get());
                self.optional(*price_version);
                self.usage(usage);
            }
            LedgerPart::Release { held, .. } => self.signed(held.get()),
            LedgerPart::Charge {
                charged,
                written_off,
                price_version,
                usage,
                ..
            } => {
                self.signed(charged.get());
                self.signed(written_off.get());
                self.optional(*price_version);
                self.usage(usage);
            }
            LedgerPart::Credit {
                amount, reference, ..
            } => {
                self.signed(amount.get());
                let reference = self.word(reference);
                self.unsigned(reference);
            }
            LedgerPart::Allot { amount, .. } => self.signed(amount.get()),
            LedgerPart::Carry { number, digest, .. } => {
                self.signed(*number);
                self.records.extend_from_slice(digest);
            }
        }
        self.end_record(begin);
    }

    /// Copies a record of another body unchanged, except that the words refer to positions in this body.
    pub(crate) fn copy(&mut self, record: &Record<'_>) -> Result<(), DecodeError> {
        let begin = self.records.len();
        self.records.extend_from_slice(&[0, 0]);
        match record.split_words()? {
            None => self.records.extend_from_slice(record.bytes),
            Some(split) => {
                self.records.extend_from_slice(split.before);
                let word = self.word(lookup(record.words, split.word)?);
                self.unsigned(word);
                match split.upstream {
                    None => {}
                    Some(0) => self.unsigned(0),
                    Some(place) => {
                        let upstream = self.word(lookup(record.words, place - 1)?);
                        self.unsigned(upstream + 1);
                    }
                }
                self.records.extend_from_slice(split.after);
            }
        }
        self.end_record(begin);
        Ok(())
    }

    /// Writes the length of the record that starts at `begin`.
    fn end_record(&mut self, begin: usize) {
        let length = self.records.len() - begin - 2;
        // A head and some twenty numbers of ten bytes: texts are stored elsewhere.
        let length = u16::try_from(length).expect("a record is a few hundred bytes at most");
        self.records[begin..begin + 2].copy_from_slice(&length.to_le_bytes());
        self.count += 1;
    }

    fn usage(&mut self, usage: &UsageRecord) {
        match &usage.credential {
            Some(credential) => {
                self.records.push(1);
                self.records.extend_from_slice(credential.as_bytes());
            }
            None => self.records.push(0),
        }
        let model = self.word(&usage.model);
        let upstream = usage.upstream.as_ref().map(|upstream| self.word(upstream));
        self.unsigned(usage.endpoint.code() as u64);
        self.unsigned(model);
        self.unsigned(upstream.map_or(0, |word| word + 1));
        self.unsigned(usage.prompt_tokens);
        self.unsigned(usage.completion_tokens);
        self.unsigned(u64::from(usage.flags.bits()));
        self.unsigned(u64::from(usage.http_status));
        for duration in [usage.ttfb_us, usage.total_us] {
            self.unsigned(duration.map_or(0, |duration| duration.saturating_add(1)));
        }
    }

    /// The index of a word; adds a new word.
    fn word(&mut self, word: &Arc<str>) -> u64 {
        // Newest first, since neighbouring records share words. Only recent words are compared: a word may be stored twice.
        let recent = self.words.len().saturating_sub(WORDS_COMPARED);
        let known = self.words[recent..]
            .iter()
            .rposition(|known| Arc::ptr_eq(known, word) || known == word)
            .map(|place| recent + place);
        let place = known.unwrap_or_else(|| {
            self.words.push(Arc::clone(word));
            self.words.len() - 1
        });
        place as u64
    }

    fn optional(&mut self, number: Option<i64>) {
        match number {
            Some(number) => {
                self.records.push(1);
                self.signed(number);
            }
            None => self.records.push(0),
        }
    }

    fn signed(&mut self, number: i64) {
        self.unsigned(((number << 1) ^ (number >> 63)) as u64);
    }

    fn unsigned(&mut self, number: u64) {
        leb128(&mut self.records, number);
    }

    /// A body without records, with `note` in place of a word.
    pub(crate) fn noted(note: &str) -> Vec<u8> {
        let words = vec![Arc::from(note)];
        let mut packer = Packer {
            words,
            ..Packer::default()
        };
        packer.finish()
    }

    /// Number of parts.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The current position, for [`Packer::rewind`].
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            words: self.words.len(),
            records: self.records.len(),
            count: self.count,
        }
    }

    /// Removes the parts added since `mark`.
    pub(crate) fn rewind(&mut self, mark: Mark) {
        self.words.truncate(mark.words);
        self.records.truncate(mark.records);
        self.count = mark.count;
    }

    /// The body of all parts so far.
    pub(crate) fn pending(&self) -> Vec<u8> {
        let mut body = Vec::new();
        self.write_into(&mut body);
        body
    }

    /// The body of all parts; leaves the packer empty.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        self.finish_into(&mut body);
        body
    }

    /// [`Packer::finish`] into `body`, in place of the content.
    pub(crate) fn finish_into(&mut self, body: &mut Vec<u8>) {
        self.write_into(body);
        self.words.clear();
        self.records.clear();
        self.count = 0;
    }

    fn write_into(&self, body: &mut Vec<u8>) {
        let words: usize = self.words.iter().map(|word| word.len() + 4).sum();
        body.clear();
        body.reserve(8 + words + self.records.len());
        body.push(VERSION);
        leb128(body, self.words.len() as u64);
        for word in &self.words {
            leb128(body, word.len() as u64);
            body.extend_from_slice(word.as_bytes());
        }
        body.extend_from_slice(&self.records);
    }
}

fn leb128(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// A body being decoded.
#[derive(Debug)]
pub struct Body<'b> {
    words: Vec<Arc<str>>,
    records: &'b [u8],
}

impl<'b> Body<'b> {
    /// The body in `bytes`.
    pub fn read(bytes: &'b [u8]) -> Result<Body<'b>, DecodeError> {
        let Some((&VERSION, rest)) = bytes.split_first() else {
            return Err(DecodeError("is of a version that this one does not know"));
        };
        let mut at = Fields(rest);
        let count = at.unsigned()?;
        let mut words = Vec::new();
        for _ in 0..count {
            let length = at.unsigned()?;
            let text = at.take(usize::try_from(length).map_err(|_| CUT)?)?;
            let text =
                std::str::from_utf8(text).map_err(|_| DecodeError("has a word that is no text"))?;
            words.push(Arc::from(text));
        }
        Ok(Body {
            words,
            records: at.0,
        })
    }

    /// The note of a commit without records, written by a repair.
    pub fn note(&self) -> Option<&str> {
        let is_empty = self.records.is_empty();
        self.words.first().filter(|_| is_empty).map(|note| &**note)
    }

    /// The body's records, in the order of packing.
    pub fn records(&self) -> impl Iterator<Item = Result<Record<'_>, DecodeError>> {
        let mut rest = Fields(self.records);
        std::iter::from_fn(move || {
            if rest.0.is_empty() {
                return None;
            }
            let record = rest.record(&self.words);
            if record.is_err() {
                // The start of the next record is unknown too.
                rest.0 = &[];
            }
            Some(record)
        })
    }
}

/// A record with only the head decoded.
#[derive(Clone, Copy, Debug)]
pub struct Record<'b> {
    bytes: &'b [u8],
    words: &'b [Arc<str>],
}

impl Record<'_> {
    fn id(&self, from: usize) -> [u8; 16] {
        let mut id = [0; 16];
        id.copy_from_slice(&self.bytes[from..from + 16]);
        id
    }

    /// The operation.
    pub fn operation(&self) -> OperationId {
        OperationId::from_bytes(self.id(OPERATION))
    }

    /// The account.
    pub fn account(&self) -> AccountId {
        AccountId::from_bytes(self.id(ACCOUNT))
    }

    /// The record's time.
    pub fn at(&self) -> Timestamp {
        let mut at = [0; 8];
        at.copy_from_slice(&self.bytes[AT..HEAD]);
        Timestamp::from_micros(i64::from_le_bytes(at))
    }

    /// Whether the account's owner sees the record: balance changes and usage. Holds, releases, moves between nodes and carries are not
    /// shown.
    pub fn is_owner_visible(&self) -> bool {
        ![
            EntryKind::Hold.code(),
            EntryKind::Release.code(),
            EntryKind::Allotment.code(),
            EntryKind::Carry.code(),
        ]
        .contains(&i64::from(self.bytes[0]))
    }

    /// Whether the record seals a removal of commits.
    pub(crate) fn is_carry(&self) -> bool {
        i64::from(self.bytes[0]) == EntryKind::Carry.code()
    }

    /// The indices of the record's words, separate from the rest; `None` for a kind without words.
    fn split_words(&self) -> Result<Option<SplitWords<'_>>, DecodeError> {
        let kind = EntryKind::from_code(i64::from(self.bytes[0])).ok_or(UNKNOWN_KIND)?;
        let mut fields = Fields(&self.bytes[HEAD..]);
        let amounts = match kind {
            EntryKind::Hold | EntryKind::Release | EntryKind::Allotment | EntryKind::Carry => {
                return Ok(None);
            }
            EntryKind::Settle => 3,
            EntryKind::Charge => 2,
            _ => 1,
        };
        for _ in 0..amounts {
            fields.signed()?;
        }
        let is_usage = matches!(kind, EntryKind::Settle | EntryKind::Charge);
        if is_usage {
            fields.optional()?;
            fields.credential()?;
            // The endpoint.
            fields.unsigned()?;
        }
        let before = &self.bytes[..self.bytes.len() - fields.0.len()];
        let word = fields.unsigned()?;
        let upstream = is_usage.then(|| fields.unsigned()).transpose()?;
        Ok(Some(SplitWords {
            before,
            word,
            upstream,
            after: fields.0,
        }))
    }

    /// The packed part.
    pub fn part(&self) -> Result<LedgerPart, DecodeError> {
        let kind = EntryKind::from_code(i64::from(self.bytes[0]));
        let kind = kind.ok_or(UNKNOWN_KIND)?;
        let (operation, account, at) = (self.operation(), self.account(), self.at());
        let mut fields = Fields(&self.bytes[HEAD..]);
        let part = match kind {
            EntryKind::Hold => LedgerPart::Hold {
                operation,
                account,
                amount: fields.micros()?,
                price_version: fields.optional()?,
                at,
                expires_at: Timestamp::from_micros(at.as_micros().wrapping_add(fields.signed()?)),
            },
            EntryKind::Settle => LedgerPart::Settle {
                operation,
                account,
                held: fields.micros()?,
                charged: fields.micros()?,
                written_off: fields.micros()?,
                price_version: fields.optional()?,
                usage: fields.usage(self.words)?,
                at,
            },
            EntryKind::Release => LedgerPart::Release {
                operation,
                account,
                held: fields.micros()?,
                at,
            },
            EntryKind::Charge => LedgerPart::Charge {
                operation,
                account,
                charged: fields.micros()?,
                written_off: fields.micros()?,
                price_version: fields.optional()?,
                usage: fields.usage(self.words)?,
                at,
            },
            EntryKind::Allotment => LedgerPart::Allot {
                operation,
                account,
                amount: fields.micros()?,
                at,
            },
            EntryKind::Carry => LedgerPart::Carry {
                operation,
                number: fields.signed()?,
                digest: fields.digest()?,
                at,
            },
            kind => LedgerPart::Credit {
                operation,
                account,
                kind,
                amount: fields.micros()?,
                reference: fields.word(self.words)?,
                at,
            },
        };
        match fields.0 {
            [] => Ok(part),
            _ => Err(DecodeError("has a record that is longer than its kind")),
        }
    }
}

/// A record with the indices of its words located.
struct SplitWords<'b> {
    before: &'b [u8],
    /// The index of the record's model or reference.
    word: u64,
    /// The stored index of the record's provider: the index plus 1, zero for no provider. Not a field of all kinds.
    upstream: Option<u64>,
    after: &'b [u8],
}

const CUT: DecodeError = DecodeError("ends in the middle of a record");

const UNKNOWN_KIND: DecodeError =
    DecodeError("has a record of a kind that this version does not know");

/// The unread bytes.
struct Fields<'b>(&'b [u8]);

impl<'b> Fields<'b> {
    fn take(&mut self, length: usize) -> Result<&'b [u8], DecodeError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(CUT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn record<'r>(&mut self, words: &'r [Arc<str>]) -> Result<Record<'r>, DecodeError>
    where
        'b: 'r,
    {
        let length = self.take(2)?;
        let bytes = self.take(usize::from(u16::from_le_bytes([length[0], length[1]])))?;
        if bytes.len() < HEAD {
            return Err(CUT);
        }
        Ok(Record { bytes, words })
    }

    fn unsigned(&mut self) -> Result<u64, DecodeError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(DecodeError("has a number of more than 64 bits"))
    }

    fn signed(&mut self) -> Result<i64, DecodeError> {
        let number = self.unsigned()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn digest(&mut self) -> Result<[u8; 32], DecodeError> {
        let mut digest = [0; 32];
        digest.copy_from_slice(self.take(32)?);
        Ok(digest)
    }

    fn micros(&mut self) -> Result<Micros, DecodeError> {
        self.signed().map(Micros::new)
    }

    fn present(&mut self) -> Result<bool, DecodeError> {
        match self.take(1)?[0] {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError("has a presence flag that is neither 0 nor 1")),
        }
    }

    fn optional(&mut self) -> Result<Option<i64>, DecodeError> {
        Ok(if self.present()? {
            Some(self.signed()?)
        } else {
            None
        })
    }

    fn word(&mut self, words: &[Arc<str>]) -> Result<Arc<str>, DecodeError> {
        let place = self.unsigned()?;
        lookup(words, place).cloned()
    }

    fn credential(&mut self) -> Result<Option<CredentialId>, DecodeError> {
        Ok(match self.present()? {
            true => {
                let mut id = [0; 16];
                id.copy_from_slice(self.take(16)?);
                Some(CredentialId::from_bytes(id))
            }
            false => None,
        })
    }

    fn usage(&mut self, words: &[Arc<str>]) -> Result<UsageRecord, DecodeError> {
        let credential = self.credential()?;
        let endpoint = i64::try_from(self.unsigned()?)
            .ok()
            .and_then(Endpoint::from_code);
        let endpoint = endpoint.ok_or(DecodeError(
            "has an endpoint that this version does not know",
        ))?;
        let model = self.word(words)?;
        let upstream = match self.unsigned()? {
            0 => None,
            place => Some(lookup(words, place - 1)?.clone()),
        };
        let (prompt_tokens, completion_tokens) = (self.unsigned()?, self.unsigned()?);
        let flags = u32::try_from(self.unsigned()?)
            .map_err(|_| DecodeError("has flags of more than 32 bits"))?;
        let status = u16::try_from(self.unsigned()?)
            .map_err(|_| DecodeError("has a status of more than 16 bits"))?;
        Ok(UsageRecord {
            credential,
            endpoint,
            model,
            upstream,
            prompt_tokens,
            completion_tokens,
            flags: UsageFlags::from_bits(flags),
            http_status: status,
            ttfb_us: self.unsigned()?.checked_sub(1),
            total_us: self.unsigned()?.checked_sub(1),
        })
    }
}

fn lookup(words: &[Arc<str>], place: u64) -> Result<&Arc<str>, DecodeError> {
    let word = usize::try_from(place)
        .ok()
        .and_then(|place| words.get(place));
    word.ok_or(DecodeError("refers to a missing word"))
}

#[cfg(test)]
mod tests;
