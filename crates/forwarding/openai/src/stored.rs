//! The stored form of a completion, the source of whole answers and of streams.
//!
//! The stored form is a whole answer without the parts of a reply: the id, the time, the metadata. A whole answer is converted by dropping
//! the parts of a reply, and members that may identify the requester. A stream is accumulated into the stored form ([`Accumulator`]). A
//! reply is written from the stored form by prepending an id and a time, and a stream by replaying the stored form as events
//! ([`StoredAnswer::events`]). Every additional member of a provider is kept.

mod accumulator;
mod item;
mod join;
mod node;
mod replay;
#[cfg(test)]
mod tests;

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};

use crate::family::Family;
use crate::json::{Kind, Reader, Span, SyntaxError};
use crate::string;
use crate::usage::{Reported, Usage};

pub use accumulator::Accumulator;

/// Why an answer cannot be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoredError {
    /// The answer exceeds the size limit.
    #[error("the answer is larger than {bytes_max} bytes")]
    TooLarge {
        /// The limit.
        bytes_max: usize,
    },
    /// The answer cannot be replayed: the answer has no valid choices.
    #[error("the answer has no choices")]
    NoChoices,
    /// The events of the stream do not join to a single answer: clients make different answers of the events, or a member occurs twice.
    #[error("the events of the stream do not join to one answer")]
    NotJoinable,
    /// The answer is not JSON.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
}

/// A completion without the parts of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAnswer {
    family: &'static Family,
    /// A JSON object with at least a member and no white space before its first member.
    text: Bytes,
    has_usage: bool,
}

/// A stored completion as the events of a stream, without `[DONE]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayEvents {
    /// Every event without its prefix, concatenated.
    text: Bytes,
    /// The end of each event.
    ends: Box<[usize]>,
}

/// The parts of a reply.
#[derive(Clone, Copy, Debug)]
pub struct Stamp<'a> {
    /// The reply's id with its prefix: letters, digits and `-` only.
    pub id: &'a str,
    /// Seconds since 1970.
    pub created: u64,
}

