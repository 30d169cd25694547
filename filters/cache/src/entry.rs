//! A cache entry: a stored answer and its streamed forms.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tollgate_filter::{CacheEntryId, Tokens};
use tollgate_openai::{Family, ReplayEvents, Stamp, StoredAnswer, StoredError};

/// The cost of an entry beside its bytes: the key, the place in the store, the fields of the entry, and a share of the keys remembered
/// after eviction.
pub(crate) const OVERHEAD: usize = 512;

/// Bytes that the allocator takes for a buffer of `buffer` bytes: four sizes to each power of two, as in mimalloc.
fn heap_bytes(buffer: usize) -> usize {
    let step = buffer
        .checked_ilog2()
        .map_or(1, |log| 1 << log.saturating_sub(2));
    buffer.next_multiple_of(step)
}

/// A whole answer with the requested streamed forms of the answer. Immutable: an added form makes another entry.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The entry's public name.
    pub(crate) id: CacheEntryId,
    /// The model, for purges.
    pub(crate) model: Arc<str>,
    /// The answer's usage as the provider reported the usage.
    pub(crate) tokens: Option<Tokens>,
    /// The monotonic clock reading at which the entry expires.
    pub(crate) expires: Duration,
    pub(crate) family: &'static Family,
    pub(crate) answer: Answer,
    /// The events of a stream, without and with usage. Made when first requested.
    pub(crate) events: [Option<Arc<ReplayEvents>>; 2],
}

impl Entry {
    /// The entry's weight: bytes of memory.
    pub(crate) fn weight(&self) -> usize {
        let events = self.events.iter().flatten();
        let events = events.map(|events| heap_bytes(events.bytes()));
        OVERHEAD + heap_bytes(self.answer.bytes()) + events.sum::<usize>()
    }

    /// The answer in the form from which replies are written. `metadata` is the name of the gateway's member, `x_svc`.
    pub(crate) fn stored(&self, metadata: &str) -> Result<&StoredAnswer, StoredError> {
        self.answer.stored(self.family, &self.model, metadata)
    }

    /// The answer as a text: the provider's text, or the text of a stream's merged events. [`Answer::as_sent`] makes an equal answer from
    /// the text.
    pub(crate) fn text(&self, metadata: &str) -> Result<Bytes, StoredError> {
        if let Some(body) = &self.answer.as_sent {
            return Ok(body.clone());
        }
        let stamp = Stamp { id: "", created: 0 };
        Ok(Entry::whole(self.stored(metadata)?, stamp))
    }

    /// This entry without the provider's original text, once the form for replies has been made.
    pub(crate) fn without_original(&self) -> Option<Entry> {
        let answer = self.answer.without_original()?;
        Some(Entry {
            answer,
            ..self.clone()
        })
    }

    /// The whole answer as a reply, with room for the metadata.
    pub(crate) fn whole(stored: &StoredAnswer, stamp: Stamp<'_>) -> Bytes {
        stored.answer(stamp, 0)
    }

    /// The events in the requested form, if the form has been made.
    pub(crate) fn stream(&self, include_usage: bool) -> Option<&Arc<ReplayEvents>> {
        self.events[usize::from(include_usage)].as_ref()
    }

    /// This entry with a further form of its events.
    pub(crate) fn with_stream(
        &self,
        stored: &StoredAnswer,
        include_usage: bool,
    ) -> Result<(Entry, Arc<ReplayEvents>), StoredError> {
        let events = Arc::new(stored.events(include_usage)?);
        let mut entry = self.clone();
        entry.events[usize::from(include_usage)] = Some(events.clone());
        Ok((entry, events))
    }
}

/// A stored answer. Before the first replay, the answer is kept as the provider sent the answer. Later, the answer is kept in the form from
/// which replies are written.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The provider's text. The text has been parsed once and is an answer.
    as_sent: Option<Bytes>,
    /// The form for replies. Boxed, since most answers are never replayed.
    stored: OnceLock<Box<StoredAnswer>>,
}

impl Answer {
    /// An answer without streaming.
    pub(crate) fn as_sent(body: &[u8]) -> Answer {
        Answer {
            // A copy: the original is a slice of a larger buffer.
            as_sent: Some(Bytes::copy_from_slice(body)),
            stored: OnceLock::new(),
        }
    }

    fn stored(
        &self,
        family: &'static Family,
        model: &str,
        metadata: &str,
    ) -> Result<&StoredAnswer, StoredError> {
        match (self.stored.get(), &self.as_sent) {
            (Some(stored), _) => Ok(stored),
            // The size was checked when the answer was stored.
            (None, Some(body)) => {
                let stored = StoredAnswer::of_answer(family, body, model, metadata, usize::MAX)?;
                Ok(self.stored.get_or_init(|| Box::new(stored)))
            }
            (None, None) => Err(StoredError::NoChoices),
        }
    }

    fn without_original(&self) -> Option<Answer> {
        self.as_sent.as_ref()?;
        self.stored
            .get()
            .map(|stored| Answer::from(StoredAnswer::clone(stored)))
    }

    /// Constant, as the store requires: once the form for replies is made, an entry without the original replaces this entry.
    fn bytes(&self) -> usize {
        match &self.as_sent {
            Some(body) => body.len(),
            None => self.stored.get().map_or(0, |stored| stored.bytes()),
        }
    }
}

impl From<StoredAnswer> for Answer {
    fn from(stored: StoredAnswer) -> Answer {
        Answer {
            as_sent: None,
            stored: OnceLock::from(Box::new(stored)),
        }
    }
}
