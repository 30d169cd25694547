//! The canonical form of a request body: what two requests have in common when any provider would answer both alike.
//!
//! It is RFC 8785 (JSON Canonicalization Scheme) with two differences, both on the safe side. A number keeps its exact decimal
//! value, where RFC 8785 rounds to a binary double, so that two seeds beyond 2^53 stay two requests. And members that choose how an
//! answer is delivered, or only label it, are left out of the top level.

mod number;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cmp::Ordering;

use smallvec::SmallVec;

use crate::json::{Key, Kind, Reader, SyntaxError};
use crate::string::Text;

/// Whether a top-level member does not change what a model says. The model itself is named by whoever makes the key, since its name
/// here may be missing or an alias.
fn is_dropped(name: &[u8]) -> bool {
    matches!(
        name,
        b"cache"
            | b"stream"
            | b"stream_options"
            | b"user"
            | b"metadata"
            | b"store"
            | b"service_tier"
            | b"model"
    )
}

/// Bytes that may be moved for each byte of the body. Members that stand in another order than the canonical one are moved once a
/// level; only a body made to cost time gets here.
const MOVES_MAX: usize = 16;

/// Why a body has no canonical form. It can be forwarded, but not be told from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CanonicalError {
    /// One name stands twice in an object: readers differ in which of the values they take.
    #[error("a member stands twice")]
    Twins,
    /// A string holds half a surrogate pair, which is no text.
    #[error("a string holds half a surrogate pair")]
    HalfPair,
    /// An exponent that no machine holds.
    #[error("a number is out of every range")]
    Number,
    /// Sorting its members would take too long.
    #[error("its members stand too deep in the wrong order")]
    TooCostly,
    /// It is not JSON.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
}

/// Appends the canonical form of a request body to `out`.
///
/// The body is one that [`crate::CompletionRequest::read`] has accepted; what is not is an error or nonsense, never a panic.
///
/// # Errors
///
/// The body has no canonical form; `out` holds a part of one then.
pub fn write(body: &[u8], out: &mut Vec<u8>) -> Result<(), CanonicalError> {
    // What is sorted stands there twice for a moment; most texts become no longer otherwise.
    out.reserve(2 * body.len());
    let mut writer = Writer {
        body,
        reader: Reader::new(body),
        out,
        members: SmallVec::new(),
        frames: SmallVec::new(),
        moves_left: body.len().saturating_mul(MOVES_MAX),
    };
    writer.value()?;
    writer.reader.end()?;
    Ok(())
}

struct Writer<'a, 'o> {
    body: &'a [u8],
    reader: Reader<'a>,
    out: &'o mut Vec<u8>,
    /// The members of all open objects, the innermost object's last.
    members: SmallVec<[Member<'a>; 24]>,
    frames: SmallVec<[Frame; 8]>,
    moves_left: usize,
}

/// One member that has been written, with a comma behind it.
struct Member<'a> {
    name: Cow<'a, [u8]>,
    start: usize,
    /// Where the next member of its object starts. Known when the object is sorted.
    end: usize,
}

/// An object or array that has been stepped into.
enum Frame {
    Array {
        first: bool,
    },
    Object {
        first: bool,
        /// Its first member in the list of all.
        members: usize,
        /// Its members have come in their order.
        sorted: bool,
    },
}

