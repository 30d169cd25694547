//! The events of a completion stream: the facts of each event, and its rewritten form for the client.

use std::sync::Arc;

use bytes::BytesMut;

use crate::completion::{CallIndex, Choice, Completion};
use crate::json::{Reader, Span, SyntaxError};
use crate::patch::{Change, Patch, UsageChange};
use crate::string;
use crate::usage::Usage;

/// Why the data of an event is not a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// The event's bytes are not UTF-8.
    #[error("the event is not UTF-8")]
    NotUtf8,
    /// The event is not a JSON object.
    #[error("the event is not a JSON object: {0}")]
    NotAnObject(#[from] SyntaxError),
}

/// Parses the events of a stream.
///
/// Nearly every event of a stream differs from the event before only in the generated text. The reader therefore keeps the last event as a
/// template: the bytes before and after the text, in the provider's form and rewritten for the client. An event with equal start and end,
/// and a valid JSON string between, is recognised without a parse. Any other event is parsed in full.
#[derive(Debug)]
pub struct ChunkReader {
    patch: Arc<Patch>,
    include_usage: bool,
    facts: Completion,
    /// The names of called functions so far, by their call: some providers repeat the names in each event.
    names: Vec<(CallIndex, Box<[u8]>)>,
    template: Template,
}

/// The most remembered names.
const NAMES_MAX: usize = 128;

/// An event with a single generated string, without the string. Empty before the first event.
#[derive(Debug, Default)]
struct Template {
    before: Vec<u8>,
    after: Vec<u8>,
    before_patched: Vec<u8>,
    after_patched: Vec<u8>,
    /// The facts of the template's event. The facts apply to every matching event.
    facts: Option<Completion>,
    /// Templates made since the last match.
    unused: u32,
    scratch: BytesMut,
}

impl ChunkReader {
    /// A reader for a stream whose events get `patch`.
    ///
    /// `include_usage`: the client requested the usage. With `include_usage`, `usage` is null in every event with choices, and stays in the
    /// event without choices. Without `include_usage`, no event has the member.
    pub fn new(patch: Arc<Patch>, include_usage: bool) -> Self {
        Self {
            patch,
            include_usage,
            facts: Completion::new(),
            names: Vec::new(),
            template: Template::default(),
        }
    }

    /// Parses the data of an event, except for `[DONE]`.
    ///
    /// # Errors
    ///
    /// The data is not a JSON object. The rest of the stream is unusable.
    pub fn read<'a>(&'a mut self, data: &'a [u8]) -> Result<Chunk<'a>, ChunkError> {
        if let Some(content) = self.template.matches(data) {
            self.template.unused = 0;
            return Ok(Chunk {
                reader: self,
                data,
                content: Some(content),
            });
        }
        if std::str::from_utf8(data).is_err() {
            return Err(ChunkError::NotUtf8);
        }
        let patch = &self.patch;
        (self.facts).read(patch.family().answer.read, data, patch.metadata_name())?;
        // A template would count the name of a call again.
        if self.forget_repeated_names(data) {
            self.learn(data);
        }
        Ok(Chunk {
            reader: self,
            data,
            content: None,
        })
    }

    /// Removes the names that have been counted for their call. Returns whether no name is left.
    fn forget_repeated_names(&mut self, data: &[u8]) -> bool {
        let mut has_no_name = true;
        let Completion { texts, names, .. } = &mut self.facts;
        for (call, at) in names.drain(..).rev() {
            let name = texts[at].of(data);
            let known = self.names.iter();
            if known
                .into_iter()
                .any(|(of, known)| *of == call && **known == *name)
            {
                texts.remove(at);
                continue;
            }
            has_no_name = false;
            if self.names.len() < NAMES_MAX {
                self.names.push((call, name.into()));
            }
        }
        has_no_name
    }

    /// Makes a template of an event with a single generated string.
    ///
    /// Every other fact is equal for events with equal bytes around the string, except the position of an error.
    fn learn(&mut self, data: &[u8]) {
        let facts = &self.facts;
        let [content] = facts.texts.as_slice() else {
            return;
        };
        if facts.error.is_some() {
            return;
        }
        // A provider with a new value in every event makes templates useless: try at doubling intervals.
        let template = &mut self.template;
        template.unused = template.unused.saturating_add(1);
        if template.unused > 4 && !template.unused.is_power_of_two() {
            return;
        }
        template.scratch.clear();
        let change = change(self.include_usage, facts, None, None);
        let mark = Some(content.start + 1);
        let marked = self
            .patch
            .write(data, &facts.layout, &change, mark, &mut template.scratch);
        let Some(marked) = marked else { return };
        let (before, after) = template.scratch.split_at(marked);
        replace(&mut template.before_patched, before);
        replace(&mut template.after_patched, &after[content.len() - 2..]);
        replace(&mut template.before, &data[..content.start + 1]);
        replace(&mut template.after, &data[content.end - 1..]);
        template.facts = Some(facts.clone());
    }
}

fn replace(kept: &mut Vec<u8>, bytes: &[u8]) {
    kept.clear();
    kept.extend_from_slice(bytes);
}

impl Template {
    /// The position of the text, if `data` matches the template.
    fn matches(&self, data: &[u8]) -> Option<Span> {
        self.facts.as_ref()?;
        if !data.starts_with(&self.before) || !data.ends_with(&self.after) {
            return None;
        }
        // Where start and end overlap, the string of the start does not end in the end.
        let content = Span {
            start: self.before.len() - 1,
            end: data.len() - self.after.len() + 1,
        };
        let mut reader = Reader::starting_at(data, content.start);
        reader.string().ok()?;
        // An empty string is no output.
        let one_string = reader.at() == content.end && content.len() > 2;
        (one_string && std::str::from_utf8(content.of(data)).is_ok()).then_some(content)
    }
}

