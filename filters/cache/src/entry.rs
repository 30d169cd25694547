//! A cache entry: a stored answer and the streamed forms made of it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tollgate_filter::{CacheEntryId, Tokens};
use tollgate_openai::{Family, ReplayEvents, Stamp, StoredAnswer, StoredError};

/// What an entry costs beside its bytes: its key, its place in the store, its own fields, and its share of the keys that are remembered after
/// eviction.
pub(crate) const OVERHEAD: usize = 512;

/// Bytes that the allocator takes for a buffer of so many: four sizes to each power of two, as mimalloc has.
fn heap_bytes(buffer: usize) -> usize {
    let step = buffer
        .checked_ilog2()
        .map_or(1, |log| 1 << log.saturating_sub(2));
    buffer.next_multiple_of(step)
}

/// A whole answer with the streamed forms that were requested of it. Immutable: an added form makes another entry.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Its public name.
    pub(crate) id: CacheEntryId,
    /// The model, for purges.
    pub(crate) model: Arc<str>,
    /// Its usage as the provider reported it.
    pub(crate) tokens: Option<Tokens>,
    /// The monotonic clock reading at which it expires.
    pub(crate) expires: Duration,
    pub(crate) family: &'static Family,
    pub(crate) answer: Answer,
    /// The events of a stream, without and with usage. Made when first requested.
    pub(crate) events: [Option<Arc<ReplayEvents>>; 2],
}

impl Entry {
    /// Bytes of memory that it counts for.
    pub(crate) fn weight(&self) -> usize {
        let events = self.events.iter().flatten();
        let events = events.map(|events| heap_bytes(events.bytes()));
        OVERHEAD + heap_bytes(self.answer.bytes()) + events.sum::<usize>()
    }

    /// The answer in the form that replies are written from. `metadata` is the name of our own member, `x_svc`.
    pub(crate) fn stored(&self, metadata: &str) -> Result<&StoredAnswer, StoredError> {
        self.answer.stored(self.family, &self.model, metadata)
    }

    /// The answer as one text, from which [`Answer::as_sent`] makes the same one: the provider's, or that of a stream's merged events.
    pub(crate) fn text(&self, metadata: &str) -> Result<Bytes, StoredError> {
        if let Some(body) = &self.answer.as_sent {
            return Ok(body.clone());
        }
        let stamp = Stamp { id: "", created: 0 };
        Ok(Entry::whole(self.stored(metadata)?, stamp))
    }

    /// This entry without the provider's own text, once the form for replies has been made.
    pub(crate) fn without_original(&self) -> Option<Entry> {
        let answer = self.answer.without_original()?;
        Some(Entry {
            answer,
            ..self.clone()
        })
    }

    /// The whole answer as one reply, with room for the metadata.
    pub(crate) fn whole(stored: &StoredAnswer, stamp: Stamp<'_>) -> Bytes {
        stored.answer(stamp, 0)
    }

    /// The events in the requested form, if they have been made.
    pub(crate) fn stream(&self, include_usage: bool) -> Option<&Arc<ReplayEvents>> {
        self.events[usize::from(include_usage)].as_ref()
    }

    /// This entry with one more form of its events.
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

/// A stored answer: as the provider sent it until it is first replayed, and then in the form that replies are written from.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The provider's text. It has been parsed once and is an answer.
    as_sent: Option<Bytes>,
    /// The form for replies. Boxed, since most answers are never replayed.
    stored: OnceLock<Box<StoredAnswer>>,
}

impl Answer {
    /// An answer that was no stream.
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
            // Its size was checked when it was stored.
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

    /// Constant, as the store requires: once the form for replies is made, an entry without the original replaces this one.
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
