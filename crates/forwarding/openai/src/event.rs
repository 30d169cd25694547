//! Server-sent event parser: splits a byte stream into events, at any fragmentation.
//!
//! The standard is WHATWG HTML, "server-sent events", parsing an event stream. The parser differs in two ways, because the streams here
//! carry JSON. An event without data bytes is dropped. A final event without its blank line is returned if its data is complete, because
//! some providers end without the blank line.

use bytes::BytesMut;

use crate::json::Reader;

/// The data of the event that ends a completion stream.
pub const DONE: &[u8] = b"[DONE]";

/// An event of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The data of the event; several `data:` lines are joined by a line feed.
    pub data: &'a [u8],
    /// Whether an `event:` line named the event `error`, or the data is in an `error:` line.
    pub named_error: bool,
}

impl Event<'_> {
    /// Whether this is `[DONE]`. Like client libraries, the check reads the prefix only.
    pub fn is_done(&self) -> bool {
        self.data.starts_with(DONE)
    }
}

/// The remainder at the end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail<'a> {
    /// No rest: the stream ended between two events.
    Nothing,
    /// A last event without its blank line, whose data is complete.
    Event(Event<'a>),
    /// A part of an event: the stream was truncated.
    Torn,
}

/// An event, or a line of an event, exceeds the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is larger than {bytes_max} bytes")]
pub struct EventTooLarge {
    /// The limit.
    pub bytes_max: usize,
}

/// Splits a stream into events.
///
/// Pass each arriving piece to [`push`](Self::push), take the completed events, and call [`finish`](Self::finish) at the end of the stream.
/// An event within a piece in the form `data: ...` with line feeds is returned as a slice of the piece. Only split or differently formatted
/// events are copied.
#[derive(Debug)]
pub struct EventCutter {
    bytes_max: usize,
    /// The arrived part of a line, when the line is not in the current piece as a whole.
    line: Vec<u8>,
    /// The data lines of the current event, each followed by a line feed.
    data: Vec<u8>,
    named_error: bool,
    /// The last line ended with a carriage return: a following line feed belongs to the line.
    after_return: bool,
    /// Only a part of a byte order mark has been received.
    at_start: bool,
    /// The last returned data, to be dropped at the next call.
    spent: bool,
    too_large: bool,
}

impl EventCutter {
    /// A cutter that refuses an event of more than `bytes_max` bytes of data.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            line: Vec::new(),
            data: Vec::new(),
            named_error: false,
            after_return: false,
            at_start: true,
            spent: false,
            too_large: false,
        }
    }

    /// Accepts the next piece. The caller must take every event from the result, or bytes are lost.
    pub fn push<'c, 'p>(&'c mut self, piece: &'p [u8]) -> Events<'c, 'p> {
        Events {
            cutter: self,
            rest: piece,
        }
    }

    /// The remainder at the end of the stream.
    pub fn finish(&mut self) -> Tail<'_> {
        self.clear_spent();
        self.at_start = false;
        if !self.line.is_empty() {
            let line = std::mem::take(&mut self.line);
            // A line that is too long leaves a torn remainder, as intended.
            let _ = self.field(&line);
            self.line = line;
        }
        let torn = !self.line.is_empty() || !self.data.is_empty() || self.too_large;
        let Some((_, data)) = self.data.split_last() else {
            return if torn { Tail::Torn } else { Tail::Nothing };
        };
        if self.too_large || !(data == DONE || is_json(data)) {
            return Tail::Torn;
        }
        Tail::Event(Event {
            data,
            named_error: self.named_error,
        })
    }

    /// Bytes of an event that is not complete.
    pub fn buffered(&self) -> usize {
        self.line.len() + self.data.len()
    }

    fn clear_spent(&mut self) {
        if self.spent {
            clear(&mut self.data);
            self.named_error = false;
            self.spent = false;
        }
    }

    /// Whether no bytes of an unfinished event are buffered.
    fn is_clean(&self) -> bool {
        self.line.is_empty() && self.data.is_empty() && !self.named_error && !self.after_return
    }

    fn refuse(&mut self) -> EventTooLarge {
        self.too_large = true;
        EventTooLarge {
            bytes_max: self.bytes_max,
        }
    }

    /// The maximum length of a line: a field name, a colon and a space before the data.
    fn line_max(&self) -> usize {
        self.bytes_max.saturating_add("data: ".len())
    }

    /// Processes a line that is not empty.
    fn field(&mut self, line: &[u8]) -> Result<(), EventTooLarge> {
        if line.len() > self.line_max() {
            return Err(self.refuse());
        }
        let colon = memchr::memchr(b':', line).unwrap_or(line.len());
        let (name, value) = line.split_at(colon);
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" | b"error" => {
                // No field of the standard: llama.cpp wrote errors as `error: {...}`.
                self.named_error |= name == b"error";
                if self.data.len() + value.len() > self.bytes_max {
                    return Err(self.refuse());
                }
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
            }
            b"event" => self.named_error = value == b"error",
            // Comments have no name. Ids and retry times have no meaning on a stream that cannot be resumed.
            _ => {}
        }
        Ok(())
    }
}

