//! Interned words: frequent names and values of requests and answers, each with a number.
//!
//! A name is compared with a single word instead of with every candidate: sixteen bytes of the text are read as an integer, whose perfect
//! hash selects the only candidate.

use crate::json::scan;
use crate::string::Text;

/// Declares the words, in the order of their numbers.
macro_rules! words {
    ($($name:ident $text:literal)*) => {
        /// A member name or a value with a number. No word is longer than sixteen bytes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Word {
            $($name,)*
        }

        /// Every word, at the word's number.
        pub(crate) const ALL: &[(Word, &str)] = &[$((Word::$name, $text),)*];
    };
}

// Words of requests first, in the order in which programs write the words.
words! {
    Model "model" Messages "messages" Role "role" Content "content" System "system" User "user" Assistant "assistant" Tool "tool"
    Developer "developer" Function "function" Prompt "prompt" MaxTokens "max_tokens" Temperature "temperature" TopP "top_p" N "n"
    Stop "stop" Seed "seed" Stream "stream" StreamOptions "stream_options" IncludeUsage "include_usage" Cache "cache" Tools "tools"
    ToolChoice "tool_choice" ToolCalls "tool_calls" ToolCallId "tool_call_id" Id "id" Type "type" Text "text" ImageUrl "image_url"
    Url "url" Name "name" Arguments "arguments" Description "description" Strict "strict" Parameters "parameters"
    Properties "properties" Required "required" Object "object" String "string" Number "number" Integer "integer" Boolean "boolean"
    Array "array" Items "items" Enum "enum" ResponseFormat "response_format" JsonSchema "json_schema" Schema "schema" BestOf "best_of"
    Metadata "metadata" Store "store" ServiceTier "service_tier" Plugins "plugins" Modalities "modalities" Reasoning "reasoning"
    ImageConfig "image_config" Logprobs "logprobs" Auto "auto"
    Choices "choices" Message "message" Index "index" FinishReason "finish_reason" Usage "usage" Created "created"
    PromptTokens "prompt_tokens" TotalTokens "total_tokens" Refusal "refusal" Delta "delta" Error "error" Audio "audio" Images "images"
    FunctionCall "function_call"
}

/// The number of bytes of a text that are compared.
pub(crate) const WINDOW: usize = 16;

/// The hash multiplier that distributes the words over [`PLACES`] without a collision. Found by search; a list with more words needs
/// another multiplier.
const SPREAD: u64 = 0x48b5_cccc_3805_cbf5;

const NOWHERE: u8 = u8::MAX;

/// A word with its comparison data.
#[derive(Clone, Copy)]
struct Known {
    /// The word's bytes as an integer, the first byte lowest.
    text: u128,
    length: u8,
    word: Word,
}

/// The words, each at its number.
static KNOWN: [Known; ALL.len()] = {
    let nothing = Known {
        text: 0,
        length: 0,
        word: ALL[0].0,
    };
    let mut known = [nothing; ALL.len()];
    let mut at = 0;
    while at < ALL.len() {
        known[at] = of_word(ALL[at]);
        at += 1;
    }
    known
};

const fn of_word((word, text): (Word, &str)) -> Known {
    let bytes = text.as_bytes();
    let mut text = 0;
    let mut at = bytes.len();
    while at > 0 {
        at -= 1;
        text = text << 8 | bytes[at] as u128;
    }
    Known {
        text,
        length: bytes.len() as u8,
        word,
    }
}

/// The candidate word for each hash value.
static PLACES: [u8; 256] = {
    let mut places = [NOWHERE; 256];
    let mut at = 0;
    while at < ALL.len() {
        let place = place(of_word(ALL[at]).text);
        assert!(
            places[place] == NOWHERE && ALL[at].1.len() <= WINDOW,
            "two words in one place, or one that is too long"
        );
        places[place] = at as u8;
        at += 1;
    }
    places
};

const fn place(text: u128) -> usize {
    let folded = text as u64 ^ (text >> 64) as u64;
    (folded.wrapping_mul(SPREAD) >> 56) as usize
}

impl Word {
    /// The word between two offsets of a text.
    #[inline]
    pub(crate) fn at(text: &[u8], start: usize, end: usize) -> Option<Word> {
        let length = end.wrapping_sub(start);
        if length.wrapping_sub(1) >= WINDOW {
            return None;
        }
        let window = match text.get(start..).and_then(|rest| rest.first_chunk()) {
            Some(window) => u128::from_le_bytes(*window),
            None => end_of(text.get(start..end)?),
        };
        Word::known(window & (u128::MAX >> (8 * (WINDOW - length))), length)
    }

