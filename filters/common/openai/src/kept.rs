//! A completion kept for later: one form from which whole answers and streams are both written.
//!
//! The kept form is a whole answer without what belongs to one reply: its id, its time, the metadata. A whole answer becomes it by
//! leaving those out, and what it may repeat of whoever asked; a stream is folded into it ([`Fold`]). From it a reply is written by putting an id and a time in front, and a
//! stream by telling it in events again ([`Kept::events`]). Every member that a provider adds by itself is kept.

mod fold;
mod node;
#[cfg(test)]
mod tests;
mod unfold;

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};

use crate::json::{Kind, Reader, Span, SyntaxError};
use crate::request::Endpoint;
use crate::string;
use crate::usage::{Reported, Usage};

pub use fold::Fold;

/// Why an answer cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeepError {
    /// It is larger than what may be kept.
    #[error("the answer is larger than {bytes_max} bytes")]
    TooLarge {
        /// The bound.
        bytes_max: usize,
    },
    /// It is no answer that can be told again: no choices, or something in their place.
    #[error("the answer has no choices")]
    NoChoices,
    /// It is not JSON.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
}

/// A completion without what belongs to one reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    endpoint: Endpoint,
    /// A JSON object with at least one member and no white space before its first.
    text: Bytes,
    has_usage: bool,
}

/// A kept completion as the events of a stream, but for `[DONE]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptEvents {
    /// Every event without its beginning, one after the other.
    text: Bytes,
    /// Where each ends.
    ends: Box<[usize]>,
}

/// What makes a kept completion one reply.
#[derive(Clone, Copy, Debug)]
pub struct Stamp<'a> {
    /// The reply's id with its prefix: letters, digits and `-` only.
    pub id: &'a str,
    /// Seconds since 1970.
    pub created: u64,
}

impl Stamp<'_> {
    /// The beginning of every object of the reply, up to and with a comma.
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

impl Kept {
    /// Keeps a whole answer. `model` is the model's name for clients, `metadata` the name of our own member.
    ///
    /// # Errors
    ///
    /// The body is no answer, or larger than `bytes_max`.
    pub fn of_answer(
        endpoint: Endpoint,
        body: &[u8],
        model: &str,
        metadata: &str,
        bytes_max: usize,
    ) -> Result<Kept, KeepError> {
        // What is taken out is less than what is put in its place by much.
        let mut out = BytesMut::with_capacity(body.len() + model.len());
        out.extend_from_slice(br#"{"model":"#);
        string::write(model, &mut out);
        // Where the usage stands in what is kept.
        let mut usage_at: Option<Range<usize>> = None;
        let mut has_choices = false;
        let mut reader = Reader::new(body);
        if reader.kind()? != Kind::Object {
            return Err(KeepError::NoChoices);
        }
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            let name = key.text.decode_lossy();
            let kind = reader.kind()?;
            let value = reader.skip()?;
            match &*name {
                // The last two some providers repeat from the request: they are about whoever sent it.
                "id" | "created" | "model" | "metadata" | "user" => continue,
                "choices" => has_choices = kind == Kind::Array,
                "usage" => {
                    let reported = Reported::read(value.of(body));
                    // Without one it is counted and written anew for every reply.
                    let Some(usage) = reported.usage else {
                        continue;
                    };
                    // The last that makes sense holds, as it does for the bill.
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
                return Err(KeepError::TooLarge { bytes_max });
            }
        }
        reader.end()?;
        if !has_choices {
            return Err(KeepError::NoChoices);
        }
        if out.len() > bytes_max {
            return Err(KeepError::TooLarge { bytes_max });
        }
        out.put_u8(b'}');
        // A buffer that held more than was kept would hold more memory than is counted for it.
        Ok(Kept {
            endpoint,
            text: Bytes::copy_from_slice(&out),
            has_usage: usage_at.is_some(),
        })
    }

    /// Bytes of memory it takes.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Whether it says how many tokens were used.
    pub fn has_usage(&self) -> bool {
        self.has_usage
    }

    /// Writes it as a whole answer, with room for `room` more bytes behind it.
    pub fn answer(&self, stamp: Stamp<'_>, room: usize) -> Bytes {
        let mut out = BytesMut::with_capacity(stamp.len() + self.text.len() + room);
        stamp.write(&mut out);
        out.extend_from_slice(&self.text[1..]);
        out.freeze()
    }

    /// Tells it in events: for each choice its role, then its words by twenty, then what ended it. With `include_usage` every event
    /// has a `usage` of null, and one more at the end has the tokens, if they are known.
    ///
    /// # Errors
    ///
    /// Something in it has no place in a stream.
    pub fn events(&self, include_usage: bool) -> Result<KeptEvents, KeepError> {
        unfold::events(
            self.endpoint,
            &self.text,
            include_usage && self.has_usage,
            include_usage,
        )
    }

    /// Appends what the model said, of all choices, for counting.
    pub fn append_text(&self, out: &mut String) {
        let mut facts = crate::completion::Completion::new();
        if facts.read(&self.text, "").is_ok() {
            facts.append_text(&self.text, out);
        }
    }
}

impl KeptEvents {
    /// Bytes of memory they take.
    pub fn bytes(&self) -> usize {
        self.text.len() + size_of_val(&*self.ends)
    }

    /// Writes them as events of one reply: the data of each.
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

/// Appends the value of a `usage` member with the counts that it was read as, so that a client finds what is charged for.
fn write_usage(value: &[u8], reported: Reported, usage: Usage, out: &mut BytesMut) {
    if reported.is_exact {
        out.extend_from_slice(value);
    } else {
        usage.write_over(value, out);
    }
}

/// The members of an object in a text that has been read before: names as written, and where the values stand.
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
