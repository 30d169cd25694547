//! A parse cache of answer templates: an answer that matches an earlier answer of the provider is not parsed.
//!
//! Answers of a provider differ in a few values: the id, the time, the generated text, the token counts. A [`Template`] is a parsed answer
//! without the differing values: fixed bytes, and between the fixed bytes slots for a string or number. A text with these fixed bytes
//! around valid strings and numbers is equal JSON with other values. The facts of the template therefore apply to the text, except for
//! positions. Any other text is parsed, and may become a template itself.
//!
//! Templates are kept per thread, the last few that matched. A template contains no generated text except where an answer repeats the text
//! or has text outside its text members: reasoning under two names, the tokens of `logprobs`, the URLs of media. The text never leaves the
//! thread.

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ops::Range;

use smallvec::SmallVec;

use crate::completion::{Completion, Tracked};
use crate::family::Family;
use crate::json::scan::Bytes;
use crate::json::{Kind, Reader, Span, SyntaxError};
use crate::usage::{self, Counts, Reported, Usage};
use crate::word::Word;

/// The most templates of a thread: usually a template or two for each frequently used model.
const TEMPLATES_MAX: usize = 8;

/// An answer without a matching template becomes a template. While templates stay unused, only every second answer becomes a template,
/// every fourth, and so on. The interval is at most two to the power of this number, because a provider may change its format.
const RARELY: u32 = 6;

/// The most slots of a template.
const SLOTS_MAX: usize = 16;

/// The most fixed bytes of a template.
const FIXED_BYTES_MAX: usize = 4 * 1024;

/// The facts of an answer, as a template for the next answer.
#[derive(Debug)]
pub(crate) struct Template {
    /// Of the last text.
    pub(crate) facts: Completion,
    /// The family whose parser found the facts.
    family: &'static Family,
    /// The name of the gateway's metadata member at the parse: the absence of another member with the name is a fact too.
    metadata: Box<str>,
    /// The fixed bytes between the slots, concatenated. Empty for a text that is not a template.
    fixed: Vec<u8>,
    /// In the order of the text.
    slots: SmallVec<[Slot; SLOTS_MAX]>,
    /// The number of slots before each position in the facts, in the order of [`Completion::move_places`].
    before: SmallVec<[u8; 32]>,
    /// Whether each of the three counts occurs once in a single `usage`, as a number.
    counts_once: bool,
    /// Another text has matched.
    used: bool,
}

/// A slot: a value that may differ in the next answer.
#[derive(Clone, Copy, Debug)]
struct Slot {
    value: Value,
    /// The end, within the stored bytes, of the fixed bytes between the previous slot and this slot.
    fixed_end: u32,
    /// The length of the value in the last text.
    length: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    String,
    /// Generated text. An empty text would not be recorded.
    Text,
    Number,
    /// The token count at this index of the three.
    Count(usize),
}

/// Positions of values that may differ in the next text.
type Values = SmallVec<[(Value, Range<usize>); SLOTS_MAX]>;

/// The templates of a thread.
#[derive(Default)]
struct Templates {
    /// By last match: the most recent template is last, templates without a match are first.
    known: SmallVec<[Box<Template>; TEMPLATES_MAX]>,
    /// A reusable allocation for the facts of a text that is not a template.
    spare: Option<Box<Template>>,
    /// Texts without a match since the last template was made.
    missed: u32,
    /// Unused templates minus used templates, up to [`RARELY`].
    wasted: u32,
}

thread_local! {
    static TEMPLATES: RefCell<Templates> = RefCell::default();
}

/// Parses `text`, an object in UTF-8. `metadata` is the name of our metadata member. The result has to be returned ([`recycle`]).
pub(crate) fn read(
    text: &[u8],
    bytes: Bytes,
    family: &'static Family,
    metadata: &str,
) -> (Box<Template>, Result<(), SyntaxError>) {
    TEMPLATES.with_borrow_mut(|templates| templates.read(text, bytes, family, metadata))
}

/// Takes the result back for reuse.
pub(crate) fn recycle(template: Box<Template>) {
    TEMPLATES.with_borrow_mut(|templates| templates.recycle(template));
}

