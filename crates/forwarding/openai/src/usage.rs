//! The token counts that a provider reports.

mod parts;

use bytes::BytesMut;

use self::parts::Parts;
use crate::json::{Key, Kind, Reader, Span, SyntaxError};
use crate::number::{self, Whole};
use crate::word::Word;

/// More tokens than an answer can have. A higher count is an error of the provider, and is not charged.
const TOKENS_MAX: u64 = 1 << 32;

/// Token counts of one completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of everything sent to the model, cached or not.
    pub prompt_tokens: u64,
    /// Tokens that the model generated, over every choice.
    pub completion_tokens: u64,
}

/// The parsed value of a `usage` member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reported {
    /// The usage, if the counts are valid.
    pub(crate) usage: Option<Usage>,
    /// The three counts are present, once each, and the third count is the sum of the first two: a client that reads the value finds this
    /// usage.
    pub(crate) is_exact: bool,
}

/// The three counts of a `usage` in the order of [`NAMES`]; `None` for a count that is implausible for an answer.
pub(crate) type Counts = [Option<u64>; 3];

/// The members of a `usage` that are token counts.
const NAMES: [&str; 3] = ["prompt_tokens", "completion_tokens", "total_tokens"];

impl Usage {
    /// The usage of these tokens in and out.
    pub fn new(prompt_tokens: u64, completion_tokens: u64) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
        }
    }

    /// `total_tokens`: the sum of the two counts.
    pub fn total_tokens(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }

    /// The sum of several usages; `None` when any usage is unknown.
    pub fn sum(usages: impl IntoIterator<Item = Option<Self>>) -> Option<Self> {
        usages.into_iter().try_fold(Self::default(), |sum, usage| {
            let usage = usage?;
            Some(Self {
                prompt_tokens: sum.prompt_tokens.saturating_add(usage.prompt_tokens),
                completion_tokens: sum
                    .completion_tokens
                    .saturating_add(usage.completion_tokens),
            })
        })
    }

    /// Parses the value of a `usage` member; `None` without valid input and output counts.
    ///
    /// | Counts that are there | Usage |
    /// |---|---|
    /// | prompt, completion | as they are |
    /// | prompt, completion, and a larger total | the rest of the total is added: to the prompt as far as it is cached input or input of tools (`usage/parts.rs`), else to the completion, since several providers count reasoning in the total alone |
    /// | total and one of the others | the missing one is what the total leaves for it, less such input; nothing left is no count |
    /// | fewer, or zeros only | none: the provider has not counted |
    ///
    /// A count may be written as `5.0`. A count that is null, negative, a fraction, implausibly large or not a number is missing. The
    /// details of the counts are only read where the total exceeds the sum of the counts; other members are skipped.
    pub fn read(value: &[u8]) -> Option<Self> {
        Reported::read(value).usage
    }

    /// The index of a member among the three counts, in the order of [`Counts`].
    pub(crate) fn place(key: &Key<'_>) -> Option<usize> {
        match key.word {
            Some(Word::PromptTokens) => Some(0),
            Some(Word::TotalTokens) => Some(2),
            Some(_) => None,
            // Too long for a word.
            None => key.text.is(NAMES[1]).then_some(1),
        }
    }

    /// The usage of these counts. `parts` are the parts of the counts' value, read where the total exceeds the sum of the first two counts.
    fn from_counts(counts: Counts, parts: impl FnOnce() -> Parts) -> Option<Self> {
        let left = |total: u64, other| total.checked_sub(other).filter(|left| *left > 0);
        let usage = match counts {
            [Some(prompt), Some(completion), total] => {
                let rest = total.and_then(|total| left(total, prompt + completion));
                let input = rest.map_or(0, |rest| parts().input_in(rest, prompt));
                let output = rest.map_or(0, |rest| rest - input);
                Self::new(prompt + input, completion + output)
            }
            [Some(prompt), None, Some(total)] => {
                let rest = left(total, prompt)?;
                let input = parts().input_in(rest, prompt);
                // The rest contains a completion too: input that leaves no room for a completion is within the prompt.
                let input = if input < rest { input } else { 0 };
                Self::new(prompt + input, rest - input)
            }
            [None, Some(completion), Some(total)] => {
                Self::new(left(total, completion)?, completion)
            }
            _ => return None,
        };
        // A completion reads at least a token: a provider that reports zero has not counted.
        (usage != Self::default()).then_some(usage)
    }

    fn counts(&self) -> [u64; 3] {
        [
            self.prompt_tokens,
            self.completion_tokens,
            self.total_tokens(),
        ]
    }

    /// Appends the usage as a JSON object of its three counts.
    pub fn write(&self, out: &mut BytesMut) {
        out.extend_from_slice(b"{");
        for (at, (name, count)) in NAMES.iter().zip(self.counts()).enumerate() {
            write_member(at > 0, name, count, out);
        }
        out.extend_from_slice(b"}");
    }

    /// Appends `value`, the value of a `usage` member, with this usage: the three counts are overwritten at every occurrence, and added
    /// where missing. Every other byte is unchanged. A value that is not an object becomes an object.
    pub(crate) fn write_over(&self, value: &[u8], out: &mut BytesMut) {
        let start = out.len();
        if self.try_write_over(value, out).is_err() {
            out.truncate(start);
            self.write(out);
        }
    }

    fn try_write_over(&self, value: &[u8], out: &mut BytesMut) -> Result<(), SyntaxError> {
        let mut reader = Reader::new(value);
        if reader.kind()? != Kind::Object {
            return reader.fail("an object was expected");
        }
        let mut seen = [false; 3];
        let mut done = 0;
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            let place = Self::place(&key);
            reader.kind()?;
            let Span { start, end } = reader.skip()?;
            if let Some(place) = place {
                seen[place] = true;
                out.extend_from_slice(&value[done..start]);
                write_count(self.counts()[place], out);
                done = end;
            }
        }
        let close = reader.at() - 1;
        out.extend_from_slice(&value[done..close]);
        let mut comma = !first;
        for ((name, count), seen) in NAMES.iter().zip(self.counts()).zip(seen) {
            if !seen {
                write_member(comma, name, count, out);
                comma = true;
            }
        }
        out.extend_from_slice(b"}");
        Ok(())
    }
}

