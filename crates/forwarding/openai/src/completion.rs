//! The facts of a provider's output: a parser for whole answers and for stream events.
//!
//! Answers and events are objects with `choices`; where an answer has a `message`, an event has a `delta`.

use smallvec::SmallVec;

use crate::json::scan::Bytes;
use crate::json::{Key, Kind, Reader, Span, SyntaxError};
use crate::number::{self, Whole};
use crate::splice::{Layout, Member};
use crate::string::{self, Text};
use crate::usage::Reported;
use crate::word::Word;

/// A parser of an answer or event. The arguments after the reader are the text of the reader, and the name of the gateway's metadata
/// member.
pub(crate) type Walk = fn(&mut Completion, Reader<'_>, &[u8], &str) -> Result<(), SyntaxError>;

/// Why a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model finished or reached a stop sequence.
    Stop,
    /// The token cap was reached.
    Length,
    /// The model calls tools.
    ToolCalls,
    /// The model calls a function, in the older form.
    FunctionCall,
    /// The provider withheld text.
    ContentFilter,
    /// The provider failed and reports the failure here.
    Error,
    /// A value specific to the provider.
    Other,
}

impl FinishReason {
    /// The word of the reason in this API; `other` for a value specific to the provider.
    pub fn word(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::FunctionCall => "function_call",
            Self::ContentFilter => "content_filter",
            Self::Error => "error",
            Self::Other => "other",
        }
    }

    /// Whether the model ended by itself, and not at a limit on its tokens. A value specific to the provider is ambiguous.
    pub fn is_stop(self) -> bool {
        matches!(self, Self::Stop | Self::ToolCalls | Self::FunctionCall)
    }

    /// Whether the answer is the whole answer that its request can get: the answer did not break off, and no part was withheld.
    pub fn is_whole(self) -> bool {
        self.is_stop() || self == Self::Length
    }

    /// `None` for the words by which some providers say in every event that the choice continues.
    fn read(word: Text<'_>) -> Option<Self> {
        Some(match word.raw {
            b"" | b"null" => return None,
            b"stop" | b"STOP" | b"eos" | b"end_turn" | b"stop_sequence" => Self::Stop,
            b"length" | b"max_tokens" | b"MAX_TOKENS" => Self::Length,
            b"tool_calls" | b"tool_use" => Self::ToolCalls,
            b"function_call" => Self::FunctionCall,
            b"content_filter" => Self::ContentFilter,
            b"error" => Self::Error,
            _ => Self::Other,
        })
    }
}

/// An item of `choices`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The `index` of the choice, 0 without an index.
    pub index: u32,
    /// Why the choice ended, if ended.
    pub finish: Option<FinishReason>,
    /// Whether the choice has an answer, or a piece of an answer: text, a refusal, a call, a picture or a sound. Reasoning is no answer.
    pub output: bool,
}

/// A call of a stream: a choice counts its calls from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallIndex {
    choice: u32,
    call: u64,
}

/// The member from which reasoning is counted: many providers send reasoning under several members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Thought {
    /// `reasoning`, `reasoning_content` and the like.
    Text,
    /// `reasoning_details`.
    Details,
    /// `thinking_blocks`.
    Blocks,
}

/// Members of an answer or event that may be rewritten for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tracked {
    Id,
    Model,
    Choices,
    Usage,
    Metadata,
}

/// The facts of an answer or event, with positions in its text.
#[derive(Clone, Debug)]
pub(crate) struct Completion {
    pub(crate) layout: Layout<Tracked>,
    pub(crate) choices: SmallVec<[Choice; 2]>,
    /// `choices` is present and an array.
    pub(crate) has_choices: bool,
    /// An item of `choices` is not an object.
    pub(crate) odd_choice: bool,
    /// The last valid `usage`; exact only if the usage is unique.
    pub(crate) usage: Reported,
    /// A top-level `error` that is neither null nor false nor an empty string, or the whole object where its `object` is `error`.
    pub(crate) error: Option<Span>,
    /// The generated strings with their quotes, and arguments that are objects. Empty strings are dropped.
    pub(crate) texts: SmallVec<[Span; 4]>,
    /// The strings that are names of called functions: the call, and the position in `texts`.
    pub(crate) names: SmallVec<[(CallIndex, usize); 1]>,
    /// Bytes of pictures and sounds, as encoded in the text.
    pub(crate) media_bytes: u64,
    /// Whether an object has twice a member that is read here. Clients may read the first or the second value.
    pub(crate) duplicates: bool,
    /// Kept between the events of a stream: the member from which reasoning is counted, and whether the stream has had a `delta`.
    thought: Option<Thought>,
    has_delta: bool,
}

