//! A stored answer.

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

/// An answer that was stored, whole, with the streams that were asked of it. Never changed: what is added makes another entry.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Its public name.
    pub(crate) id: CacheEntryId,
    /// The model, for purges.
    pub(crate) model: Arc<str>,
    /// What it used, as the provider reported it.
    pub(crate) tokens: Option<Tokens>,
    /// The clock reading after which it is not given out any more.
    pub(crate) expires: Duration,
    pub(crate) endpoint: Endpoint,
    pub(crate) answer: Answer,
    /// It as a stream, without and with the usage. Made when first asked for.
    pub(crate) events: [Option<Arc<KeptEvents>>; 2],
}

impl Entry {
    /// Bytes of memory that it counts for.
    pub(crate) fn weight(&self) -> usize {
        let events = self.events.iter().flatten();
        let events = events.map(|events| heap_bytes(events.bytes()));
        OVERHEAD + heap_bytes(self.answer.bytes()) + events.sum::<usize>()
    }

    /// The answer in the form that replies are written from. `metadata` is the name of our own member.
    pub(crate) fn kept(&self, metadata: &str) -> Result<&Kept, KeepError> {
        self.answer.kept(self.endpoint, &self.model, metadata)
    }

    /// This entry without the answer as it came, once that has been read.
    pub(crate) fn settled(&self) -> Option<Entry> {
        let answer = self.answer.settled()?;
        Some(Entry {
            answer,
            ..self.clone()
        })
    }

    /// The whole answer as one reply, with room for the metadata.
    pub(crate) fn whole(kept: &Kept, stamp: Stamp<'_>) -> Bytes {
        kept.answer(stamp, 0)
    }

    /// The stream in the form asked for, if it has been made before.
    pub(crate) fn stream(&self, include_usage: bool) -> Option<&Arc<KeptEvents>> {
        self.events[usize::from(include_usage)].as_ref()
    }

    /// This entry with one form of its stream more.
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
    /// What the provider sent. It has been read once and found to be an answer.
    came: Option<Bytes>,
    /// Boxed, as most answers never have it.
    kept: OnceLock<Box<Kept>>,
}

impl Answer {
    /// The body of an answer that came in one piece.
    pub(crate) fn came(body: &[u8]) -> Answer {
        Answer {
            // A copy: the original is a part of a buffer that is larger.
            came: Some(Bytes::copy_from_slice(body)),
            kept: OnceLock::new(),
        }
    }

    fn kept(&self, endpoint: Endpoint, model: &str, metadata: &str) -> Result<&Kept, KeepError> {
        match (self.kept.get(), &self.came) {
            (Some(kept), _) => Ok(kept),
            // Its size was looked at when it came.
            (None, Some(body)) => {
                let kept = Kept::of_answer(endpoint, body, model, metadata, usize::MAX)?;
                Ok(self.kept.get_or_init(|| Box::new(kept)))
            }
            (None, None) => Err(KeepError::NoChoices),
        }
    }

    fn settled(&self) -> Option<Answer> {
        self.came.as_ref()?;
        self.kept.get().map(|kept| Answer::from(Kept::clone(kept)))
    }

    /// Never changes, as the store requires: when what came is read, an entry without it takes its place at once.
    fn bytes(&self) -> usize {
        match &self.came {
            Some(body) => body.len(),
            None => self.kept.get().map_or(0, |kept| kept.bytes()),
        }
    }
}

impl From<Kept> for Answer {
    fn from(kept: Kept) -> Answer {
        Answer {
            came: None,
            kept: OnceLock::from(Box::new(kept)),
        }
    }
}