impl Templates {
    fn read(
        &mut self,
        text: &[u8],
        bytes: Bytes,
        family: &'static Family,
        metadata: &str,
    ) -> (Box<Template>, Result<(), SyntaxError>) {
        let mut known = self.known.iter_mut();
        let matches = |template: &mut Box<Template>| {
            template.family == family && template.matches(text, bytes, metadata)
        };
        if let Some(at) = known.rposition(matches) {
            let mut template = self.known.remove(at);
            template.used = true;
            return (template, Ok(()));
        }
        let mut template = self.spare.take().unwrap_or_else(Template::none);
        template.facts.begin();
        template.family = family;
        let walk = family.answer.read;
        let read = template.facts.read_knowing(walk, text, bytes, metadata);
        if read.is_ok() {
            self.missed += 1;
            // A provider has new fixed values in every answer, or more templates are needed than fit.
            if self.missed >> self.wasted != 0 {
                self.missed = 0;
                template.learn(text, metadata);
            }
        }
        (template, read)
    }

    fn recycle(&mut self, mut template: Box<Template>) {
        if template.used {
            self.known.push(template);
            return;
        }
        if !template.fixed.is_empty() {
            let evicted = (self.known.len() == TEMPLATES_MAX).then(|| self.known.remove(0));
            // The first to be evicted until a match: otherwise alternating models would evict each other's templates.
            self.known.insert(0, template);
            let Some(evicted) = evicted else { return };
            self.wasted = match evicted.used {
                true => self.wasted.saturating_sub(1),
                false => RARELY.min(self.wasted + 1),
            };
            template = evicted;
            template.forget();
        }
        // An answer of very many choices has allocated more than other answers need.
        self.spare = Some(template).filter(|template| template.facts.is_small());
    }
}

impl Template {
    fn none() -> Box<Template> {
        Box::new(Template {
            facts: Completion::new(),
            family: Family::CHAT,
            metadata: Box::default(),
            fixed: Vec::new(),
            slots: SmallVec::new(),
            before: SmallVec::new(),
            counts_once: false,
            used: false,
        })
    }

    /// Whether `text` matches with other values. A match updates the facts to the facts of `text`; without a match the facts are unchanged.
    fn matches(&mut self, text: &[u8], bytes: Bytes, metadata: &str) -> bool {
        let mut reader = Reader::new(text).knowing(bytes);
        let mut lengths = [0; SLOTS_MAX];
        let mut counts = Counts::default();
        let mut fixed = 0;
        for (slot, length) in self.slots.iter().zip(&mut lengths) {
            let piece = fixed..slot.fixed_end as usize;
            fixed = piece.end;
            if !reader.passes(&self.fixed[piece]) {
                return false;
            }
            let start = reader.at();
            if !slot.value.read(&mut reader, &mut counts) {
                return false;
            }
            *length = reader.at() - start;
        }
        if !reader.passes(&self.fixed[fixed..]) || reader.at() < text.len() {
            return false;
        }
        // Rare, and therefore checked last.
        if *self.metadata != *metadata || self.fixed.is_empty() {
            return false;
        }
        self.shift(&lengths);
        self.facts.usage = match Reported::from_counts(counts, self.counts_once) {
            Some(reported) => reported,
            None => self.reported(text),
        };
        true
    }

    /// The usage of a matching answer whose counts are not in their common form.
    #[cold]
    fn reported(&self, text: &[u8]) -> Reported {
        let usage = self.facts.layout.find(Tracked::Usage);
        usage.map_or_else(Reported::default, |usage| {
            Reported::read(usage.value().of(text))
        })
    }

    /// Moves every position to the position in slots with these lengths.
    fn shift(&mut self, lengths: &[usize; SLOTS_MAX]) {
        // The shift behind each number of slots. A larger shift wraps around twice.
        let mut by = [0usize; SLOTS_MAX + 1];
        for (at, (slot, &length)) in self.slots.iter_mut().zip(lengths).enumerate() {
            by[at + 1] = by[at].wrapping_add(length).wrapping_sub(slot.length);
            slot.length = length;
        }
        let mut before = self.before.iter();
        self.facts.move_places(|place| {
            let slots = before.next().map_or(0, |&slots| usize::from(slots));
            place.wrapping_add(by[slots])
        });
    }

    /// Discards the template.
    fn forget(&mut self) {
        self.fixed.clear();
        self.slots.clear();
        self.before.clear();
        self.used = false;
    }

