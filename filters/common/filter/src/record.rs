//! What is known of an exchange when it ends: for the access log and the metrics.

use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tollgate_money::Micros;

use crate::{ErrorCode, Tokens};

/// Facts of one exchange that filters and the gateway note as they learn them.
///
/// Nothing in here is secret, and nothing is read back to decide anything, but for [`Record::cache`].
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The model, once it is known to be ours.
    pub model: Option<Arc<str>>,
    /// Whether a stream was asked for.
    pub stream: bool,
    /// The provider that answered or failed last.
    pub provider: Option<Arc<str>>,
    /// The model whose provider was asked last, when it is not the one asked for but serves in its place.
    pub served_by: Option<Arc<str>>,
    /// The rate class that counted the request.
    pub class: Option<Arc<str>>,
    /// Tokens as billed.
    pub prompt_tokens: u64,
    /// Tokens as billed.
    pub completion_tokens: u64,
    /// Whether the tokens were counted by us because the provider did not say.
    pub estimated: bool,
    /// What was charged.
    pub charged: Micros,
    /// What the cache did. Told to the client, and charged by: a hit costs its own price.
    pub cache: Option<CacheStatus>,
    /// The entry that was read or written.
    pub cache_entry: Option<CacheEntryId>,
    /// The error code sent to the client.
    pub error: Option<ErrorCode>,
    /// The status sent; zero when nothing was.
    pub status: u16,
    /// Calls made upstream for this exchange.
    pub upstream_calls: u32,
    /// Body bytes of the answer.
    pub bytes_sent: u64,
    /// Clock reading when the request's head was complete.
    pub started: Duration,
    /// Clock reading when the call upstream began.
    pub upstream_started: Option<Duration>,
    /// Clock reading when the first byte of the upstream's answer was there.
    pub upstream_first_byte: Option<Duration>,
    /// Clock reading when the upstream's answer was over.
    pub upstream_ended: Option<Duration>,
    /// Clock reading when the first byte of the answer left.
    pub first_byte: Option<Duration>,
}

/// The words of `cache_store_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheStatus {
    /// Answered from the cache.
    Hit,
    /// The answer was stored.
    Stored,
    /// The request asked for no cache, or there is none.
    Bypass,
    /// An answer of a kind that is never stored.
    Uncacheable,
    /// The answer is larger than an entry may be.
    TooLarge,
    /// Storing failed; the answer is good.
    Error,
}

impl CacheStatus {
    /// Every status.
    pub const ALL: [CacheStatus; 6] = [
        CacheStatus::Hit,
        CacheStatus::Stored,
        CacheStatus::Bypass,
        CacheStatus::Uncacheable,
        CacheStatus::TooLarge,
        CacheStatus::Error,
    ];

    /// The status of a word; `None` where it is no such word.
    pub fn from_word(word: &str) -> Option<CacheStatus> {
        CacheStatus::ALL
            .into_iter()
            .find(|status| status.word() == word)
    }

    /// The word on the wire.
    pub fn word(self) -> &'static str {
        match self {
            CacheStatus::Hit => "hit",
            CacheStatus::Stored => "stored",
            CacheStatus::Bypass => "bypass",
            CacheStatus::Uncacheable => "uncacheable",
            CacheStatus::TooLarge => "too_large",
            CacheStatus::Error => "error",
        }
    }
}

/// The id of a stored answer: random, so that it tells nothing of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheEntryId(pub [u8; 16]);

impl CacheEntryId {
    const PREFIX: &str = "ce_";

    /// The text form: `ce_` and 32 hexadecimal digits.
    pub fn text(self) -> [u8; 35] {
        // Both loops are of a length that is known and without a table, so that the digits are made side by side.
        let mut digits = [0; 32];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(self.0) {
            (pair[0], pair[1]) = (byte >> 4, byte & 15);
        }
        for digit in &mut digits {
            *digit += if *digit < 10 { b'0' } else { b'a' - 10 };
        }
        let mut text = [0; 35];
        text[..3].copy_from_slice(CacheEntryId::PREFIX.as_bytes());
        text[3..].copy_from_slice(&digits);
        text
    }
}

impl fmt::Display for CacheEntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text()
            .iter()
            .try_for_each(|&byte| f.write_char(char::from(byte)))
    }
}

impl FromStr for CacheEntryId {
    type Err = NoCacheEntryId;

    fn from_str(text: &str) -> Result<CacheEntryId, NoCacheEntryId> {
        let digits = text
            .strip_prefix(CacheEntryId::PREFIX)
            .unwrap_or_default()
            .as_bytes();
        let digit = |byte: u8| {
            char::from(byte)
                .to_digit(16)
                .and_then(|digit| u8::try_from(digit).ok())
        };
        let mut id = [0; 16];
        if digits.len() != 2 * id.len() {
            return Err(NoCacheEntryId);
        }
        for (byte, pair) in id.iter_mut().zip(digits.chunks(2)) {
            let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
                return Err(NoCacheEntryId);
            };
            *byte = high << 4 | low;
        }
        Ok(CacheEntryId(id))
    }
}

/// A text that is no id of a stored answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a cache entry is named `ce_` and 32 hexadecimal digits, as `cache_entry_id` of an answer has it"
)]
pub struct NoCacheEntryId;

/// What an exchange was charged, as the client is told. Put on the exchange when it is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Taken for this exchange.
    pub used: Micros,
    /// Free to spend after it.
    pub remaining: Micros,
    /// The tokens it was worked out from.
    pub tokens: Tokens,
    /// Whether the tokens were counted by us.
    pub estimated: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_named_by_its_digits_and_read_back() {
        let id = CacheEntryId(std::array::from_fn(|at| at as u8 * 17));
        assert_eq!(id.to_string(), "ce_00112233445566778899aabbccddeeff");
        for byte in 0..=u8::MAX {
            let id = CacheEntryId([byte; 16]);
            assert_eq!(
                id.to_string(),
                format!("ce_{}", format!("{byte:02x}").repeat(16))
            );
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }
}
