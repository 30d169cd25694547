//! The facts of a provider's output: one parser for whole answers and for stream events.
//!
//! Both are objects with `choices`; where an answer has a `message`, an event has a `delta`.

use smallvec::SmallVec;

use crate::json::scan::Bytes;
use crate::json::{Key, Kind, Reader, Span, SyntaxError};
use crate::number::{self, Whole};
use crate::splice::{Layout, Member};
use crate::string::{self, Text};
use crate::usage::Reported;
use crate::word::Word;

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
    /// The provider failed and reports it here.
    Error,
    /// A value specific to the provider.
    Other,
}

impl FinishReason {
    /// Whether the model ended by itself, and not at a limit on its tokens. A value specific to the provider may mean either.
    pub fn is_stop(self) -> bool {
        matches!(self, Self::Stop | Self::ToolCalls | Self::FunctionCall)
    }

    /// `None` for the words with which some providers say in every event that the choice goes on.
    fn read(word: Text<'_>) -> Option<Self> {
        Some(match word.raw {
            b"" | b"null" => return None,
            b"stop" => Self::Stop,
            b"length" => Self::Length,
            b"tool_calls" => Self::ToolCalls,
            b"function_call" => Self::FunctionCall,
            b"content_filter" => Self::ContentFilter,
            b"error" => Self::Error,
            _ => Self::Other,
        })
    }
}

/// One item of `choices`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its `index`, 0 when it has none.
    pub index: u32,
    /// Why it ended, if it has.
    pub finish: Option<FinishReason>,
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

/// The facts of one answer or event, with positions in its text.
#[derive(Clone, Debug)]
pub(crate) struct Completion {
    pub(crate) layout: Layout<Tracked>,
    pub(crate) choices: SmallVec<[Choice; 2]>,
    /// `choices` is present and an array.
    pub(crate) has_choices: bool,
    /// An item of `choices` is not an object.
    pub(crate) odd_choice: bool,
    /// The last valid `usage`; exact only where it is the only one.
    pub(crate) usage: Reported,
    /// A top-level `error` that is neither null nor false nor an empty string, or the whole object where its `object` is `error`.
    pub(crate) error: Option<Span>,
    /// The generated strings, with their quotes, in the order of the text. Empty ones are dropped.
    pub(crate) texts: SmallVec<[Span; 4]>,
    /// Bytes of pictures and sounds, as encoded in the text.
    pub(crate) media_bytes: u64,
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
            media_bytes: 0,
        }
    }

    /// Maps each offset by `to`, except that of an error: always in the same order.
    pub(crate) fn move_places(&mut self, mut to: impl FnMut(usize) -> usize) {
        for (_, member) in &mut self.layout.members {
            member.move_places(&mut to);
        }
        self.layout.close = to(self.layout.close);
        for Span { start, end } in &mut self.texts {
            (*start, *end) = (to(*start), to(*end));
        }
    }

    /// Whether it has no heap allocation.
    pub(crate) fn is_small(&self) -> bool {
        !(self.layout.members.spilled() || self.choices.spilled() || self.texts.spilled())
    }

    /// Parses `text`, an object, and replaces the previous facts. `metadata` is the name of our metadata member.
    pub(crate) fn read(&mut self, text: &[u8], metadata: &str) -> Result<(), SyntaxError> {
        self.walk(Reader::new(text), text, metadata)
    }

    /// The same for a text that has been scanned.
    pub(crate) fn read_knowing(
        &mut self,
        text: &[u8],
        bytes: Bytes,
        metadata: &str,
    ) -> Result<(), SyntaxError> {
        self.walk(Reader::new(text).knowing(bytes), text, metadata)
    }

    fn walk(
        &mut self,
        mut reader: Reader<'_>,
        text: &[u8],
        metadata: &str,
    ) -> Result<(), SyntaxError> {
        self.layout.members.clear();
        self.layout.count = 0;
        self.choices.clear();
        self.texts.clear();
        self.media_bytes = 0;
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
                    // Of two the last one counts, as for two events.
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
        };
        let mut reasoned = false;
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            match (key.word, reader.kind()?) {
                (Some(Word::Index), Kind::Number) => {
                    if let Whole::Value(index) = number::whole(reader.number()?) {
                        choice.index = u32::try_from(index).unwrap_or(u32::MAX);
                    }
                }
                (Some(Word::FinishReason), Kind::String) => {
                    choice.finish = FinishReason::read(reader.string()?);
                }
                (Some(Word::Delta | Word::Message), Kind::Object) => self.speech(reader)?,
                (Some(Word::Text), Kind::String) => self.text(reader)?,
                // Reasoning is beside the text where a chat was translated into a text.
                (_, Kind::String) if !reasoned && is_thought(&key) => {
                    let before = self.texts.len();
                    self.text(reader)?;
                    reasoned = self.texts.len() > before;
                }
                _ => {
                    reader.skip()?;
                }
            }
        }
        self.choices.push(choice);
        Ok(())
    }

    /// A `delta` or a `message`.
    fn speech(&mut self, reader: &mut Reader<'_>) -> Result<(), SyntaxError> {
        let mut reasoned = false;
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            match (key.word, reader.kind()?) {
                (Some(Word::Content | Word::Refusal), Kind::String) => self.text(reader)?,
                (Some(Word::Content), Kind::Array) => self.parts(reader, &[b"text"])?,
                (Some(Word::Audio), Kind::Object) => self.parts(reader, &[b"transcript"])?,
                (Some(Word::Images), Kind::Array) => self.parts(reader, &[])?,
                // Some providers send the same reasoning under both names. It is counted once.
                (_, Kind::String) if !reasoned && is_thought(&key) => {
                    let before = self.texts.len();
                    self.text(reader)?;
                    reasoned = self.texts.len() > before;
                }
                (Some(Word::ToolCalls | Word::FunctionCall), _) => {
                    self.texts_named(reader, &[b"name", b"arguments"])?;
                }
                _ => {
                    reader.skip()?;
                }
            }
        }
        Ok(())
    }

    /// Records the strings under one of `names` in the next value, and counts the rest: pictures and sounds, or their URLs.
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

    /// Records the next string; the caller has checked its kind.
    fn text(&mut self, reader: &mut Reader<'_>) -> Result<(), SyntaxError> {
        let start = reader.at();
        reader.string()?;
        let end = reader.at();
        if end - start > 2 {
            self.texts.push(Span { start, end });
        }
        Ok(())
    }

    /// Records the strings under one of `names` in the next value.
    fn texts_named(&mut self, reader: &mut Reader<'_>, names: &[&[u8]]) -> Result<(), SyntaxError> {
        reader.walk(|name, span| {
            if span.len() > 2 && names.contains(&name) {
                self.texts.push(span);
            }
        })?;
        Ok(())
    }
}

/// Whether a member has reasoning text.
fn is_thought(key: &Key<'_>) -> bool {
    key.word == Some(Word::Reasoning) || key.text.raw == b"reasoning_content"
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
            // No provider escapes it, but a client would decode it.
            _ if key.text.is(metadata) => Self::Tracked(Tracked::Metadata),
            _ => return None,
        })
    }
}
