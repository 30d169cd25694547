//! Accumulator: the events of a stream become the equivalent whole answer.

use bytes::Bytes;

use crate::family::{Content, Family};
use crate::json::{Kind, Reader};
use crate::string;
use crate::usage::{Reported, Usage};

use super::join::Join;
use super::node::{Members, Node, Touched, index_of, name_of, write_members};
use super::{StoredAnswer, StoredError, write_usage};

/// The most choices; bounds the cost of a broken provider.
const CHOICES_MAX: usize = 128;

/// Accumulates the events of a stream, in the provider's form or in the client's form.
///
/// Most events differ from the event before only in the generated text. Like the event reader, the accumulator keeps the last event as a
/// template. A matching event costs two comparisons and a copy of its text.
#[derive(Debug)]
pub struct Accumulator {
    family: &'static Family,
    metadata: Box<str>,
    bytes_max: usize,
    bytes: usize,
    failed: Option<StoredError>,
    top: Vec<(Box<[u8]>, Node)>,
    usage: Vec<u8>,
    choices: Vec<Choice>,
    template: Template,
}

#[derive(Debug)]
struct Choice {
    index: u64,
    /// The members of the choice except the message.
    members: Vec<(Box<[u8]>, Node)>,
    speech: Node,
}

#[derive(Debug, Default)]
struct Template {
    before: Vec<u8>,
    after: Vec<u8>,
    choice: usize,
    /// The path of the text within the choice's message, or within the choice itself.
    path: Vec<usize>,
    of_message: bool,
    /// Templates made since the last match.
    unused: u32,
}

impl Accumulator {
    /// An accumulator for a stream. `metadata` is the name of the gateway's metadata member; an answer of more than `bytes_max` bytes is
    /// not stored.
    pub fn new(family: &'static Family, metadata: &str, bytes_max: usize) -> Accumulator {
        Accumulator {
            family,
            metadata: metadata.into(),
            bytes_max,
            bytes: 0,
            failed: None,
            top: Vec::new(),
            usage: Vec::new(),
            choices: Vec::new(),
            template: Template::default(),
        }
    }

    /// Adds the data of an event, except for `[DONE]`.
    pub fn event(&mut self, data: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        if !self.like_the_last(data)
            && let Err(error) = self.read(data)
        {
            self.fail(error);
        }
        if self.bytes > self.bytes_max {
            self.fail(StoredError::TooLarge {
                bytes_max: self.bytes_max,
            });
        }
    }

