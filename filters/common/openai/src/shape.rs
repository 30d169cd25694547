//! What the answers of one provider have in common, so that not every one of them has to be walked.
//!
//! Such answers differ in a few values: the id, the time, what the model said, how many tokens that were. A [`Shape`] is an answer that was
//! walked without those values: bytes that have to be the same, and between them one string or number each that may be any. A text with all
//! these bytes around proper strings and numbers is the same JSON with other values, so that what was found in the one is known of the
//! other, but for where it stands. Any other text is walked, and may become a shape itself.
//!
//! Shapes are kept by each thread for itself, the last few that fitted. What a model said stands in none of them but for what an answer
//! says twice or beside its text: thoughts under two names, the tokens of `logprobs`, the addresses of media. It never leaves the thread.

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ops::Range;

use smallvec::SmallVec;

use crate::completion::Completion;
use crate::json::scan::Bytes;
use crate::json::{Kind, Reader, Span, SyntaxError};
use crate::usage::{self, Counts, Reported, Usage};
use crate::word::Word;

/// Shapes that a thread keeps: one or two for each model that is asked often, as a rule.
const SHAPES_MAX: usize = 8;

/// A shape is made of every answer that fits none, and of every second, fourth, and so on, while those that were made go unused; but no
/// less often than every so many, as a power of two: a provider may change its ways.
const RARELY: u32 = 6;

/// Values in one answer that may be others in the next.
const HOLES_MAX: usize = 16;

/// Bytes of an answer that are kept for comparing.
const KEPT_BYTES_MAX: usize = 4 * 1024;

/// The facts of one answer, and what may be known of the next one by them.
#[derive(Debug)]
pub(crate) struct Shape {
    /// Of the text that was read last.
    pub(crate) facts: Completion,
    /// The name of our own member when it was walked: that it is none of the others is a fact too.
    metadata: Box<str>,
    /// The bytes between the holes, one piece after the other. Empty for a text that is no shape.
    kept: Vec<u8>,
    /// In the order of the text.
    holes: SmallVec<[Hole; HOLES_MAX]>,
    /// How many holes stand before each place that the facts tell of, in the order of [`Completion::move_places`].
    before: SmallVec<[u8; 32]>,
    /// Each of the three counts stands once in the one `usage`, as a number.
    counts_once: bool,
    /// Another text has fitted.
    used: bool,
}

/// A value that may be another in the next answer.
#[derive(Clone, Copy, Debug)]
struct Hole {
    value: Value,
    /// Where the bytes that stand before it, and behind the hole before, end among those that are kept.
    kept_to: u32,
    /// Its length in the text that was read last.
    length: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    String,
    /// What the model said. Empty it would be no fact.
    Said,
    Number,
    /// The count of tokens at this place of the three.
    Count(usize),
}

/// Where values stand that may be others in the next text.
type Values = SmallVec<[(Value, Range<usize>); HOLES_MAX]>;

/// The shapes of one thread.
#[derive(Default)]
struct Shapes {
    /// The one that fitted last stands last, and those that never did stand first.
    known: SmallVec<[Box<Shape>; SHAPES_MAX]>,
    /// Room for the facts of a text that is no shape.
    room: Option<Box<Shape>>,
    /// Texts that fitted none since one was last made a shape.
    missed: u32,
    /// How many more shapes were of no use than were of some, up to [`RARELY`].
    wasted: u32,
}

thread_local! {
    static SHAPES: RefCell<Shapes> = RefCell::default();
}

/// Reads `text`, an object in UTF-8. `metadata` is the name of our own member. What is given is to be given back ([`give_back`]).
pub(crate) fn read(
    text: &[u8],
    bytes: Bytes,
    metadata: &str,
) -> (Box<Shape>, Result<(), SyntaxError>) {
    SHAPES.with_borrow_mut(|shapes| shapes.read(text, bytes, metadata))
}

/// Takes back what was read into.
pub(crate) fn give_back(shape: Box<Shape>) {
    SHAPES.with_borrow_mut(|shapes| shapes.keep(shape));
}

impl Shapes {
    fn read(
        &mut self,
        text: &[u8],
        bytes: Bytes,
        metadata: &str,
    ) -> (Box<Shape>, Result<(), SyntaxError>) {
        let mut known = self.known.iter_mut();
        if let Some(at) = known.rposition(|shape| shape.fits(text, bytes, metadata)) {
            let mut shape = self.known.remove(at);
            shape.used = true;
            return (shape, Ok(()));
        }
        let mut shape = self.room.take().unwrap_or_else(Shape::none);
        let read = shape.facts.read_knowing(text, bytes, metadata);
        if read.is_ok() {
            self.missed += 1;
            // Where a provider puts something new into every answer, or more shapes are asked for than there is room for.
            if self.missed >> self.wasted != 0 {
                self.missed = 0;
                shape.learn(text, metadata);
            }
        }
        (shape, read)
    }