impl Completion {
    pub(crate) fn new() -> Self {
        Self {
            layout: Layout::new(),
            choices: SmallVec::new(),
            has_choices: false,
            odd_choice: false,
            usage: Reported::default(),
            error: None,
            texts: SmallVec::new(),
            names: SmallVec::new(),
            media_bytes: 0,
            duplicates: false,
            thought: None,
            has_delta: false,
        }
    }

    /// Forgets the events before: the next text is of another answer.
    pub(crate) fn begin(&mut self) {
        self.thought = None;
        self.has_delta = false;
    }

    /// Maps each offset by `to`, except the offset of an error: always in a fixed order.
    pub(crate) fn move_places(&mut self, mut to: impl FnMut(usize) -> usize) {
        for (_, member) in &mut self.layout.members {
            member.move_places(&mut to);
        }
        self.layout.close = to(self.layout.close);
        for Span { start, end } in &mut self.texts {
            (*start, *end) = (to(*start), to(*end));
        }
    }

    /// Whether the facts have no heap allocation.
    pub(crate) fn is_small(&self) -> bool {
        !(self.layout.members.spilled()
            || self.choices.spilled()
            || self.texts.spilled()
            || self.names.spilled())
    }

    /// Parses `text`, an object, by the parser of its family, and replaces the previous facts. `metadata` is the name of the gateway's
    /// metadata member.
    pub(crate) fn read(
        &mut self,
        walk: Walk,
        text: &[u8],
        metadata: &str,
    ) -> Result<(), SyntaxError> {
        walk(self, Reader::new(text), text, metadata)
    }

    /// As [`Completion::read`], for a scanned text.
    pub(crate) fn read_knowing(
        &mut self,
        walk: Walk,
        text: &[u8],
        bytes: Bytes,
        metadata: &str,
    ) -> Result<(), SyntaxError> {
        walk(self, Reader::new(text).knowing(bytes), text, metadata)
    }

