//! The parts of a reported usage, and how many tokens of a total beyond `prompt_tokens` and `completion_tokens` are input.
//!
//! A total may exceed the sum of the two counts: by reasoning (output), or by input that the provider leaves out of `prompt_tokens`. The
//! names of the parts decide, see [`SPELLINGS`].
//!
//! | The rest of the total | Is |
//! |---|---|
//! | equal to the reasoning tokens | output: xAI counts cached tokens within `prompt_tokens`, and reasoning in the total alone |
//! | up to the parts that are beside the prompt | input |
//! | equal to these and the parts within the prompt | input: a gateway has renamed a part without adding it to the prompt |
//! | anything above | output: Gemini counts reasoning in the total alone, under no name |

use crate::json::{Key, Kind, Reader, SyntaxError};

/// Tokens that a provider reports separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Input of a kind, by its index in [`Parts`].
    Input(usize, Place),
    /// Output.
    Reasoning,
}

/// Where the provider with a spelling counts the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In addition to `prompt_tokens`.
    Extra,
    /// In `prompt_tokens` already, unless the tokens exceed `prompt_tokens`.
    Within,
}

/// The kinds of input. A kind counts once, for any number of spellings in a usage.
const KINDS: usize = 3;
const READ: usize = 0;
const WRITE: usize = 1;
const TOOLS: usize = 2;

use Part::{Input, Reasoning};
use Place::{Extra, Within};

/// The spellings of every part, in the usage or in an object of the usage.
const SPELLINGS: [(&str, Part); 22] = [
    // Anthropic; Bedrock behind Portkey and LiteLLM.
    ("cache_read_input_tokens", Input(READ, Extra)),
    ("cache_creation_input_tokens", Input(WRITE, Extra)),
    ("cache_write_input_tokens", Input(WRITE, Extra)),
    // Bedrock, Converse.
    ("cacheReadInputTokens", Input(READ, Extra)),
    ("cacheReadInputTokenCount", Input(READ, Extra)),
    ("cacheWriteInputTokens", Input(WRITE, Extra)),
    ("cacheWriteInputTokenCount", Input(WRITE, Extra)),
    // Gemini: results of the provider's tools, in the total and not in the prompt.
    ("toolUsePromptTokenCount", Input(TOOLS, Extra)),
    ("tool_use_prompt_token_count", Input(TOOLS, Extra)),
    ("tool_use_prompt_tokens", Input(TOOLS, Extra)),
    // `prompt_tokens_details` of OpenAI, xAI, Groq, vLLM, Gemini; Moonshot beside the counts.
    ("cached_tokens", Input(READ, Within)),
    // DeepSeek.
    ("prompt_cache_hit_tokens", Input(READ, Within)),
    ("cachedContentTokenCount", Input(READ, Within)),
    ("cached_content_token_count", Input(READ, Within)),
    // Mistral, vLLM.
    ("num_cached_tokens", Input(READ, Within)),
    // `prompt_tokens_details` of OpenRouter, LiteLLM and new-api.
    ("cache_write_tokens", Input(WRITE, Within)),
    ("cache_creation_tokens", Input(WRITE, Within)),
    ("cached_creation_tokens", Input(WRITE, Within)),
    // `completion_tokens_details`; Perplexity beside the counts.
    ("reasoning_tokens", Reasoning),
    ("thinking_tokens", Reasoning),
    ("thoughtsTokenCount", Reasoning),
    ("thoughts_token_count", Reasoning),
];

/// The parts named in a usage, each with its highest count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    beside: [u64; KINDS],
    within: [u64; KINDS],
    reasoning: u64,
}

impl Parts {
    /// Parses the next value, an object: the counts in the object and in its objects. `None` where a later byte is not JSON.
    pub(super) fn read(mut reader: Reader<'_>) -> Option<Self> {
        let mut parts = Self::default();
        parts.members(&mut reader, true).ok()?;
        Some(parts)
    }

    fn members(&mut self, reader: &mut Reader<'_>, outer: bool) -> Result<(), SyntaxError> {
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            match reader.kind()? {
                Kind::Object if outer => self.members(reader, false)?,
                Kind::Number => {
                    let count = super::count(reader.number()?);
                    self.note(&key, count.unwrap_or(0));
                }
                _ => {
                    reader.skip()?;
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, key: &Key<'_>, count: u64) {
        let part = SPELLINGS.iter().find(|(name, _)| key.text.is(name));
        let place = match part {
            Some((_, Input(kind, Extra))) => &mut self.beside[*kind],
            Some((_, Input(kind, Within))) => &mut self.within[*kind],
            Some((_, Reasoning)) => &mut self.reasoning,
            None => return,
        };
        *place = count.max(*place);
    }

    /// The number of input tokens among the `rest` tokens: the tokens of a total beyond `prompt` and the completion.
    pub(super) fn input_in(&self, rest: u64, prompt: u64) -> u64 {
        let (mut beside, mut within) = (0, 0);
        for (apart, inside) in self.beside.into_iter().zip(self.within) {
            match apart > 0 || inside > prompt {
                true => beside += apart.max(inside),
                false => within += inside,
            }
        }
        if rest == self.reasoning && rest != beside {
            return 0;
        }
        if rest == beside + within {
            return rest;
        }
        rest.min(beside)
    }
}