    /// The accumulated answer. `model` is the model's name for clients.
    ///
    /// # Errors
    ///
    /// Why the answer cannot be stored.
    pub fn finish(mut self, model: &str) -> Result<StoredAnswer, StoredError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if self.choices.is_empty() {
            return Err(StoredError::NoChoices);
        }
        let mut calls = self
            .choices
            .iter()
            .filter_map(|choice| choice.speech.member(b"tool_calls"));
        if !calls.all(Node::has_whole_calls) {
            return Err(StoredError::NotJoinable);
        }
        self.choices.sort_by_key(|choice| choice.index);
        let mut out = Vec::with_capacity(self.bytes + self.bytes / 4 + 256);
        out.extend_from_slice(br#"{"object":""#);
        out.extend_from_slice(self.family.answer.object.as_bytes());
        out.extend_from_slice(br#"","model":"#);
        let mut quoted = bytes::BytesMut::new();
        string::write(model, &mut quoted);
        out.extend_from_slice(&quoted);
        let top = self.top.iter().map(|(name, node)| (&**name, node));
        write_members(top, true, &mut out);
        out.extend_from_slice(br#","choices":["#);
        for (at, choice) in self.choices.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            choice.write(self.family.answer.content, &mut out);
        }
        out.push(b']');
        let reported = Reported::read(&self.usage);
        if let Some(usage) = reported.usage {
            out.extend_from_slice(br#","usage":"#);
            quoted.clear();
            write_usage(&self.usage, reported, usage, &mut quoted);
            out.extend_from_slice(&quoted);
        }
        out.push(b'}');
        if out.len() > self.bytes_max {
            let bytes_max = self.bytes_max;
            return Err(StoredError::TooLarge { bytes_max });
        }
        Ok(StoredAnswer {
            family: self.family,
            text: Bytes::copy_from_slice(&out),
            has_usage: reported.usage.is_some(),
        })
    }

    fn fail(&mut self, error: StoredError) {
        self.failed = Some(error);
        self.top = Vec::new();
        self.choices = Vec::new();
        self.template = Template::default();
    }

    /// Adds an event that differs from the template only in its text.
    fn like_the_last(&mut self, data: &[u8]) -> bool {
        let Template {
            before,
            after,
            choice,
            path,
            of_message,
            unused,
        } = &mut self.template;
        if before.is_empty() || !data.starts_with(before) || !data.ends_with(after) {
            return false;
        }
        // Where start and end overlap, the string of the start does not end in the end.
        let end = data.len() - after.len();
        let mut reader = Reader::starting_at(data, before.len() - 1);
        let Ok(words) = reader.string() else {
            return false;
        };
        if reader.at() != end + 1 {
            return false;
        }
        let Some(choice) = self.choices.get_mut(*choice) else {
            return false;
        };
        let text = match of_message {
            true => choice.speech.text_at(path),
            false => choice.text_at(path),
        };
        let Some(text) = text else { return false };
        text.extend_from_slice(words.raw);
        self.bytes += words.raw.len();
        *unused = 0;
        true
    }

    fn read(&mut self, data: &[u8]) -> Result<(), StoredError> {
        let mut reader = Reader::new(data);
        let mut touched = Touched::default();
        let mut spoken = None;
        let mut choices = 0;
        if reader.kind()? != Kind::Object {
            reader.fail::<()>("an object was expected")?;
        }
        let mut members = Members::default();
        let mut has_choices = false;
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            let name = name_of(&key);
            match (&*name, reader.kind()?) {
                // The padding that obscures event lengths in a reply has no effect in another reply.
                (b"id" | b"created" | b"model" | b"object" | b"error" | b"obfuscation", _) => {
                    reader.skip()?;
                }
                // Members that some providers repeat from the request identify the requester.
                (b"metadata" | b"user", _) => {
                    reader.skip()?;
                }
                (name, _) if name == self.metadata.as_bytes() => {
                    reader.skip()?;
                }
                (b"usage", _) => {
                    let value = reader.skip()?.of(data);
                    // The last valid usage counts, as for the charge.
                    if Usage::read(value).is_some() {
                        self.usage.clear();
                        self.usage.extend_from_slice(value);
                        touched.listed = true;
                    }
                }
                (b"choices", Kind::Array) => {
                    if std::mem::replace(&mut has_choices, true) {
                        return Err(StoredError::NotJoinable);
                    }
                    let mut first = true;
                    reader.enter()?;
                    while reader.item(&mut first)? {
                        if reader.kind()? != Kind::Object || self.choices.len() > CHOICES_MAX {
                            reader.fail::<()>("a choice was expected")?;
                        }
                        choices += 1;
                        spoken = Some(self.choice(&mut reader, data, &mut touched)?);
                    }
                }
                (b"choices", _) => {
                    reader.skip()?;
                }
                (name, _) => {
                    let at = members.place(&mut self.top, name, &mut touched)?;
                    self.top[at]
                        .1
                        .take(&mut reader, data, Join::Last, &mut touched)?;
                }
            }
        }
        reader.end()?;
        self.bytes = self.bytes.saturating_add_signed(touched.grown);
        if touched.listed {
            // A similar event may continue another item now.
            self.template.before.clear();
        }
        if let (Some(choice), 1) = (spoken, choices) {
            self.learn(data, choice, touched);
        }
        Ok(())
    }

    /// Adds a choice of an event, and returns the choice's index.
    fn choice(
        &mut self,
        reader: &mut Reader<'_>,
        data: &[u8],
        touched: &mut Touched,
    ) -> Result<usize, StoredError> {
        let index = index_of(reader)?.unwrap_or(0);
        let known = self.choices.iter().position(|one| one.index == index);
        let at = known.unwrap_or_else(|| {
            self.choices.push(Choice {
                index,
                members: Vec::new(),
                speech: Node::Nothing,
            });
            touched.grown += 64;
            self.choices.len() - 1
        });
        let Choice {
            members, speech, ..
        } = &mut self.choices[at];
        let mut seen = Members::default();
        let mut has_delta = false;
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            let name = name_of(&key);
            match (self.family.answer.content, &*name, reader.kind()?) {
                (_, b"index", _) => {
                    reader.skip()?;
                }
                (Content::Message, b"delta", _) => {
                    if std::mem::replace(&mut has_delta, true) {
                        return Err(StoredError::NotJoinable);
                    }
                    touched.in_message = true;
                    speech.take(reader, data, Join::Message, touched)?;
                    touched.in_message = false;
                }
                // Some providers repeat the message so far beside each piece.
                (Content::Message, b"message", kind) if kind != Kind::Null => {
                    return Err(StoredError::NotJoinable);
                }
                (_, name, _) => {
                    let at = seen.place(members, name, touched)?;
                    touched.enter(at);
                    members[at]
                        .1
                        .take(reader, data, Join::of_choice(name), touched)?;
                    touched.leave();
                }
            }
        }
        Ok(at)
    }