impl Reported {
    /// Parses the value of a `usage` member.
    pub(crate) fn read(value: &[u8]) -> Self {
        Self::from_reader(&mut Reader::new(value)).unwrap_or_default()
    }

    /// Parses the next value, of any kind.
    pub(crate) fn from_reader(reader: &mut Reader<'_>) -> Result<Self, SyntaxError> {
        if reader.kind()? != Kind::Object {
            reader.skip()?;
            return Ok(Self::default());
        }
        let mut counts = Counts::default();
        let mut seen = [0u32; 3];
        let mut first = true;
        let value = reader.ahead();
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            let Some(place) = Usage::place(&key) else {
                reader.skip()?;
                continue;
            };
            seen[place] += 1;
            if reader.kind()? != Kind::Number {
                reader.skip()?;
                continue;
            }
            if let Some(count) = count(reader.number()?) {
                counts[place] = Some(count);
            }
        }
        let parts = || Parts::read(value).unwrap_or_default();
        Ok(match Self::from_counts(counts, seen == [1; 3]) {
            Some(reported) => reported,
            None => Self {
                usage: Usage::from_counts(counts, parts),
                is_exact: false,
            },
        })
    }

    /// The usage of counts in their common form: the total is the sum of the first two counts. `None` for any other form, because the usage
    /// depends on other members. `once`: each of the three names occurs once in the value.
    #[inline]
    pub(crate) fn from_counts(counts: Counts, once: bool) -> Option<Self> {
        match counts {
            [Some(prompt), Some(completion), Some(total)]
                if prompt + completion == total && total > 0 =>
            {
                Some(Self {
                    usage: Some(Usage::new(prompt, completion)),
                    is_exact: once,
                })
            }
            _ => None,
        }
    }

    /// The usage that a client finds in the value, if valid.
    pub(crate) fn shown(&self) -> Option<Usage> {
        self.usage.filter(|_| self.is_exact)
    }
}

/// A number as a token count, if plausible for an answer.
pub(crate) fn count(number: &[u8]) -> Option<u64> {
    match number::whole(number) {
        Whole::Value(count @ ..=TOKENS_MAX) => Some(count),
        Whole::Value(_) | Whole::Negative | Whole::Fraction => None,
    }
}

fn write_member(comma: bool, name: &str, count: u64, out: &mut BytesMut) {
    out.extend_from_slice(if comma { b",\"" } else { b"\"" });
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    write_count(count, out);
}

fn write_count(count: u64, out: &mut BytesMut) {
    out.extend_from_slice(itoa::Buffer::new().format(count).as_bytes());
}