    /// The parser of chat and text completions.
    pub(crate) fn walk(
        &mut self,
        mut reader: Reader<'_>,
        text: &[u8],
        metadata: &str,
    ) -> Result<(), SyntaxError> {
        self.layout.members.clear();
        self.layout.count = 0;
        self.choices.clear();
        self.texts.clear();
        self.names.clear();
        self.media_bytes = 0;
        self.duplicates = false;
        self.has_choices = false;
        self.odd_choice = false;
        self.usage = Reported::default();
        let mut usages = 0u32;
        let mut is_error = false;
        self.error = None;
        if reader.kind()? != Kind::Object {
            return reader.fail("an object was expected");
        }
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            let kind = reader.kind()?;
            let start = reader.at();
            let tracked = match Name::of(&key, metadata) {
                Some(Name::Tracked(tracked)) => Some(tracked),
                Some(Name::Error) => {
                    let value = reader.skip()?;
                    if !matches!(value.of(text), b"null" | b"false" | b"\"\"") {
                        self.error = Some(value);
                    }
                    None
                }
                Some(Name::Object) => {
                    is_error |= reader.skip()?.of(text) == b"\"error\"";
                    None
                }
                None => {
                    reader.skip()?;
                    None
                }
            };
            if let Some(tracked) = tracked {
                match tracked {
                    Tracked::Choices => self.choices(&mut reader, kind)?,
                    // Of two usages the last counts, as for two events.
                    Tracked::Usage => {
                        let Reported { usage, is_exact } = Reported::from_reader(&mut reader)?;
                        usages += 1;
                        self.usage = Reported {
                            usage: usage.or(self.usage.usage),
                            is_exact: is_exact && usages == 1,
                        };
                    }
                    Tracked::Id | Tracked::Model | Tracked::Metadata => {
                        reader.skip()?;
                    }
                }
                let end = reader.at();
                let Some(member) = Member::new(self.layout.count, key.at, Span { start, end })
                else {
                    return reader.fail("the text goes on for four gigabytes");
                };
                self.layout.members.push((tracked, member));
            }
            self.layout.count += 1;
        }
        self.layout.close = reader.at() - 1;
        if is_error && self.error.is_none() {
            let (start, end) = (0, text.len());
            self.error = Some(Span { start, end });
        }
        reader.end()
    }

    /// Appends the generated text.
    pub(crate) fn append_text(&self, text: &[u8], out: &mut String) {
        for span in &self.texts {
            string::unescape(&text[span.start + 1..span.end - 1], out);
        }
    }

    /// Bytes of generated text, as encoded.
    pub(crate) fn text_bytes(&self) -> usize {
        self.texts.iter().map(|span| span.len() - 2).sum()
    }

    fn choices(&mut self, reader: &mut Reader<'_>, kind: Kind) -> Result<(), SyntaxError> {
        if kind != Kind::Array {
            reader.skip()?;
            return Ok(());
        }
        self.duplicates |= self.has_choices;
        self.has_choices = true;
        let mut first = true;
        reader.enter()?;
        while reader.item(&mut first)? {
            if reader.kind()? == Kind::Object {
                self.choice(reader)?;
            } else {
                self.odd_choice = true;
                reader.skip()?;
            }
        }
        Ok(())
    }

    fn choice(&mut self, reader: &mut Reader<'_>) -> Result<(), SyntaxError> {
        let mut choice = Choice {
            index: 0,
            finish: None,
            output: false,
        };
        // Output beside the message, or in place of a message.
        let mut text = None;
        let mut thought = None;
        // The texts of a `message`, and its media.
        let mut message = None;
        let begin = self.texts.len();
        let names_begin = self.names.len();
        let mut words = 0;
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            self.note(&key, &mut words);
            match (key.word, reader.kind()?) {
                (Some(Word::Index), Kind::Number) => {
                    if let Whole::Value(index) = number::whole(reader.number()?) {
                        choice.index = u32::try_from(index).unwrap_or(u32::MAX);
                    }
                }
                (Some(Word::FinishReason), Kind::String) => {
                    choice.finish = FinishReason::read(reader.string()?);
                }
                (Some(Word::Delta), Kind::Object) => {
                    self.has_delta = true;
                    choice.output |= self.speech(reader)?;
                }
                (Some(Word::Message), Kind::Object) => {
                    let (start, media) = (self.texts.len(), self.media_bytes);
                    let output = self.speech(reader)?;
                    message = Some((start..self.texts.len(), self.media_bytes - media, output));
                }
                (Some(Word::Text), Kind::String) => text = said(reader)?,
                // Reasoning is beside the text where a chat was translated into a text.
                (_, Kind::String) if thought.is_none() && is_thought(&key) => {
                    thought = said(reader)?
                }
                _ => {
                    reader.skip()?;
                }
            }
        }
        if let Some((texts, media, output)) = message {
            // Beside the pieces, the `message` is the message so far, and grows with each event.
            if self.has_delta {
                self.media_bytes -= media;
                self.names.retain(|(_, at)| !texts.contains(at));
                for (_, at) in self.names.iter_mut().filter(|(_, at)| *at >= texts.end) {
                    *at -= texts.len();
                }
                self.texts.drain(texts);
            } else {
                choice.output |= output;
            }
        }
        // The index may follow the calls.
        for (of, _) in &mut self.names[names_begin..] {
            of.choice = choice.index;
        }
        // Some providers repeat the text of the message here.
        if self.texts.len() == begin {
            choice.output |= text.is_some();
            self.texts.extend(text.into_iter().chain(thought));
        }
        self.choices.push(choice);
        Ok(())
    }

    /// A `delta` or a `message`. Returns whether the object has output.
    fn speech(&mut self, reader: &mut Reader<'_>) -> Result<bool, SyntaxError> {
        let begin = self.texts.len();
        let mut thoughts: SmallVec<[(Thought, Span); 2]> = SmallVec::new();
        let mut output = false;
        let mut words = 0;
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            self.note(&key, &mut words);
            let kind = reader.kind()?;
            let before = (self.texts.len(), self.media_bytes);
            match (key.word, kind) {
                (Some(Word::Content | Word::Refusal), Kind::String) => {
                    self.texts.extend(said(reader)?);
                }
                (Some(Word::Content), Kind::Array) => {
                    self.parts(reader, &[b"text", b"thinking", b"refusal"])?;
                }
                (Some(Word::Audio), Kind::Object) => self.parts(reader, &[b"transcript"])?,
                (Some(Word::Images), Kind::Array) => self.parts(reader, &[])?,
                (Some(Word::ToolCalls), Kind::Array) => {
                    let mut first = true;
                    reader.enter()?;
                    while reader.item(&mut first)? {
                        self.call(reader, &mut 0)?;
                    }
                }
                (Some(Word::FunctionCall), Kind::Object) => self.call(reader, &mut { u64::MAX })?,
                _ => {
                    let thought = match key.text.raw {
                        b"reasoning_details" => Some(Thought::Details),
                        b"thinking_blocks" => Some(Thought::Blocks),
                        _ => is_thought(&key).then_some(Thought::Text),
                    };
                    match thought {
                        // Some providers send equal reasoning under two names. The reasoning is counted once.
                        Some(Thought::Text)
                            if thoughts.iter().any(|(of, _)| *of == Thought::Text) =>
                        {
                            reader.skip()?;
                        }
                        Some(Thought::Text) if kind == Kind::String => {
                            thoughts.extend(said(reader)?.map(|text| (Thought::Text, text)));
                        }
                        Some(thought) => {
                            const NAMES: [&[u8]; 4] =
                                [b"text", b"summary", b"thinking", b"content"];
                            reader.walk(|name, span| {
                                if span.len() > 2 && NAMES.contains(&name) {
                                    thoughts.push((thought, span));
                                }
                            })?;
                        }
                        None => {
                            reader.skip()?;
                        }
                    }
                }
            }
            output |= before != (self.texts.len(), self.media_bytes);
        }
        if let Some(first) = thoughts.iter().map(|(thought, _)| *thought).min() {
            let counted = *self.thought.get_or_insert(first);
            let end = self.texts.len();
            let thoughts = thoughts.iter().filter(|(thought, _)| *thought == counted);
            self.texts.extend(thoughts.map(|(_, text)| *text));
            // These texts were generated before the rest.
            let count = self.texts.len() - end;
            self.texts[begin..].rotate_right(count);
            for (_, at) in self.names.iter_mut().filter(|(_, at)| *at >= begin) {
                *at += count;
            }
        }
        Ok(output)
    }

    /// A call, or the function of a call: its name and its arguments, which some providers send as an object. `index` is the index of the
    /// call.
    ///
    /// A function is a level below its call; the reader stops at 64.
    fn call(&mut self, reader: &mut Reader<'_>, index: &mut u64) -> Result<(), SyntaxError> {
        if reader.kind()? != Kind::Object {
            reader.skip()?;
            return Ok(());
        }
        let begin = self.names.len();
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            match (key.text.raw, reader.kind()?) {
                (b"index", Kind::Number) => {
                    if let Whole::Value(value) = number::whole(reader.number()?) {
                        *index = value;
                    }
                }
                (b"name", Kind::String) => {
                    if let Some(name) = said(reader)? {
                        let of = CallIndex {
                            choice: 0,
                            call: *index,
                        };
                        self.names.push((of, self.texts.len()));
                        self.texts.push(name);
                    }
                }
                (b"arguments" | b"input", Kind::String | Kind::Object | Kind::Array) => {
                    self.texts.extend(said(reader)?);
                }
                (b"function" | b"custom", Kind::Object) => self.call(reader, index)?,
                _ => {
                    reader.skip()?;
                }
            }
        }
        // The index may follow the name.
        for (of, _) in &mut self.names[begin..] {
            of.call = *index;
        }
        Ok(())
    }

    /// Records the strings under a name of `names` in the next value, and counts the rest: pictures and sounds, or their URLs.
    fn parts(&mut self, reader: &mut Reader<'_>, names: &[&[u8]]) -> Result<(), SyntaxError> {
        const MEDIA: [&[u8]; 3] = [b"data", b"url", b"b64_json"];
        reader.walk(|name, span| {
            if span.len() <= 2 {
                return;
            }
            if names.contains(&name) {
                self.texts.push(span);
            } else if MEDIA.contains(&name) {
                self.media_bytes += span.len() as u64 - 2;
            }
        })?;
        Ok(())
    }

    /// Notes a member of an object. `words` are the object's names so far.
    fn note(&mut self, key: &Key<'_>, words: &mut u128) {
        let bit = key.word.map_or(0, |word| 1 << word as u8);
        self.duplicates |= *words & bit != 0;
        *words |= bit;
    }
}