    fn keep(&mut self, mut shape: Box<Shape>) {
        if shape.used {
            self.known.push(shape);
            return;
        }
        if !shape.kept.is_empty() {
            let gone = (self.known.len() == SHAPES_MAX).then(|| self.known.remove(0));
            // The first to go until it is used, or models that come in turn would drive each other out.
            self.known.insert(0, shape);
            let Some(gone) = gone else { return };
            self.wasted = match gone.used {
                true => self.wasted.saturating_sub(1),
                false => RARELY.min(self.wasted + 1),
            };
            shape = gone;
            shape.forget();
        }
        // An answer of very many choices has taken more room than all others need.
        self.room = Some(shape).filter(|shape| shape.facts.is_small());
    }
}

impl Shape {
    fn none() -> Box<Shape> {
        Box::new(Shape {
            facts: Completion::new(),
            metadata: Box::default(),
            kept: Vec::new(),
            holes: SmallVec::new(),
            before: SmallVec::new(),
            counts_once: false,
            used: false,
        })
    }

    /// Whether `text` is the same with other values. The facts are those of `text` then, and else what they were.
    fn fits(&mut self, text: &[u8], bytes: Bytes, metadata: &str) -> bool {
        let mut reader = Reader::new(text).knowing(bytes);
        let mut lengths = [0; HOLES_MAX];
        let mut counts = Counts::default();
        let mut kept = 0;
        for (hole, length) in self.holes.iter().zip(&mut lengths) {
            let piece = kept..hole.kept_to as usize;
            kept = piece.end;
            if !reader.passes(&self.kept[piece]) {
                return false;
            }
            let start = reader.at();
            if !hole.value.read(&mut reader, &mut counts) {
                return false;
            }
            *length = reader.at() - start;
        }
        if !reader.passes(&self.kept[kept..]) || reader.at() < text.len() {
            return false;
        }
        // Rare, and so asked last.
        if *self.metadata != *metadata || self.kept.is_empty() {
            return false;
        }
        self.moves(&lengths);
        self.facts.usage = Reported::from_counts(counts, self.counts_once);
        true
    }

    /// Moves all places to where they are now that the holes have these lengths.
    fn moves(&mut self, lengths: &[usize; HOLES_MAX]) {
        // By how much what stands behind so many holes is moved. What is longer wraps around twice.
        let mut by = [0usize; HOLES_MAX + 1];
        for (at, (hole, &length)) in self.holes.iter_mut().zip(lengths).enumerate() {
            by[at + 1] = by[at].wrapping_add(length).wrapping_sub(hole.length);
            hole.length = length;
        }
        let mut before = self.before.iter();
        self.facts.move_places(|place| {
            let holes = before.next().map_or(0, |&holes| usize::from(holes));
            place.wrapping_add(by[holes])
        });
    }

    /// Is no shape any more.
    fn forget(&mut self) {
        self.kept.clear();
        self.holes.clear();
        self.before.clear();
        self.used = false;
    }

    /// Makes `text`, which has just been read, a shape if it can be one.
    #[cold]
    fn learn(&mut self, text: &[u8], metadata: &str) {
        self.forget();
        let Ok(Some((values, counts_once))) = self.values(text) else {
            return;
        };
        self.counts_once = counts_once;
        let mut from = 0;
        for (value, at) in &values {
            self.kept.extend_from_slice(&text[from..at.start]);
            self.holes.push(Hole {
                value: *value,
                kept_to: self.kept.len() as u32,
                length: at.len(),
            });
            from = at.end;
        }
        self.kept.extend_from_slice(&text[from..]);
        let before = &mut self.before;
        self.facts.move_places(|place| {
            before.push(values.partition_point(|(_, at)| at.end <= place) as u8);
            place
        });
        self.metadata = metadata.into();
    }

    /// The values that may be others in the next text, in their order, and whether each count stands among them once and nowhere else.
    /// None for a text that is not made a shape.
    fn values(&self, text: &[u8]) -> Result<Option<(Values, bool)>, SyntaxError> {
        let facts = &self.facts;
        let mut values = SmallVec::new();
        for said in &facts.texts {
            values.push((Value::Said, said.start..said.end));
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
            && values.len() <= HOLES_MAX
            && text.len() - in_values <= KEPT_BYTES_MAX;
        let counts_once = others == 0 && (0..3).all(|count| times(count) == 1);
        Ok(plain.then_some((values, counts_once)))
    }
}

/// Notes the numbers of a `usage`, which is an object, and of the objects in it. Gives how many of its counts are no numbers.
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
            // How many of the tokens were cached, or thoughts.
            Kind::Object => details(reader, values)?,
            _ => {
                reader.skip()?;
            }
        }
    }
    Ok(others)
}

/// Notes the numbers of an object in a `usage`.
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
    /// Reads the value that comes next, right where the reader stands, and tells whether it is one of this kind.
    fn read(self, reader: &mut Reader<'_>, counts: &mut Counts) -> bool {
        match self {
            Value::String => reader.stands_at(b'"') && reader.string().is_ok(),
            Value::Said => {
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
