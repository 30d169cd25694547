//! The parser of a provider's chat output, and its choices translated to text choices.

use bytes::BytesMut;
use smallvec::SmallVec;

use crate::family::Family;
use crate::json::{Kind, Reader, Span};
use crate::number::{self, Whole};
use crate::string;

use super::TurnError;
use super::logprobs;

/// A whole chat answer, or an event of a stream, as positions of its parts.
#[derive(Debug, Default)]
pub(super) struct ChatOutput {
    pub(super) id: Option<Span>,
    pub(super) created: Option<Span>,
    pub(super) usage: Option<Span>,
    pub(super) error: Option<Span>,
    /// Top-level members that are unchanged, including their names.
    pub(super) kept: SmallVec<[Span; 4]>,
    pub(super) choices: SmallVec<[SaidChoice; 1]>,
}

/// A choice.
#[derive(Debug, Default)]
pub(super) struct SaidChoice {
    pub(super) index: u64,
    pub(super) finish: Option<Span>,
    /// The strings of its content, with their quotes.
    pub(super) content: SmallVec<[Span; 1]>,
    /// A refusal, for a choice without content.
    refusal: Option<Span>,
    /// `logprobs.content`, an array.
    logprobs: Option<Span>,
    /// Members that a text choice adopts: reasoning, and additional members of the provider.
    kept: SmallVec<[Span; 2]>,
    /// Whether any of `kept` is not empty.
    thinks: bool,
    /// A `message`. Beside a `delta`, the message so far.
    message: Option<Box<SaidChoice>>,
    has_delta: bool,
}

