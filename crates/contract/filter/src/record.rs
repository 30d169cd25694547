//! The record of an exchange, for the access log and the metrics.

use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tollgate_money::Micros;

use crate::{ErrorCode, LogFields, Tokens};

/// Facts of an exchange, set by filters and the gateway during the exchange.
///
/// The record contains no secret. No decision is based on the record, except on [`Record::cache`].
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The model, once found in the catalog.
    pub model: Option<Arc<str>>,
    /// Whether a stream was requested.
    pub stream: bool,
    /// The provider that responded or failed last.
    pub provider: Option<Arc<str>>,
    /// The fallback model whose provider was called last, if other than the requested model.
    pub served_by: Option<Arc<str>>,
    /// The rate class that counted the request.
    pub class: Option<Arc<str>>,
    /// Tokens as billed.
    pub prompt_tokens: u64,
    /// Tokens as billed.
    pub completion_tokens: u64,
    /// Whether the gateway counted the tokens because the provider did not report them.
    pub estimated: bool,
    /// The amount charged.
    pub charged: Micros,
    /// The cache status. Reported to the client, and used for charging: a hit has a separate price.
    pub cache: Option<CacheStatus>,
    /// The cache entry that was read or written.
    pub cache_entry: Option<CacheEntryId>,
    /// The error code sent to the client.
    pub error: Option<ErrorCode>,
    /// Fields of filters, for the access log alone.
    pub log: LogFields,
    /// The status sent; zero when nothing was sent.
    pub status: u16,
    /// Upstream calls made for the exchange.
    pub upstream_calls: u32,
    /// Body bytes of the response.
    pub bytes_sent: u64,
    /// Clock reading when the request's head was complete.
    pub started: Duration,
    /// Clock reading at the start of the upstream call.
    pub upstream_started: Option<Duration>,
    /// Clock reading at the first byte of the upstream's response.
    pub upstream_first_byte: Option<Duration>,
    /// Clock reading at the end of the upstream's response.
    pub upstream_ended: Option<Duration>,
    /// Clock reading when the first byte of the response was sent.
    pub first_byte: Option<Duration>,
}

/// The values of `cache_store_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheStatus {
    /// Served from the cache.
    Hit,
    /// The response was stored.
    Stored,
    /// The request disabled the cache, or no cache exists.
    Bypass,
    /// A response of a kind that is never stored.
    Uncacheable,
    /// The request makes the provider read external data.
    External,
    /// The response broke off, by its finish reason.
    Incomplete,
    /// The response has no output.
    Empty,
    /// The response is larger than the maximum entry size.
    TooLarge,
    /// Storing failed; the response is valid.
    Error,
}

impl CacheStatus {
    /// Every status.
    pub const ALL: [CacheStatus; 9] = [
        CacheStatus::Hit,
        CacheStatus::Stored,
        CacheStatus::Bypass,
        CacheStatus::Uncacheable,
        CacheStatus::External,
        CacheStatus::Incomplete,
        CacheStatus::Empty,
        CacheStatus::TooLarge,
        CacheStatus::Error,
    ];

    /// The status of a name; `None` for an unknown name.
    pub fn from_word(word: &str) -> Option<CacheStatus> {
        CacheStatus::ALL
            .into_iter()
            .find(|status| status.word() == word)
    }

    /// The name on the wire.
    pub fn word(self) -> &'static str {
        match self {
            CacheStatus::Hit => "hit",
            CacheStatus::Stored => "stored",
            CacheStatus::Bypass => "bypass",
            CacheStatus::Uncacheable => "uncacheable",
            CacheStatus::External => "external",
            CacheStatus::Incomplete => "incomplete",
            CacheStatus::Empty => "empty",
            CacheStatus::TooLarge => "too_large",
            CacheStatus::Error => "error",
        }
    }
}

/// The id of a stored response. Random: the id reveals nothing of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheEntryId(pub [u8; 16]);

impl CacheEntryId {
    const PREFIX: &str = "ce_";

    /// The text form: `ce_` and 32 hexadecimal digits.
    pub fn text(self) -> [u8; 35] {
        let mut text = [0; 35];
        text[..3].copy_from_slice(CacheEntryId::PREFIX.as_bytes());
        base16ct::lower::encode(&self.0, &mut text[3..]).expect("two digits for each byte");
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
        let digits = text.strip_prefix(CacheEntryId::PREFIX).unwrap_or_default();
        let mut id = [0; 16];
        let is_id = digits.len() == 32 && base16ct::mixed::decode(digits, &mut id).is_ok();
        is_id.then_some(CacheEntryId(id)).ok_or(NoCacheEntryId)
    }
}

/// A text that is no id of a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a cache entry is named `ce_` and 32 hexadecimal digits, as `cache_entry_id` of an answer has it"
)]
pub struct NoCacheEntryId;

/// The charge of an exchange, as reported to the client. Put on the exchange when the charge is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The amount charged for the exchange.
    pub used: Micros,
    /// The available balance after the charge.
    pub remaining: Micros,
    /// The charged tokens.
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