    /// Makes a template of an event whose repetition would add only its text.
    fn learn(&mut self, data: &[u8], choice: usize, touched: Touched) {
        if touched.appended != 1 || touched.listed {
            return;
        }
        let template = &mut self.template;
        template.unused = template.unused.saturating_add(1);
        // A provider with a new value in every event makes templates useless: try at doubling intervals.
        if template.unused > 4 && !template.unused.is_power_of_two() {
            return;
        }
        let (start, length) = touched.last;
        template.before.clear();
        template.before.extend_from_slice(&data[..start]);
        template.after.clear();
        template.after.extend_from_slice(&data[start + length..]);
        template.choice = choice;
        template.path = touched.path;
        template.of_message = touched.of_message;
    }
}

impl Choice {
    /// The text at a path within the choice's members.
    fn text_at(&mut self, path: &[usize]) -> Option<&mut Vec<u8>> {
        let (first, path) = path.split_first()?;
        self.members.get_mut(*first)?.1.text_at(path)
    }

    fn member(&self, name: &[u8]) -> Option<&Node> {
        let mut members = self.members.iter();
        members
            .find(|(known, _)| **known == *name)
            .map(|(_, node)| node)
    }

    fn write(&self, content: Content, out: &mut Vec<u8>) {
        out.extend_from_slice(br#"{"index":"#);
        out.extend_from_slice(itoa::Buffer::new().format(self.index).as_bytes());
        match content {
            Content::Message => {
                let speech = &self.speech;
                out.extend_from_slice(br#","message":{"role":"#);
                match speech.member(b"role") {
                    Some(Node::Plain(role)) if role.starts_with(b"\"") => {
                        out.extend_from_slice(role)
                    }
                    _ => out.extend_from_slice(b"\"assistant\""),
                }
                out.extend_from_slice(br#","content":"#);
                let content = speech.member(b"content").unwrap_or(&Node::Nothing);
                let calls = speech.member(b"tool_calls").is_some();
                match content {
                    // Streams start with an empty text in any case; a whole answer with only tool calls has no text.
                    Node::Text(text) if text.is_empty() && calls => out.extend_from_slice(b"null"),
                    content => content.write(b"content", out),
                }
                if let Node::Map(map) = speech {
                    let all = map.iter().map(|(name, node)| (&**name, node));
                    let others = all.filter(|(name, _)| !matches!(*name, b"role" | b"content"));
                    write_members(others, true, out);
                }
                out.push(b'}');
            }
            Content::Text => {
                out.extend_from_slice(br#","text":"#);
                match self.member(b"text") {
                    Some(text @ Node::Text(_)) => text.write(b"", out),
                    _ => out.extend_from_slice(b"\"\""),
                }
            }
        }
        let of = |name: &[u8]| self.member(name).unwrap_or(&Node::Nothing);
        out.extend_from_slice(br#","logprobs":"#);
        of(b"logprobs").write(b"logprobs", out);
        out.extend_from_slice(br#","finish_reason":"#);
        of(b"finish_reason").write(b"finish_reason", out);
        let all = self.members.iter().map(|(name, node)| (&**name, node));
        let is_written = |name: &[u8]| {
            matches!(name, b"logprobs" | b"finish_reason")
                || name == b"text" && content == Content::Text
        };
        write_members(all.filter(|(name, _)| !is_written(name)), true, out);
        out.push(b'}');
    }
}
