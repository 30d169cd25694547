//! The canonical form of a request body: equal for requests that any provider would answer alike.
//!
//! Two bodies have equal forms exactly when they are equivalent JSON: in any order of members, with any white space and any escapes, with
//! `1` for `1.0`. A number keeps its exact decimal value, so that two seeds beyond 2^53 stay two requests. Top-level members that only
//! choose the delivery of an answer, or label the answer, are dropped.
//!
//! The form is used for digests only. The form is short, which makes the digest fast. A visitor of the reader builds the form during the
//! parse of a body. The first byte of every value encodes kind and length, so that two different lists of values have different forms:
//!
//! | First byte | Value | Then |
//! |---|---|---|
//! | `01`, `02`, `03` | null, false, true | |
//! | `04` to `3f` | a string that is a `Word` | |
//! | `40` + length, `7f` | another string; one of 63 bytes or more | its length in eight bytes if it is `7f`; the string without escapes |
//! | `80` + length, `9f` | a number; one of 31 bytes or more | its length as for a string; the number as `number` has it |
//! | `a0` + items, `bf` | an array; one of 31 items or more | its items; `00` if it is `bf` |
//! | `c0` + members, `df` | an object; one of 31 members or more | name and value of each by the bytes of the names; `00` if it is `df` |

mod number;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use smallvec::SmallVec;

use crate::json::{Kind, Reader, SyntaxError, Visitor};
use crate::request::CompletionRequest;
use crate::string::Text;
use crate::word::Word;

const END: u8 = 0x00;
const NULL: u8 = 0x01;
const FALSE: u8 = 0x02;
const TRUE: u8 = 0x03;
const WORD: u8 = 0x04;
const STRING: u8 = 0x40;
const NUMBER: u8 = 0x80;
const ARRAY: u8 = 0xa0;
const OBJECT: u8 = 0xc0;

/// The lengths of strings, and of other values, from which on the first byte does not encode the length.
const LONG_STRING: usize = 0x3f;
const LONG: usize = 0x1f;

/// The last word with a separate first byte. Later words occur in answers only.
const LAST_WORD: Word = Word::Auto;
const _: () = assert!(WORD + (LAST_WORD as u8) < STRING);

/// Forms of up to this many bytes are kept with the request; a longer form is built again on demand. The kept forms stay small compared to
/// the buffers of a connection, for a body of any size.
const KEPT_BYTES_MAX: usize = 32 * 1024;

/// A form of at most this size is kept unchanged, with its spare capacity.
const SPARE_BYTES_MAX: usize = 4 * 1024;

/// Bytes that may be moved for each byte of the body. Members out of the canonical order are moved once a level; only an adversarial body
/// reaches the limit.
const MOVES_MAX: usize = 16;

/// Whether a top-level member does not change the model's output. The builder of the key adds the model itself, because the name in the
/// body may be missing or an alias.
fn is_dropped(name: Option<Word>) -> bool {
    matches!(
        name,
        Some(
            Word::Cache
                | Word::Stream
                | Word::StreamOptions
                | Word::User
                | Word::Metadata
                | Word::Store
                | Word::ServiceTier
                | Word::Model
        )
    )
}

/// Why a body has no canonical form. The body can be forwarded, but not be compared with other bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CanonicalError {
    /// A duplicate name in an object: parsers differ in the chosen value.
    #[error("duplicate member name")]
    DuplicateNames,
    /// A string holds half a surrogate pair, which is not valid text.
    #[error("a string holds half a surrogate pair")]
    HalfPair,
    /// An exponent out of range.
    #[error("a number is out of every range")]
    Number,
    /// The sort of an object's members would take too long.
    #[error("its members stand too deep in the wrong order")]
    TooCostly,
    /// The body is not JSON.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
}

/// The canonical form of a parsed body, if kept.
#[derive(Clone)]
pub(crate) enum Form {
    Kept(Vec<u8>),
    /// To be built again from the body.
    TooLong,
    None(CanonicalError),
}

impl std::fmt::Debug for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Request content stays out of every log.
        match self {
            Self::Kept(form) => write!(f, "Kept({} bytes)", form.len()),
            Self::TooLong => f.write_str("TooLong"),
            Self::None(error) => write!(f, "None({error})"),
        }
    }
}

