//! The token counts a provider reports.

use crate::json::{Key, Kind, Reader, SyntaxError};
use crate::number::{self, Whole};
use crate::word::Word;

/// More tokens than one answer can have. A count above it is a mistake of the provider, and nobody pays for it.
pub(crate) const TOKENS_MAX: u64 = 1 << 32;

/// Token counts of one completion, as the provider reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of everything sent to the model.
    pub prompt_tokens: u64,
    /// Tokens the model made, over all choices.
    pub completion_tokens: u64,
    /// The sum, or more where a provider counts tokens that are in neither.
    pub total_tokens: u64,
}

impl Usage {
    /// The usage of so many tokens in and out.
    pub fn new(prompt_tokens: u64, completion_tokens: u64) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens.saturating_add(completion_tokens),
        }
    }

    /// The usage of several completions together; none when one of them is unknown.
    pub fn sum(usages: impl IntoIterator<Item = Option<Self>>) -> Option<Self> {
        usages.into_iter().try_fold(Self::default(), |sum, usage| {
            let usage = usage?;
            Some(Self {
                prompt_tokens: sum.prompt_tokens.saturating_add(usage.prompt_tokens),
                completion_tokens: sum
                    .completion_tokens
                    .saturating_add(usage.completion_tokens),
                total_tokens: sum.total_tokens.saturating_add(usage.total_tokens),
            })
        })
    }

    /// Reads the value of a `usage` member; none when it does not say how many tokens went in and came out.
    ///
    /// A count may be written as `5.0`. One that is negative, a fraction, absurdly large or not a number counts as
    /// missing. One missing count follows from the other two. Members other than the three are passed over.
    pub fn read(value: &[u8]) -> Option<Self> {
        Self::from_reader(&mut Reader::new(value)).ok().flatten()
    }

    /// Reads the value that comes next, of whatever kind it is.
    pub(crate) fn from_reader(reader: &mut Reader<'_>) -> Result<Option<Self>, SyntaxError> {
        if reader.kind()? != Kind::Object {
            reader.skip()?;
            return Ok(None);
        }
        let mut counts = [None; 3];
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            let Some(place) = Self::place(&key) else {
                reader.skip()?;
                continue;
            };
            if reader.kind()? != Kind::Number {
                reader.skip()?;
                continue;
            }
            if let Whole::Value(value @ ..=TOKENS_MAX) = number::whole(reader.number()?) {
                counts[place] = Some(value);
            }
        }
        Ok(Self::from_counts(counts))
    }

    /// Which of the three counts a member is, in the order of [`Usage::from_counts`].
    pub(crate) fn place(key: &Key<'_>) -> Option<usize> {
        match key.word {
            Some(Word::PromptTokens) => Some(0),
            // Too long for a word.
            _ if key.text.raw == b"completion_tokens" => Some(1),
            Some(Word::TotalTokens) => Some(2),
            _ => None,
        }
    }

    /// The usage of the counts in and out and of both, as far as they are told.
    pub(crate) fn from_counts([prompt, completion, total]: [Option<u64>; 3]) -> Option<Self> {
        let (prompt, completion) = match (prompt, completion, total) {
            (Some(prompt), Some(completion), _) => (prompt, completion),
            (Some(prompt), None, Some(total)) => (prompt, total.checked_sub(prompt)?),
            (None, Some(completion), Some(total)) => (total.checked_sub(completion)?, completion),
            _ => return None,
        };
        let mut usage = Self::new(prompt, completion);
        usage.total_tokens = usage.total_tokens.max(total.unwrap_or(0));
        Some(usage)
    }

    /// Appends the usage as a JSON object of its three counts.
    pub fn write(&self, out: &mut bytes::BytesMut) {
        let counts = [
            (&br#"{"prompt_tokens":"#[..], self.prompt_tokens),
            (br#","completion_tokens":"#, self.completion_tokens),
            (br#","total_tokens":"#, self.total_tokens),
        ];
        for (name, count) in counts {
            out.extend_from_slice(name);
            out.extend_from_slice(itoa::Buffer::new().format(count).as_bytes());
        }
        out.extend_from_slice(b"}");
    }
}