/// The facts of an event.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    reader: &'a ChunkReader,
    data: &'a [u8],
    /// The generated string of an event that matches the template.
    content: Option<Span>,
}

impl<'a> Chunk<'a> {
    fn facts(&self) -> &'a Completion {
        match (&self.content, &self.reader.template.facts) {
            (Some(_), Some(facts)) => facts,
            _ => &self.reader.facts,
        }
    }

    /// The choices in this event. The order has no meaning; with `n` above 1 the choices alternate.
    pub fn choices(&self) -> &'a [Choice] {
        &self.facts().choices
    }

    /// Whether `choices` is present and empty, as in the usage event, and in a first event with filter results only.
    pub fn has_empty_choices(&self) -> bool {
        self.facts().has_choices && self.facts().choices.is_empty()
    }

    /// The `usage`, if present and valid. Of several usages in a stream the last usage counts.
    pub fn usage(&self) -> Option<Usage> {
        self.facts().usage.usage
    }

    /// The value of a top-level `error` as JSON, if the event reports one; see [`crate::provider_error`].
    pub fn error(&self) -> Option<&'a [u8]> {
        self.facts().error.map(|span| span.of(self.data))
    }

    /// Bytes of generated text in this event, before escapes are decoded; 0 without text.
    pub fn text_bytes(&self) -> usize {
        match self.content {
            Some(content) => content.len() - 2,
            None => self.facts().text_bytes(),
        }
    }

    /// Bytes of pictures and sounds, as encoded in this event.
    pub fn media_bytes(&self) -> u64 {
        self.facts().media_bytes
    }

    /// Appends the generated text of every choice: content, reasoning, refusals, tool calls. For token counting.
    pub fn append_text(&self, out: &mut String) {
        match self.content {
            Some(content) => {
                string::unescape(&self.data[content.start + 1..content.end - 1], out);
            }
            None => self.facts().append_text(self.data, out),
        }
    }

    /// Appends the client's form of the event's data.
    ///
    /// Only the members of the patch differ from the provider's bytes.
    pub fn write(&self, out: &mut BytesMut) {
        let template = &self.reader.template;
        if let Some(content) = self.content {
            let content = &self.data[content.start + 1..content.end - 1];
            out.reserve(
                template.before_patched.len() + content.len() + template.after_patched.len(),
            );
            out.extend_from_slice(&template.before_patched);
            out.extend_from_slice(content);
            out.extend_from_slice(&template.after_patched);
            return;
        }
        self.write_with(&self.reader.facts, None, None, out);
    }

    /// Appends the client's form of the last event's data, with the metadata object (JSON).
    ///
    /// `charged` is the usage that the client pays for: if this event is the usage event with other counts, the counts are overwritten.
    pub fn write_last(&self, charged: Option<Usage>, metadata: &[u8], out: &mut BytesMut) {
        if self.content.is_some() {
            // Positions in the text differ from the template's positions; this case happens at most once in a stream.
            let mut facts = Completion::new();
            if self.parse(&mut facts).is_ok() {
                self.write_with(&facts, charged, Some(metadata), out);
            }
            return;
        }
        self.write_with(&self.reader.facts, charged, Some(metadata), out);
    }

    fn write_with(
        &self,
        facts: &Completion,
        charged: Option<Usage>,
        metadata: Option<&[u8]>,
        out: &mut BytesMut,
    ) {
        let change = change(self.reader.include_usage, facts, charged, metadata);
        self.reader
            .patch
            .write(self.data, &facts.layout, &change, None, out);
    }

    /// Appends a usage event: this event without choices, and with `usage`.
    ///
    /// For a provider that did not send the usage event, although the client requested the event.
    pub fn write_usage_chunk(&self, usage: Usage, metadata: &[u8], out: &mut BytesMut) {
        self.write_other(b"[]", UsageChange::Set(usage), metadata, out);
    }

    /// Appends an event without text: this event with a single empty choice.
    ///
    /// For a stream whose last event has been sent when the charge is known.
    pub fn write_silent_chunk(&self, metadata: &[u8], out: &mut BytesMut) {
        let choices = self.reader.patch.family().answer.silent_choices;
        self.write_other(choices.as_bytes(), UsageChange::Remove, metadata, out);
    }

    /// Parses the event again.
    fn parse(&self, facts: &mut Completion) -> Result<(), SyntaxError> {
        let patch = &self.reader.patch;
        let read = patch.family().answer.read;
        facts.read(read, self.data, patch.metadata_name())
    }

    /// Appends this event with other choices.
    fn write_other(&self, choices: &[u8], usage: UsageChange, metadata: &[u8], out: &mut BytesMut) {
        let mut facts = Completion::new();
        // The data has been parsed once already.
        if self.parse(&mut facts).is_ok() {
            let change = Change {
                usage,
                choices: Some(choices),
                metadata: Some(metadata),
            };
            self.reader
                .patch
                .write(self.data, &facts.layout, &change, None, out);
        }
    }
}

fn change<'a>(
    include_usage: bool,
    facts: &Completion,
    charged: Option<Usage>,
    metadata: Option<&'a [u8]>,
) -> Change<'a> {
    let usage = match include_usage {
        false => UsageChange::Remove,
        true if facts.choices.is_empty() => UsageChange::to(charged, facts.usage.shown()),
        true => UsageChange::Null,
    };
    Change {
        usage,
        choices: None,
        metadata,
    }
}