impl ChatOutput {
    pub(super) fn read(text: &[u8]) -> Result<Self, TurnError> {
        if std::str::from_utf8(text).is_err() {
            return Err(TurnError::NotUtf8);
        }
        let mut output = Self::default();
        let mut is_error = false;
        let mut reader = Reader::new(text);
        if reader.kind()? != Kind::Object {
            return reader.fail("an object was expected").map_err(Into::into);
        }
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            let kind = reader.kind()?;
            if key.text.is("choices") && kind == Kind::Array {
                output.choices(&mut reader, text)?;
                continue;
            }
            let value = reader.skip()?;
            match key.text.raw {
                b"object" => is_error |= value.of(text) == b"\"error\"",
                b"choices" => {}
                b"id" => output.id = Some(value),
                b"created" => output.created = Some(value),
                b"usage" => output.usage = (kind == Kind::Object).then_some(value),
                b"error" if !matches!(value.of(text), b"null" | b"false" | b"\"\"") => {
                    output.error = Some(value);
                }
                b"error" => {}
                _ => output.kept.push(Span {
                    start: key.at,
                    end: value.end,
                }),
            }
        }
        reader.end()?;
        if is_error && output.error.is_none() {
            let (start, end) = (0, text.len());
            output.error = Some(Span { start, end });
            // The error contains the kept members.
            output.kept.clear();
        }
        Ok(output)
    }

    fn choices(&mut self, reader: &mut Reader<'_>, text: &[u8]) -> Result<(), TurnError> {
        let mut first = true;
        reader.enter()?;
        while reader.item(&mut first)? {
            if reader.kind()? == Kind::Object {
                self.choices.push(SaidChoice::read(reader, text)?);
            } else {
                reader.skip()?;
            }
        }
        Ok(())
    }

    /// Writes the members that come before `choices`: every member except the choices and the usage.
    pub(super) fn write_head(&self, text: &[u8], identity: &Identity, out: &mut BytesMut) {
        out.extend_from_slice(b"{");
        if !identity.id.is_empty() {
            out.extend_from_slice(br#""id":"#);
            out.extend_from_slice(&identity.id);
            out.extend_from_slice(b",");
        }
        out.extend_from_slice(br#""object":""#);
        out.extend_from_slice(Family::TEXT.answer.event_object.as_bytes());
        out.extend_from_slice(br#"","#);
        if !identity.created.is_empty() {
            out.extend_from_slice(br#""created":"#);
            out.extend_from_slice(&identity.created);
            out.extend_from_slice(b",");
        }
        for member in &self.kept {
            out.extend_from_slice(member.of(text));
            out.extend_from_slice(b",");
        }
    }
}

impl SaidChoice {
    fn read(reader: &mut Reader<'_>, text: &[u8]) -> Result<Self, TurnError> {
        let mut choice = Self::default();
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            match (key.text.raw, reader.kind()?) {
                (b"index", Kind::Number) => {
                    if let Whole::Value(index) = number::whole(reader.number()?) {
                        choice.index = index;
                    }
                }
                (b"finish_reason", kind) => {
                    let value = reader.skip()?;
                    let goes_on = matches!(value.of(text), b"\"\"" | b"\"null\"");
                    choice.finish = (kind == Kind::String && !goes_on).then_some(value);
                }
                (b"delta", Kind::Object) => {
                    choice.has_delta = true;
                    choice.speech(reader)?;
                }
                (b"message", Kind::Object) => {
                    let mut message = Box::<Self>::default();
                    message.speech(reader)?;
                    choice.message = Some(message);
                }
                (b"logprobs", Kind::Object) => choice.logprobs = logprobs::find(reader)?,
                (b"index" | b"delta" | b"message" | b"logprobs" | b"text", _) => {
                    reader.skip()?;
                }
                _ => {
                    let end = reader.skip()?.end;
                    choice.kept.push(Span { start: key.at, end });
                }
            }
        }
        Ok(choice)
    }

    /// Takes the output of the `message`, unless the message repeats output of deltas: of this event, or of earlier events (`has_begun`).
    pub(super) fn take_message(&mut self, has_begun: bool) {
        if let Some(message) = self
            .message
            .take()
            .filter(|_| !self.has_delta && !has_begun)
        {
            self.content.extend(message.content);
            self.refusal = self.refusal.or(message.refusal);
            self.kept.extend(message.kept);
            self.thinks |= message.thinks;
        }
    }

    /// A `delta` or a `message`. Tool calls cannot be represented in a text and are skipped.
    fn speech(&mut self, reader: &mut Reader<'_>) -> Result<(), TurnError> {
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            match (key.text.raw, reader.kind()?) {
                (b"content", Kind::String) => self.content.push(reader.skip()?),
                (b"content", Kind::Array) => {
                    let content = &mut self.content;
                    reader.walk(|name, span| {
                        if name == b"text" {
                            content.push(span);
                        }
                    })?;
                }
                (b"refusal", Kind::String) => self.refusal = Some(reader.skip()?),
                (b"reasoning_content" | b"reasoning", Kind::String) => {
                    let value = reader.skip()?;
                    self.thinks |= value.len() > 2;
                    self.kept.push(Span {
                        start: key.at,
                        end: value.end,
                    });
                }
                _ => {
                    reader.skip()?;
                }
            }
        }
        Ok(())
    }

    /// The strings of the choice's text.
    fn texts(&self) -> impl Iterator<Item = &Span> {
        let refusal = self.content.is_empty().then_some(&self.refusal);
        self.content.iter().chain(refusal.into_iter().flatten())
    }

    /// Whether the choice has no content for a client: the role, or a piece of a tool call.
    pub(super) fn is_silent(&self) -> bool {
        self.finish.is_none()
            && !self.thinks
            && self.logprobs.is_none()
            && self.texts().all(|text| text.len() <= 2)
    }

    /// Writes the choice as a choice of a text. `echo` precedes the choice's text. `at` is the number of characters of the text written
    /// before, and is advanced.
    pub(super) fn write(
        &self,
        text: &[u8],
        number: u64,
        echo: &[u8],
        logprobs: Option<(u64, &mut u64)>,
        out: &mut BytesMut,
    ) -> Result<(), TurnError> {
        out.extend_from_slice(br#"{"index":"#);
        out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        out.extend_from_slice(br#","text":""#);
        out.extend_from_slice(echo);
        for span in self.texts() {
            out.extend_from_slice(&text[span.start + 1..span.end - 1]);
        }
        out.extend_from_slice(br#"","logprobs":"#);
        match (self.logprobs, logprobs) {
            (Some(content), Some((top, at))) => {
                logprobs::write(content.of(text), top, at, out)?;
            }
            _ => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(br#","finish_reason":"#);
        out.extend_from_slice(match self.finish.map(|finish| finish.of(text)) {
            // The text is over, which is the only fact left.
            Some(br#""tool_calls""# | br#""function_call""#) => br#""stop""#,
            Some(reason) => reason,
            None => b"null",
        });
        for member in &self.kept {
            out.extend_from_slice(b",");
            out.extend_from_slice(member.of(text));
        }
        out.extend_from_slice(b"}");
        Ok(())
    }
}

/// The common members of every event of a text answer, as JSON; empty where the provider sends no member.
#[derive(Clone, Debug, Default)]
pub(super) struct Identity {
    pub(super) id: Box<[u8]>,
    pub(super) created: Box<[u8]>,
}

impl Identity {
    /// The identity of the first chat with an answer. The chat prefix of an id is dropped.
    pub(super) fn of(output: &ChatOutput, text: &[u8]) -> Self {
        let id = output.id.map_or(&b""[..], |span| span.of(text));
        let rest = id.strip_prefix(b"\"");
        let id = match rest
            .and_then(|rest| rest.strip_prefix(Family::CHAT.answer.id_prefix.as_bytes()))
        {
            Some(rest) => [b"\"", Family::TEXT.answer.id_prefix.as_bytes(), rest].concat(),
            None => id.to_vec(),
        };
        let created = output.created.map_or(&b""[..], |span| span.of(text));
        Self {
            id: id.into(),
            created: created.into(),
        }
    }
}

/// Characters of a string of JSON text, without its quotes.
pub(super) fn characters(raw: &[u8]) -> u64 {
    if !raw.contains(&b'\\') && raw.is_ascii() {
        return raw.len() as u64;
    }
    let mut text = String::with_capacity(raw.len());
    string::unescape(raw, &mut text);
    text.chars().count() as u64
}
