//! A stored answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tollgate_filter::{CacheEntryId, Tokens};
use tollgate_openai::{Endpoint, KeepError, Kept, KeptEvents, Stamp};

/// What an entry costs beside its bytes: its key, its place in the shelf, its own fields, and what the allocator loses.
pub(crate) const OVERHEAD: usize = 512;

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
    pub(crate) answer: Kept,
    /// It as a stream, without and with the usage. Made when first asked for.
    pub(crate) events: [Option<Arc<KeptEvents>>; 2],
}

impl Entry {
    /// Bytes of memory that it counts for.
    pub(crate) fn weight(&self) -> usize {
        let events = self.events.iter().flatten().map(|events| events.bytes());
        OVERHEAD + self.answer.bytes() + events.sum::<usize>()
    }

    /// The whole answer as one reply, with room for the metadata.
    pub(crate) fn whole(&self, stamp: Stamp<'_>) -> Bytes {
        self.answer.answer(stamp, 0)
    }

    /// The stream in the form asked for, if it has been made before.
    pub(crate) fn stream(&self, include_usage: bool) -> Option<&Arc<KeptEvents>> {
        self.events[usize::from(include_usage)].as_ref()
    }

    /// This entry with one form of its stream more.
    pub(crate) fn with_stream(
        &self,
        include_usage: bool,
    ) -> Result<(Entry, Arc<KeptEvents>), KeepError> {
        let events = Arc::new(self.answer.events(include_usage)?);
        let mut entry = self.clone();
        entry.events[usize::from(include_usage)] = Some(events.clone());
        Ok((entry, events))
    }
}
