//! A cache entry: a stored answer and the streamed forms made of it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tollgate_filter::{CacheEntryId, Tokens};
use tollgate_openai::{Endpoint, KeepError, Kept, KeptEvents, Stamp};

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
    pub(crate) endpoint: Endpoint,
    pub(crate) answer: Answer,
    /// The events of a stream, without and with usage. Made when first requested.
    pub(crate) events: [Option<Arc<KeptEvents>>; 2],
}

impl Entry {
    /// Bytes of memory that it counts for.
    pub(crate) fn weight(&self) -> usize {
        let events = self.events.iter().flatten();
        let events = events.map(|events| heap_bytes(events.bytes()));
        OVERHEAD + heap_bytes(self.answer.bytes()) + events.sum::<usize>()
    }

    /// The answer in the form that replies are written from. `metadata` is the name of our own member, `x_svc`.
    pub(crate) fn kept(&self, metadata: &str) -> Result<&Kept, KeepError> {
        self.answer.kept(self.endpoint, &self.model, metadata)
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
    pub(crate) fn whole(kept: &Kept, stamp: Stamp<'_>) -> Bytes {
        kept.answer(stamp, 0)
    }

    /// The events in the requested form, if they have been made.
    pub(crate) fn stream(&self, include_usage: bool) -> Option<&Arc<KeptEvents>> {
        self.events[usize::from(include_usage)].as_ref()
    }

    /// This entry with one more form of its events.
    pub(crate) fn with_stream(
        &self,
        kept: &Kept,
        include_usage: bool,
    ) -> Result<(Entry, Arc<KeptEvents>), KeepError> {
        let events = Arc::new(kept.events(include_usage)?);
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
    kept: OnceLock<Box<Kept>>,
}

impl Answer {
    /// An answer that was no stream.
    pub(crate) fn as_sent(body: &[u8]) -> Answer {
        Answer {
            // A copy: the original is a slice of a larger buffer.
            as_sent: Some(Bytes::copy_from_slice(body)),
            kept: OnceLock::new(),
        }
    }

    fn kept(&self, endpoint: Endpoint, model: &str, metadata: &str) -> Result<&Kept, KeepError> {
        match (self.kept.get(), &self.as_sent) {
            (Some(kept), _) => Ok(kept),
            // Its size was checked when it was stored.
            (None, Some(body)) => {
                let kept = Kept::of_answer(endpoint, body, model, metadata, usize::MAX)?;
                Ok(self.kept.get_or_init(|| Box::new(kept)))
            }
            (None, None) => Err(KeepError::NoChoices),
        }
    }

    fn without_original(&self) -> Option<Answer> {
        self.as_sent.as_ref()?;
        self.kept.get().map(|kept| Answer::from(Kept::clone(kept)))
    }

    /// Constant, as the store requires: once the form for replies is made, an entry without the original replaces this one.
    fn bytes(&self) -> usize {
        match &self.as_sent {
            Some(body) => body.len(),
            None => self.kept.get().map_or(0, |kept| kept.bytes()),
        }
    }
}

impl From<Kept> for Answer {
    fn from(kept: Kept) -> Answer {
        Answer {
            as_sent: None,
            kept: OnceLock::from(Box::new(kept)),
        }
    }
}