/// Appends the canonical form of the body of `request` to `out`.
///
/// # Errors
///
/// The body has no canonical form; `out` is unchanged.
pub fn write(
    request: &CompletionRequest,
    body: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), CanonicalError> {
    match &request.canonical {
        Form::Kept(form) => out.extend_from_slice(form),
        Form::TooLong => out.append(&mut make(body)?),
        Form::None(error) => return Err(*error),
    }
    Ok(())
}

/// Builds the canonical form of any JSON text, however long.
fn make(body: &[u8]) -> Result<Vec<u8>, CanonicalError> {
    let mut reader = Reader::with_visitor(body, Encoder::unbounded(body.len()));
    reader.skip()?;
    reader.end()?;
    match reader.visitor().finish() {
        Form::Kept(form) => Ok(form),
        Form::None(error) => Err(error),
        Form::TooLong => Err(CanonicalError::TooCostly),
    }
}

/// The visitor that builds the canonical form.
pub(crate) struct Encoder {
    out: Vec<u8>,
    /// The open objects and arrays.
    frames: SmallVec<[Frame; 8]>,
    /// The members of every open object, the innermost object's members last.
    members: SmallVec<[Member; 16]>,
    /// The depth inside a dropped value; the value itself is level 1. Without a form, deeper than any value.
    unheard: u32,
    moves_left: usize,
    bytes_max: usize,
    /// Why the body will have no form.
    none: Option<Form>,
}

/// An open object or array.
struct Frame {
    kind: Kind,
    /// The position of the value's first byte.
    start: usize,
    /// Values inside so far.
    values: usize,
    /// Position of the object's first member in the list of members.
    members: usize,
    /// Whether the object's members have arrived in canonical order.
    sorted: bool,
}

/// A member of an open object.
#[derive(Clone, Copy)]
struct Member {
    start: usize,
    /// The position of the member's value.
    value: usize,
    /// The position of the next member of the object. Known when the object is sorted.
    end: usize,
}

impl Member {
    fn name(self, out: &[u8]) -> &[u8] {
        &out[self.start..self.value]
    }
}

/// Deeper than any parsed value.
const NEVER: u32 = u32::MAX / 2;

impl Encoder {
    /// Stops when the form of a body of `body_bytes` is too long to be kept.
    pub(crate) fn new(body_bytes: usize) -> Self {
        Self::within(body_bytes, KEPT_BYTES_MAX)
    }

    fn unbounded(body_bytes: usize) -> Self {
        Self::within(body_bytes, usize::MAX)
    }

    fn within(body_bytes: usize, bytes_max: usize) -> Self {
        Self {
            // Most forms are shorter than their bodies.
            out: Vec::with_capacity(body_bytes.min(bytes_max)),
            frames: SmallVec::new(),
            members: SmallVec::new(),
            unheard: 0,
            moves_left: body_bytes.saturating_mul(MOVES_MAX),
            bytes_max,
            none: None,
        }
    }

    /// The form of the complete value. The form is moved out of the encoder, because the encoder is large.
    pub(crate) fn finish(&mut self) -> Form {
        let mut form = std::mem::take(&mut self.out);
        if form.capacity() > SPARE_BYTES_MAX {
            // The form may have grown to twice its length during the sort of members.
            form.shrink_to_fit();
        }
        self.none.take().unwrap_or(Form::Kept(form))
    }

    #[cold]
    fn give_up(&mut self, none: Form) {
        self.unheard = NEVER;
        self.none = Some(none);
        self.out = Vec::new();
    }

    /// Records the start of a value, and returns whether the value is part of the form.
    #[inline]
    fn begins(&mut self) -> bool {
        if self.unheard > 0 {
            return false;
        }
        if self.out.len() > self.bytes_max {
            self.give_up(Form::TooLong);
            return false;
        }
        if let Some(frame) = self.frames.last_mut() {
            frame.values += 1;
        }
        true
    }

    /// Appends a string without escapes, or a number.
    #[inline]
    fn text(&mut self, first: u8, long: usize, text: &[u8]) {
        if self.out.len().saturating_add(text.len()) > self.bytes_max {
            return self.give_up(Form::TooLong);
        }
        if text.len() < long {
            self.out.push(first | text.len() as u8);
        } else {
            self.out.push(first | long as u8);
            self.out
                .extend_from_slice(&(text.len() as u64).to_le_bytes());
        }
        self.out.extend_from_slice(text);
    }