impl<'a> Writer<'a, '_> {
    /// Writes the value that comes next. Nesting is kept in `frames`, so that it costs no stack.
    fn value(&mut self) -> Result<(), CanonicalError> {
        loop {
            let opened = self.scalar_or_open()?;
            if !opened {
                self.after_value();
            }
            // Steps to the next value, closing what is over on the way.
            loop {
                let more = match self.frames.last_mut() {
                    None => return Ok(()),
                    Some(Frame::Array { first }) => self.reader.item(first)?,
                    Some(Frame::Object { first, .. }) => match self.reader.key(first)? {
                        Some(key) => self.member(key)?,
                        None => false,
                    },
                };
                if more {
                    break;
                }
                self.close()?;
                self.after_value();
                if self.frames.is_empty() {
                    return Ok(());
                }
            }
        }
    }

    /// Writes a scalar, or steps into what comes; tells whether it did the latter.
    fn scalar_or_open(&mut self) -> Result<bool, CanonicalError> {
        match self.reader.kind()? {
            Kind::Object => {
                self.reader.enter()?;
                self.out.push(b'{');
                self.frames.push(Frame::Object {
                    first: true,
                    members: self.members.len(),
                    sorted: true,
                });
                return Ok(true);
            }
            Kind::Array => {
                self.reader.enter()?;
                self.out.push(b'[');
                self.frames.push(Frame::Array { first: true });
                return Ok(true);
            }
            Kind::String => {
                let start = self.reader.at();
                let text = self.reader.string()?;
                if text.escaped {
                    string(text, self.out)?;
                } else {
                    let quoted = &self.body[start..self.reader.at()];
                    self.out.extend_from_slice(quoted);
                }
            }
            Kind::Number => {
                let text = self.reader.number()?;
                number::write(text, self.out).ok_or(CanonicalError::Number)?;
            }
            Kind::Bool => {
                let value = self.reader.bool()?;
                self.out
                    .extend_from_slice(if value { b"true" } else { b"false" });
            }
            Kind::Null => {
                self.reader.null()?;
                self.out.extend_from_slice(b"null");
            }
        }
        Ok(false)
    }

    /// Begins a member. Gives false at the end of the object, which can come here when the last members are left out.
    fn member(&mut self, key: Key<'a>) -> Result<bool, CanonicalError> {
        let mut key = key;
        loop {
            let name = key.text.bytes().ok_or(CanonicalError::HalfPair)?;
            if self.frames.len() > 1 || !is_dropped(&name) {
                self.name(&key, name)?;
                return Ok(true);
            }
            self.reader.skip()?;
            let mut first = false;
            match self.reader.key(&mut first)? {
                Some(next) => key = next,
                None => return Ok(false),
            }
        }
    }

    /// Writes the name of a member and its colon.
    fn name(&mut self, key: &Key<'a>, name: Cow<'a, [u8]>) -> Result<(), CanonicalError> {
        if let Some(Frame::Object {
            members, sorted, ..
        }) = self.frames.last_mut()
            && let [.., before] = &self.members[*members..]
        {
            *sorted &= order(&before.name, &name) == Ordering::Less;
        }
        let start = self.out.len();
        let end = start;
        self.members.push(Member { name, start, end });
        let as_it_stands = &self.body[key.at..self.reader.at()];
        // Two quotes and a colon: nothing between them.
        if !key.text.escaped && as_it_stands.len() == key.text.raw.len() + 3 {
            self.out.extend_from_slice(as_it_stands);
        } else {
            string(key.text, self.out)?;
            self.out.push(b':');
        }
        Ok(())
    }

    /// A value is complete: what it belongs to gets its comma.
    fn after_value(&mut self) {
        if !self.frames.is_empty() {
            self.out.push(b',');
        }
    }

    /// Closes the innermost object or array.
    fn close(&mut self) -> Result<(), CanonicalError> {
        let Some(frame) = self.frames.pop() else {
            return Ok(());
        };
        let end = match frame {
            Frame::Array { .. } => b']',
            Frame::Object {
                members, sorted, ..
            } => {
                if !sorted {
                    self.sort(members)?;
                }
                self.members.truncate(members);
                b'}'
            }
        };
        // The comma of the last member goes; an empty one has none.
        match self.out.last_mut() {
            Some(last @ b',') => *last = end,
            _ => self.out.push(end),
        }
        Ok(())
    }

    fn sort(&mut self, members: usize) -> Result<(), CanonicalError> {
        let members = &mut self.members[members..];
        let object_end = self.out.len();
        let mut start = object_end;
        for member in members.iter_mut().rev() {
            member.end = start;
            start = member.start;
        }
        self.moves_left = self
            .moves_left
            .checked_sub(object_end - start)
            .ok_or(CanonicalError::TooCostly)?;
        members.sort_unstable_by(|one, other| order(&one.name, &other.name));
        if members.windows(2).any(|pair| pair[0].name == pair[1].name) {
            return Err(CanonicalError::Twins);
        }
        // They are put in their order behind the object, and that in the place of the object.
        for member in &*members {
            self.out.extend_from_within(member.start..member.end);
        }
        self.out.copy_within(object_end.., start);
        self.out.truncate(object_end);
        Ok(())
    }
}

/// The order of member names: by UTF-16 code units (RFC 8785 section 3.2.3).
fn order(one: &[u8], other: &[u8]) -> Ordering {
    // It differs from that of the bytes only where a surrogate pair meets a character above it, and both start with 0xee or more.
    let mut pairs = one.iter().zip(other);
    match pairs.find(|(one, other)| one != other) {
        Some((0xee.., 0xee..)) => high_order(one, other),
        Some((one, other)) => one.cmp(other),
        None => one.len().cmp(&other.len()),
    }
}

/// The order of two names that differ first in a byte of 0xee or more, which begins a character in both.
#[cold]
fn high_order(one: &[u8], other: &[u8]) -> Ordering {
    let one = String::from_utf8_lossy(one);
    let other = String::from_utf8_lossy(other);
    one.encode_utf16().cmp(other.encode_utf16())
}

/// Appends a string with no more escapes than it needs (RFC 8785 section 3.2.2.2).
fn string(text: Text<'_>, out: &mut Vec<u8>) -> Result<(), CanonicalError> {
    out.push(b'"');
    if !text.escaped {
        out.extend_from_slice(text.raw);
        out.push(b'"');
        return Ok(());
    }
    let mut rest = text.raw;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        let taken = match rest.get(1) {
            // As short as can be already.
            Some(b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't') => {
                out.extend_from_slice(&rest[..2]);
                2
            }
            Some(b'u') => {
                let (character, taken) = crate::string::unicode(rest);
                character_of(character.ok_or(CanonicalError::HalfPair)?, out);
                taken
            }
            Some(&byte) => {
                out.push(byte);
                2
            }
            None => 1,
        };
        rest = &rest[taken..];
    }
    out.extend_from_slice(rest);
    out.push(b'"');
    Ok(())
}

/// Appends one character that was written as an escape.
fn character_of(character: char, out: &mut Vec<u8>) {
    let short = match character {
        '"' => b'"',
        '\\' => b'\\',
        '\u{8}' => b'b',
        '\u{c}' => b'f',
        '\n' => b'n',
        '\r' => b'r',
        '\t' => b't',
        '\0'..='\u{1f}' => {
            const HEX: &[u8; 16] = b"0123456789abcdef";
            let code = character as usize;
            out.extend_from_slice(&[b'\\', b'u', b'0', b'0', HEX[code >> 4], HEX[code & 15]]);
            return;
        }
        other => {
            out.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes());
            return;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}