    /// Makes `text`, which has just been parsed, a template if possible.
    #[cold]
    fn learn(&mut self, text: &[u8], metadata: &str) {
        self.forget();
        let Ok(Some((values, counts_once))) = self.values(text) else {
            return;
        };
        self.counts_once = counts_once;
        let mut from = 0;
        for (value, at) in &values {
            self.fixed.extend_from_slice(&text[from..at.start]);
            self.slots.push(Slot {
                value: *value,
                fixed_end: self.fixed.len() as u32,
                length: at.len(),
            });
            from = at.end;
        }
        self.fixed.extend_from_slice(&text[from..]);
        let before = &mut self.before;
        self.facts.move_places(|place| {
            before.push(values.partition_point(|(_, at)| at.end <= place) as u8);
            place
        });
        self.metadata = metadata.into();
    }

    /// The values that may differ in the next text, in order, and whether the values contain each count exactly once. `None` for a text
    /// that is not made a template.
    fn values(&self, text: &[u8]) -> Result<Option<(Values, bool)>, SyntaxError> {
        let facts = &self.facts;
        let mut values = SmallVec::new();
        for text in &facts.texts {
            values.push((Value::Text, text.start..text.end));
        }
        let mut usages = 0;
        let mut others = 0;
        let mut first = true;
        let mut reader = Reader::new(text);
        reader.kind()?;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            match (key.word, reader.kind()?) {
                (Some(Word::Id), Kind::String) => {
                    let Span { start, end } = reader.skip()?;
                    values.push((Value::String, start..end));
                }
                (Some(Word::Created), Kind::Number) => {
                    let Span { start, end } = reader.skip()?;
                    values.push((Value::Number, start..end));
                }
                (Some(Word::Usage), Kind::Object) => {
                    usages += 1;
                    others += members_of_usage(&mut reader, &mut values)?;
                }
                (Some(Word::Usage), _) => {
                    others += 1;
                    reader.skip()?;
                }
                _ => {
                    reader.skip()?;
                }
            }
        }
        values.sort_unstable_by_key(|(_, at)| at.start);
        let in_values: usize = values.iter().map(|(_, at)| at.len()).sum();
        let times = |count| {
            let found = values
                .iter()
                .filter(|(value, _)| *value == Value::Count(count));
            found.count()
        };
        let plain = facts.error.is_none()
            && facts.is_small()
            && usages <= 1
            && (0..3).all(|count| times(count) <= 1)
            && values.len() <= SLOTS_MAX
            && text.len() - in_values <= FIXED_BYTES_MAX;
        let counts_once = others == 0 && (0..3).all(|count| times(count) == 1);
        Ok(plain.then_some((values, counts_once)))
    }
}

/// Records the numbers of a `usage`, which is an object, and of the objects in the usage. Returns the number of counts that are not
/// numbers.
fn members_of_usage(reader: &mut Reader<'_>, values: &mut Values) -> Result<u32, SyntaxError> {
    let mut others = 0;
    let mut first = true;
    reader.enter()?;
    while let Some(key) = reader.key(&mut first)? {
        let place = Usage::place(&key);
        let kind = reader.kind()?;
        others += u32::from(place.is_some() && kind != Kind::Number);
        match kind {
            Kind::Number => {
                let value = place.map_or(Value::Number, Value::Count);
                let Span { start, end } = reader.skip()?;
                values.push((value, start..end));
            }
            // The number of cached or reasoning tokens.
            Kind::Object => details(reader, values)?,
            _ => {
                reader.skip()?;
            }
        }
    }
    Ok(others)
}

/// Records the numbers of an object in a `usage`.
fn details(reader: &mut Reader<'_>, values: &mut Values) -> Result<(), SyntaxError> {
    let mut first = true;
    reader.enter()?;
    while reader.key(&mut first)?.is_some() {
        let kind = reader.kind()?;
        let Span { start, end } = reader.skip()?;
        if kind == Kind::Number {
            values.push((Value::Number, start..end));
        }
    }
    Ok(())
}

impl Value {
    /// Parses the next value at the reader's exact position, and returns whether the value has this kind.
    fn read(self, reader: &mut Reader<'_>, counts: &mut Counts) -> bool {
        match self {
            Value::String => reader.stands_at(b'"') && reader.string().is_ok(),
            Value::Text => {
                reader.stands_at(b'"') && reader.string().is_ok_and(|text| !text.raw.is_empty())
            }
            Value::Number => reader.stands_at_number() && reader.number().is_ok(),
            Value::Count(place) => {
                if !reader.stands_at_number() {
                    return false;
                }
                let Ok(number) = reader.number() else {
                    return false;
                };
                if let Some(count) = usage::count(number) {
                    counts[place] = Some(count);
                }
                true
            }
        }
    }
}