    #[inline]
    fn write_text(&mut self, text: Text<'_>, word: Option<Word>) {
        match word {
            Some(word) if word as u8 <= LAST_WORD as u8 => self.out.push(WORD + word as u8),
            _ if text.escaped => self.escaped(text),
            _ => self.text(STRING, LONG_STRING, text.raw),
        }
    }

    #[cold]
    fn escaped(&mut self, text: Text<'_>) {
        let Some(decoded) = text.decode() else {
            return self.give_up(Form::None(CanonicalError::HalfPair));
        };
        let raw = decoded.as_bytes();
        let escaped = false;
        self.write_text(Text { raw, escaped }, Word::at(raw, 0, raw.len()));
    }

    /// Sorts the members of a complete object.
    #[cold]
    fn sort(&mut self, first: usize) {
        let members = &mut self.members[first..];
        let object_end = self.out.len();
        let mut start = object_end;
        for member in members.iter_mut().rev() {
            member.end = start;
            start = member.start;
        }
        let Some(moves_left) = self.moves_left.checked_sub(object_end - start) else {
            return self.give_up(Form::None(CanonicalError::TooCostly));
        };
        self.moves_left = moves_left;
        let name = |member: &Member| member.name(&self.out);
        members.sort_unstable_by(|one, other| name(one).cmp(name(other)));
        if members
            .windows(2)
            .any(|pair| name(&pair[0]) == name(&pair[1]))
        {
            return self.give_up(Form::None(CanonicalError::DuplicateNames));
        }
        // The members are written in order behind the object, and afterwards moved to the object's position.
        for member in &*members {
            self.out.extend_from_within(member.start..member.end);
        }
        self.out.copy_within(object_end.., start);
        self.out.truncate(object_end);
    }
}

impl Visitor for Encoder {
    #[inline]
    fn open(&mut self, kind: Kind) {
        if !self.begins() {
            self.unheard += 1;
            return;
        }
        self.frames.push(Frame {
            kind,
            start: self.out.len(),
            values: 0,
            members: self.members.len(),
            sorted: true,
        });
        // The first byte is written when the number of values is known.
        self.out.push(END);
    }

    fn close(&mut self) {
        if self.unheard > 1 {
            self.unheard -= 1;
            return;
        }
        self.unheard = 0;
        let Some(frame) = self.frames.pop() else {
            return;
        };
        if !frame.sorted {
            self.sort(frame.members);
        }
        self.members.truncate(frame.members);
        let Some(first) = self.out.get_mut(frame.start) else {
            return; // It was given up.
        };
        let kind = match frame.kind {
            Kind::Object => OBJECT,
            _ => ARRAY,
        };
        *first = kind | frame.values.min(LONG) as u8;
        if frame.values >= LONG {
            self.out.push(END);
        }
    }

    #[inline]
    fn name(&mut self, name: Text<'_>, word: Option<Word>) {
        if self.unheard > 1 {
            return;
        }
        self.unheard = 0;
        if self.frames.len() == 1 && is_dropped(word) {
            self.unheard = 1;
            return;
        }
        let start = self.out.len();
        self.write_text(name, word);
        let value = self.out.len();
        let Some(frame) = self.frames.last_mut().filter(|_| self.unheard == 0) else {
            return; // It was given up.
        };
        let member = Member {
            start,
            value,
            end: value,
        };
        if let [.., before] = self.members[frame.members..] {
            // The first bytes nearly always decide: most names are words, and a word has a separate first byte.
            frame.sorted &= match self.out[before.start].cmp(&self.out[start]) {
                Ordering::Less => true,
                Ordering::Greater => false,
                Ordering::Equal => before.name(&self.out) < &self.out[start..],
            };
        }
        self.members.push(member);
    }

    #[inline]
    fn string(&mut self, text: Text<'_>, word: Option<Word>) {
        if self.begins() {
            self.write_text(text, word);
        }
    }

    fn number(&mut self, text: &[u8]) {
        if !self.begins() {
            return;
        }
        if number::is_canonical(text) {
            return self.text(NUMBER, LONG, text);
        }
        let mut canonical = SmallVec::<[u8; 32]>::new();
        match number::write(text, &mut canonical) {
            Some(()) => self.text(NUMBER, LONG, &canonical),
            None => self.give_up(Form::None(CanonicalError::Number)),
        }
    }

    fn bool(&mut self, value: bool) {
        if self.begins() {
            self.out.push(if value { TRUE } else { FALSE });
        }
    }

    fn null(&mut self) {
        if self.begins() {
            self.out.push(NULL);
        }
    }
}
