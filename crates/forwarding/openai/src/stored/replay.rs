//! Replay of a stored completion as stream events.

use bytes::{BufMut, BytesMut};
use smallvec::SmallVec;

use crate::family::{Content, Family};
use crate::json::{Kind, Reader, Span};

use super::{ReplayEvents, StoredError, members};

/// Words in an event.
const WORDS_MAX: usize = 20;

/// A member, with the position of its value.
type Member<'t> = (&'t [u8], Span);

/// Top-level members of every event, as providers send the members; other members are in the first event only.
const EVERYWHERE: [&[u8]; 2] = [b"system_fingerprint", b"service_tier"];

pub(super) fn events(
    family: &Family,
    text: &[u8],
    usage_event: bool,
    include_usage: bool,
) -> Result<ReplayEvents, StoredError> {
    let whole = Span {
        start: 0,
        end: text.len(),
    };
    let mut model: &[u8] = b"\"\"";
    let mut choices = None;
    let mut usage: &[u8] = b"null";
    let mut everywhere: SmallVec<[Member<'_>; 2]> = SmallVec::new();
    let mut others: SmallVec<[Member<'_>; 4]> = SmallVec::new();
    members(text, whole, |name, kind, value| match name {
        b"object" => {}
        b"model" => model = value.of(text),
        b"choices" if kind == Kind::Array => choices = Some(value),
        b"choices" => {}
        b"usage" => usage = value.of(text),
        name if EVERYWHERE.contains(&name) => everywhere.push((name, value)),
        name => others.push((name, value)),
    })?;
    let choices = choices.ok_or(StoredError::NoChoices)?;
    let mut head = BytesMut::new();
    head.extend_from_slice(br#""object":""#);
    head.extend_from_slice(family.answer.event_object.as_bytes());
    head.extend_from_slice(br#"","model":"#);
    head.extend_from_slice(model);
    append(text, &everywhere, &mut head);
    let mut teller = Teller {
        text,
        content: family.answer.content,
        head,
        others,
        usage_null: include_usage,
        out: BytesMut::with_capacity(text.len() * 3),
        ends: Vec::new(),
    };
    let mut reader = Reader::starting_at(text, choices.start);
    let mut first = true;
    reader.enter()?;
    while reader.item(&mut first)? {
        if reader.kind()? != Kind::Object {
            return Err(StoredError::NoChoices);
        }
        let choice = reader.skip()?;
        teller.choice(choice)?;
    }
    if teller.ends.is_empty() {
        return Err(StoredError::NoChoices);
    }
    if usage_event {
        teller.out.extend_from_slice(&teller.head);
        teller.out.extend_from_slice(br#","choices":[],"usage":"#);
        teller.out.extend_from_slice(usage);
        teller.out.put_u8(b'}');
        teller.ends.push(teller.out.len());
    }
    Ok(ReplayEvents {
        text: bytes::Bytes::copy_from_slice(&teller.out),
        ends: teller.ends.into(),
    })
}

/// Appends members, each with a preceding comma.
fn append(text: &[u8], members: &[Member<'_>], out: &mut BytesMut) {
    for (name, value) in members {
        out.extend_from_slice(b",\"");
        out.extend_from_slice(name);
        out.extend_from_slice(b"\":");
        out.extend_from_slice(value.of(text));
    }
}

struct Teller<'t> {
    text: &'t [u8],
    content: Content,
    /// The part of every event before its choices.
    head: BytesMut,
    /// Members of the first event only.
    others: SmallVec<[Member<'t>; 4]>,
    usage_null: bool,
    out: BytesMut,
    ends: Vec<usize>,
}

/// A choice of the completion.
#[derive(Default)]
struct Choice<'t> {
    index: &'t [u8],
    /// The text: of the message, or of the choice itself.
    words: Option<Span>,
    /// `content`, if not a string, as written.
    content: &'t [u8],
    role: &'t [u8],
    tool_calls: Option<Span>,
    /// Other members of the message.
    message: SmallVec<[Member<'t>; 4]>,
    logprobs: &'t [u8],
    finish: &'t [u8],
    others: SmallVec<[Member<'t>; 4]>,
}

impl<'t> Teller<'t> {
    fn choice(&mut self, object: Span) -> Result<(), StoredError> {
        let text = self.text;
        let chat = self.content == Content::Message;
        let mut choice = Choice {
            index: b"0",
            content: b"null",
            role: b"\"assistant\"",
            logprobs: b"null",
            finish: b"null",
            ..Choice::default()
        };
        let mut message = None;
        members(text, object, |name, kind, value| match (name, kind) {
            (b"index", Kind::Number) => choice.index = value.of(text),
            (b"message", Kind::Object) if chat => message = Some(value),
            (b"text", Kind::String) if !chat => choice.words = Some(value),
            (b"logprobs", _) => choice.logprobs = value.of(text),
            (b"finish_reason", _) => choice.finish = value.of(text),
            _ => choice.others.push((name, value)),
        })?;
        if let Some(message) = message {
            members(text, message, |name, kind, value| match (name, kind) {
                (b"role", Kind::String) => choice.role = value.of(text),
                (b"content", Kind::String) => choice.words = Some(value),
                (b"content", _) => choice.content = value.of(text),
                (b"tool_calls", Kind::Array) => choice.tool_calls = Some(value),
                _ => choice.message.push((name, value)),
            })?;
        }
        if chat {
            let content = choice.words.map_or(choice.content, |_| b"\"\"");
            self.event(choice.index, b"null", b"null", &[], |_, out| {
                out.extend_from_slice(br#""delta":{"role":"#);
                out.extend_from_slice(choice.role);
                out.extend_from_slice(br#","content":"#);
                out.extend_from_slice(content);
                out.put_u8(b'}');
            });
            if let [(name, value), others @ ..] = &*choice.message {
                self.event(choice.index, b"null", b"null", &[], |text, out| {
                    out.extend_from_slice(b"\"delta\":{\"");
                    out.extend_from_slice(name);
                    out.extend_from_slice(b"\":");
                    out.extend_from_slice(value.of(text));
                    append(text, others, out);
                    out.put_u8(b'}');
                });
            }
        }
        let logprobs = self.words(&choice);
        if let Some(calls) = choice.tool_calls {
            self.tool_calls(choice.index, calls)?;
        }
        self.event(
            choice.index,
            logprobs,
            choice.finish,
            &choice.others,
            |_, out| {
                if chat {
                    out.extend_from_slice(br#""delta":{}"#);
                } else {
                    write_content(chat, b"", out);
                }
            },
        );
        Ok(())
    }

    /// An event for each piece of the words. Returns the log probabilities that no event has yet. The log probabilities list the tokens
    /// singly, and only the whole list matches the text, so that the first event has the whole list.
    fn words(&mut self, choice: &Choice<'t>) -> &'t [u8] {
        let chat = self.content == Content::Message;
        let mut logprobs = choice.logprobs;
        let Some(words) = choice.words.filter(|words| words.len() > 2) else {
            return logprobs;
        };
        let mut pieces = Pieces {
            rest: &self.text[words.start + 1..words.end - 1],
            words_max: match logprobs == b"null" {
                true => WORDS_MAX,
                false => usize::MAX,
            },
        };
        while let Some(piece) = pieces.next() {
            self.event(choice.index, logprobs, b"null", &[], |_, out| {
                write_content(chat, piece, out);
            });
            logprobs = b"null";
        }
        logprobs
    }

    /// An event for each call, as a whole; the call's position in the list becomes its index.
    fn tool_calls(&mut self, choice: &[u8], calls: Span) -> Result<(), StoredError> {
        let text = self.text;
        let mut reader = Reader::starting_at(text, calls.start);
        let mut first = true;
        let mut index = 0u64;
        reader.enter()?;
        while reader.item(&mut first)? {
            if reader.kind()? != Kind::Object {
                reader.skip()?;
                continue;
            }
            let call = reader.skip()?;
            let mut own: SmallVec<[Member<'_>; 4]> = SmallVec::new();
            members(text, call, |name, _, value| {
                if name != b"index" {
                    own.push((name, value));
                }
            })?;
            self.event(choice, b"null", b"null", &[], |text, out| {
                out.extend_from_slice(br#""delta":{"tool_calls":[{"index":"#);
                out.extend_from_slice(itoa::Buffer::new().format(index).as_bytes());
                append(text, &own, out);
                out.extend_from_slice(b"}]}");
            });
            index += 1;
        }
        Ok(())
    }

    fn event(
        &mut self,
        index: &[u8],
        logprobs: &[u8],
        finish: &[u8],
        others: &[Member<'_>],
        speech: impl FnOnce(&[u8], &mut BytesMut),
    ) {
        let out = &mut self.out;
        out.extend_from_slice(&self.head);
        append(self.text, &std::mem::take(&mut self.others), out);
        out.extend_from_slice(br#","choices":[{"index":"#);
        out.extend_from_slice(index);
        out.put_u8(b',');
        speech(self.text, out);
        out.extend_from_slice(br#","logprobs":"#);
        out.extend_from_slice(logprobs);
        out.extend_from_slice(br#","finish_reason":"#);
        out.extend_from_slice(finish);
        append(self.text, others, out);
        out.extend_from_slice(if self.usage_null {
            br#"}],"usage":null}"#
        } else {
            b"}]}"
        });
        self.ends.push(out.len());
    }
}

fn write_content(chat: bool, words: &[u8], out: &mut BytesMut) {
    out.extend_from_slice(if chat {
        br#""delta":{"content":""#
    } else {
        br#""text":""#
    });
    out.extend_from_slice(words);
    out.extend_from_slice(if chat { b"\"}" } else { b"\"" });
}

/// The content of a JSON string in pieces of whole words. A blank is not a part of any escape, so that a split after a blank breaks no
/// escape.
struct Pieces<'t> {
    rest: &'t [u8],
    words_max: usize,
}

impl<'t> Pieces<'t> {
    fn next(&mut self) -> Option<&'t [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let end = memchr::memchr_iter(b' ', self.rest)
            .nth(self.words_max - 1)
            .map_or(self.rest.len(), |blank| blank + 1);
        let (piece, rest) = self.rest.split_at(end);
        self.rest = rest;
        Some(piece)
    }
}