    /// The word at the start of a window, if the closing quote of a string follows the word, and the word's length.
    ///
    /// `None` as well for a word that fills the window. Only a single quote is searched for: a word has no byte that is invalid in a
    /// string.
    #[inline]
    pub(crate) fn quoted(window: [u8; WINDOW]) -> Option<(Word, usize)> {
        let window = u128::from_le_bytes(window);
        let low = window as u64;
        let quote = scan::marks_of(b'"', low);
        let (text, length) = if quote != 0 {
            (u128::from(low & scan::below(quote)), scan::place(quote))
        } else {
            let high = (window >> 64) as u64;
            let quote = scan::marks_of(b'"', high);
            if quote == 0 {
                return None;
            }
            let high = high & scan::below(quote);
            (
                u128::from(high) << 64 | u128::from(low),
                8 + scan::place(quote),
            )
        };
        Word::known(text, length).map(|word| (word, length))
    }

    /// The word of these bytes, the first byte lowest.
    #[inline]
    fn known(text: u128, length: usize) -> Option<Word> {
        let known = KNOWN.get(usize::from(PLACES[place(text)]))?;
        // The length is compared as well: a text may end with zeros, which equal padding.
        (known.text == text && usize::from(known.length) == length).then_some(known.word)
    }

    /// The word of a string, with or without escapes.
    #[cold]
    pub(crate) fn of(text: Text<'_>) -> Option<Word> {
        if !text.escaped {
            return Word::at(text.raw, 0, text.raw.len());
        }
        // A byte takes six at most, as in `\u0061`.
        if text.raw.len() > 6 * WINDOW {
            return None;
        }
        let decoded = text.decode()?;
        Word::at(decoded.as_bytes(), 0, decoded.len())
    }
}

/// The last few bytes of a text as an integer.
#[cold]
fn end_of(rest: &[u8]) -> u128 {
    let mut window = [0; WINDOW];
    for (to, from) in window.iter_mut().zip(rest) {
        *to = *from;
    }
    u128::from_le_bytes(window)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_word_is_known_wherever_it_stands_and_nothing_else_is() {
        let known = |text: &[u8]| {
            let found = ALL.iter().find(|(_, word)| word.as_bytes() == text);
            found.map(|(word, _)| *word)
        };
        for (_, text) in ALL {
            for whole in [
                (*text).to_owned(),
                format!("\"{text}\":1"),
                format!("{text}\0"),
                format!("{text}_and_whatever_may_follow"),
                format!("x{}", &text[1..]),
            ] {
                let whole = whole.as_bytes();
                for start in 0..=whole.len() {
                    for end in start..=whole.len() {
                        let part = &whole[start..end];
                        assert_eq!(Word::at(whole, start, end), known(part), "{part:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_word_followed_by_zeros_is_another_word() {
        for (word, text) in ALL {
            for zeros in 0..WINDOW - text.len() {
                let zeros_behind = "\0".repeat(zeros);
                let window = format!("{text}{zeros_behind}\"{zeros_behind:\"<16}");
                let found = Word::quoted(*window.as_bytes().first_chunk().expect("long enough"));
                assert_eq!(
                    found,
                    (zeros == 0).then_some((*word, text.len())),
                    "{window:?}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn the_fast_path_to_a_word_agrees_with_the_slow_one(
            word in prop::sample::select(ALL),
            cut in 0..=WINDOW,
            behind in "[\"\\\\a-z\0é\u{80}\u{a2}!#_]{0,16}",
        ) {
            let mut text = word.1.as_bytes()[..cut.min(word.1.len())].to_vec();
            text.extend_from_slice(behind.as_bytes());
            text.resize(WINDOW, b'.');
            let window = text.first_chunk().expect("as long as a window");
            let quote = text.iter().take(WINDOW).position(|&byte| byte == b'"');
            let long = quote.and_then(|quote| Some((Word::at(&text, 0, quote)?, quote)));
            prop_assert_eq!(Word::quoted(*window), long, "{:?}", text);
        }
    }

    #[test]
    fn a_word_written_with_escapes_is_the_same_word() {
        let decode = |raw: &str| {
            Word::of(Text {
                raw: raw.as_bytes(),
                escaped: true,
            })
        };
        assert_eq!(decode(r"r\u006fle"), Some(Word::Role));
        assert_eq!(decode(r"role\u0000"), None);
        assert_eq!(decode(r"\ud83d"), None);
    }
}