/// The events that a piece completes.
#[derive(Debug)]
pub struct Events<'c, 'p> {
    cutter: &'c mut EventCutter,
    rest: &'p [u8],
}

impl Events<'_, '_> {
    /// The next event, or `None` when the piece is used up.
    ///
    /// # Errors
    ///
    /// An event is larger than the bound. The stream cannot be read any further.
    #[allow(
        clippy::should_implement_trait,
        reason = "an event borrows from the cutter, which an iterator cannot say"
    )]
    pub fn next(&mut self) -> Result<Option<Event<'_>>, EventTooLarge> {
        let cutter = &mut *self.cutter;
        if cutter.too_large {
            return Err(cutter.refuse());
        }
        cutter.clear_spent();
        while !self.rest.is_empty() {
            if cutter.after_return {
                cutter.after_return = false;
                self.rest = self.rest.strip_prefix(b"\n").unwrap_or(self.rest);
                continue;
            }
            let Some(end) = memchr::memchr2(b'\n', b'\r', self.rest) else {
                if cutter.line.len() + self.rest.len() > cutter.line_max() + BOM.len() {
                    return Err(cutter.refuse());
                }
                cutter.line.extend_from_slice(self.rest);
                self.rest = b"";
                break;
            };
            if self.rest[end..].starts_with(b"\n\n")
                && self.rest.starts_with(b"data: ")
                && end > b"data: ".len()
                && cutter.is_clean()
            {
                let data = &self.rest[b"data: ".len()..end];
                self.rest = &self.rest[end + 2..];
                cutter.at_start = false;
                if data.len() > cutter.bytes_max {
                    return Err(cutter.refuse());
                }
                let named_error = false;
                return Ok(Some(Event { data, named_error }));
            }
            let (line, rest) = (&self.rest[..end], &self.rest[end + 1..]);
            cutter.after_return = self.rest[end] == b'\r';
            self.rest = rest;
            if cutter.line(line)? {
                cutter.spent = true;
                let (_, data) = cutter.data.split_last().unwrap_or((&0, b""));
                let named_error = cutter.named_error;
                return Ok(Some(Event { data, named_error }));
            }
        }
        Ok(None)
    }
}

/// A larger buffer is freed after its event, because a stream may last long after its only large event.
const KEPT_BYTES: usize = 64 * 1024;

/// Empties a buffer, and frees a large buffer.
fn clear(buffer: &mut Vec<u8>) {
    match buffer.capacity() {
        ..=KEPT_BYTES => buffer.clear(),
        _ => *buffer = Vec::new(),
    }
}

/// U+FEFF in UTF-8.
const BOM: &[u8] = b"\xef\xbb\xbf";

impl EventCutter {
    /// Processes the end of a line, whose start may have been buffered, and returns whether an event is complete.
    fn line(&mut self, end: &[u8]) -> Result<bool, EventTooLarge> {
        if self.line.is_empty() {
            return self.whole_line(end);
        }
        let mut line = std::mem::take(&mut self.line);
        line.extend_from_slice(end);
        let complete = self.whole_line(&line);
        // The buffer is reused for the next split line.
        clear(&mut line);
        self.line = line;
        complete
    }

    fn whole_line(&mut self, line: &[u8]) -> Result<bool, EventTooLarge> {
        let line = match line.strip_prefix(BOM) {
            Some(rest) if self.at_start => rest,
            _ => line,
        };
        self.at_start = false;
        if !line.is_empty() {
            self.field(line)?;
            return Ok(false);
        }
        if self.data.len() > 1 {
            return Ok(true);
        }
        // An event without data is dropped, with its name.
        self.data.clear();
        self.named_error = false;
        Ok(false)
    }
}

/// Appends an event in the common format: a `data:` line and a blank line.
///
/// A line feed in the data becomes a space. JSON has line feeds between tokens only.
pub fn write(data: &[u8], out: &mut BytesMut) {
    out.reserve(data.len() + 8);
    out.extend_from_slice(b"data: ");
    let start = out.len();
    out.extend_from_slice(data);
    for at in memchr::memchr_iter(b'\n', data) {
        out[start + at] = b' ';
    }
    out.extend_from_slice(b"\n\n");
}

fn is_json(data: &[u8]) -> bool {
    let mut reader = Reader::new(data);
    std::str::from_utf8(data).is_ok() && reader.skip().is_ok() && reader.end().is_ok()
}