impl<'a> Stamp<'a> {
    /// The stamp of a reply that was written from a stored answer, whole or a single event, and the bytes after the stamp.
    pub fn split(data: &'a [u8]) -> Option<(Stamp<'a>, &'a [u8])> {
        let rest = data.strip_prefix(br#"{"id":""#)?;
        let (id, rest) = rest.split_at(memchr::memchr(b'"', rest)?);
        let rest = rest.strip_prefix(br#"","created":"#)?;
        let (created, rest) = rest.split_at(memchr::memchr(b',', rest)?);
        let stamp = Stamp {
            id: std::str::from_utf8(id).ok()?,
            created: std::str::from_utf8(created).ok()?.parse().ok()?,
        };
        Some((stamp, &rest[1..]))
    }

    /// The reply with this stamp before the bytes that [`Stamp::split`] found after another stamp.
    pub fn join(self, rest: &[u8]) -> Bytes {
        let mut out = BytesMut::with_capacity(self.len() + rest.len());
        self.write(&mut out);
        out.extend_from_slice(rest);
        out.freeze()
    }

    /// The prefix of every object of the reply, including its comma.
    fn write(self, out: &mut BytesMut) {
        out.extend_from_slice(br#"{"id":""#);
        out.extend_from_slice(self.id.as_bytes());
        out.extend_from_slice(br#"","created":"#);
        out.extend_from_slice(itoa::Buffer::new().format(self.created).as_bytes());
        out.put_u8(b',');
    }

    fn len(self) -> usize {
        self.id.len() + 40
    }
}

impl StoredAnswer {
    /// Converts a whole answer. `model` is the model's name for clients, `metadata` the name of our metadata member.
    ///
    /// # Errors
    ///
    /// The body is not an answer, or exceeds `bytes_max`.
    pub fn of_answer(
        family: &'static Family,
        body: &[u8],
        model: &str,
        metadata: &str,
        bytes_max: usize,
    ) -> Result<StoredAnswer, StoredError> {
        // The dropped part is usually larger than the added part.
        let mut out = BytesMut::with_capacity(body.len() + model.len());
        out.extend_from_slice(br#"{"model":"#);
        string::write(model, &mut out);
        // The position of the usage in the stored form.
        let mut usage_at: Option<Range<usize>> = None;
        let mut has_choices = false;
        let mut reader = Reader::new(body);
        if reader.kind()? != Kind::Object {
            return Err(StoredError::NoChoices);
        }
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            let name = key.text.decode_lossy();
            let kind = reader.kind()?;
            let value = reader.skip()?;
            match &*name {
                // Some providers repeat `metadata` and `user` from the request. The two members identify the requester.
                "id" | "created" | "model" | "metadata" | "user" => continue,
                "choices" => has_choices = kind == Kind::Array,
                "usage" => {
                    let reported = Reported::read(value.of(body));
                    // Without a valid usage, tokens are counted and written for every reply.
                    let Some(usage) = reported.usage else {
                        continue;
                    };
                    // The last valid usage counts, as for the charge.
                    if let Some(before) = usage_at.take() {
                        let behind = out.split_off(before.end);
                        out.truncate(before.start);
                        out.extend_from_slice(&behind);
                    }
                    let start = out.len();
                    out.put_u8(b',');
                    match key.text.escaped {
                        true => out.extend_from_slice(br#""usage":"#),
                        false => out.extend_from_slice(&body[key.at..value.start]),
                    }
                    write_usage(value.of(body), reported, usage, &mut out);
                    usage_at = Some(start..out.len());
                    continue;
                }
                name if name == metadata => continue,
                _ => {}
            }
            out.put_u8(b',');
            out.extend_from_slice(&body[key.at..value.end]);
            if out.len() > bytes_max {
                return Err(StoredError::TooLarge { bytes_max });
            }
        }
        reader.end()?;
        if !has_choices {
            return Err(StoredError::NoChoices);
        }
        if out.len() > bytes_max {
            return Err(StoredError::TooLarge { bytes_max });
        }
        out.put_u8(b'}');
        // Spare capacity would take memory that is not accounted for.
        Ok(StoredAnswer {
            family,
            text: Bytes::copy_from_slice(&out),
            has_usage: usage_at.is_some(),
        })
    }

    /// The answer's memory in bytes.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Whether the answer has a usage.
    pub fn has_usage(&self) -> bool {
        self.has_usage
    }

    /// Writes the stored form as a whole answer, with spare capacity for `spare` more bytes.
    pub fn answer(&self, stamp: Stamp<'_>, spare: usize) -> Bytes {
        let mut out = BytesMut::with_capacity(stamp.len() + self.text.len() + spare);
        stamp.write(&mut out);
        out.extend_from_slice(&self.text[1..]);
        out.freeze()
    }

    /// Replays the answer as events: for each choice the role, the words by twenty, and the finish reason. With `include_usage` every event
    /// has a `usage` of null. A further event at the end has the tokens, if known.
    ///
    /// # Errors
    ///
    /// A part of the answer cannot be represented in a stream.
    pub fn events(&self, include_usage: bool) -> Result<ReplayEvents, StoredError> {
        replay::events(
            self.family,
            &self.text,
            include_usage && self.has_usage,
            include_usage,
        )
    }

    /// Appends the generated text of every choice, for token counting.
    pub fn append_text(&self, out: &mut String) {
        let mut facts = crate::completion::Completion::new();
        let walk = self.family.answer.read;
        if facts.read(walk, &self.text, "").is_ok() {
            facts.append_text(&self.text, out);
        }
    }
}

impl ReplayEvents {
    /// Their memory in bytes.
    pub fn bytes(&self) -> usize {
        self.text.len() + size_of_val(&*self.ends)
    }

    /// Writes the events of a reply: the data of each event.
    pub fn write(&self, stamp: Stamp<'_>) -> Vec<Bytes> {
        let mut beginning = BytesMut::with_capacity(stamp.len());
        stamp.write(&mut beginning);
        let whole = self.text.len() + self.ends.len() * beginning.len();
        let mut out = BytesMut::with_capacity(whole);
        let mut start = 0;
        for &end in &self.ends {
            out.extend_from_slice(&beginning);
            out.extend_from_slice(&self.text[start..end]);
            start = end;
        }
        let out = out.freeze();
        let mut start = 0;
        let mut at = 0;
        let mut events = Vec::with_capacity(self.ends.len());
        for &end in &self.ends {
            let length = beginning.len() + end - start;
            events.push(out.slice(at..at + length));
            at += length;
            start = end;
        }
        events
    }
}

/// Appends the value of a `usage` member with its parsed counts, so that a client finds the charged usage.
fn write_usage(value: &[u8], reported: Reported, usage: Usage, out: &mut BytesMut) {
    if reported.is_exact {
        out.extend_from_slice(value);
    } else {
        usage.write_over(value, out);
    }
}

/// The members of an object in a parsed text: names as written, and the positions of the values.
fn members<'t>(
    text: &'t [u8],
    object: Span,
    mut on_member: impl FnMut(&'t [u8], Kind, Span),
) -> Result<(), SyntaxError> {
    let mut reader = Reader::starting_at(text, object.start);
    let mut first = true;
    reader.enter()?;
    while let Some(key) = reader.key(&mut first)? {
        let kind = reader.kind()?;
        on_member(key.text.raw, kind, reader.skip()?);
    }
    Ok(())
}