/// The next value, a string or a structure, unless it is empty.
fn said(reader: &mut Reader<'_>) -> Result<Option<Span>, SyntaxError> {
    let span = reader.skip()?;
    Ok((span.len() > 2).then_some(span))
}

/// Whether a member has reasoning text.
fn is_thought(key: &Key<'_>) -> bool {
    key.word == Some(Word::Reasoning)
        || matches!(
            key.text.raw,
            b"reasoning_content" | b"reasoning_text" | b"thinking"
        )
}

/// The gateway's use of a top-level name.
enum Name {
    Tracked(Tracked),
    Error,
    /// The kind of the object, which some providers (vLLM) set to `error`.
    Object,
}

impl Name {
    fn of(key: &Key<'_>, metadata: &str) -> Option<Self> {
        Some(match key.word {
            Some(Word::Id) => Self::Tracked(Tracked::Id),
            Some(Word::Model) => Self::Tracked(Tracked::Model),
            Some(Word::Choices) => Self::Tracked(Tracked::Choices),
            Some(Word::Usage) => Self::Tracked(Tracked::Usage),
            Some(Word::Error) => Self::Error,
            Some(Word::Object) => Self::Object,
            // No provider escapes the name, but a client would decode escapes.
            _ if key.text.is(metadata) => Self::Tracked(Tracked::Metadata),
            _ => return None,
        })
    }
}
