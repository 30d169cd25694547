//! Documents that were fetched, while they are fresh.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most addresses that are remembered.
const ENTRIES_MAX: usize = 1000;

/// A failure is remembered for so long, and no longer.
const FAILURE_TTL: Duration = Duration::from_secs(60);

/// Documents fetched from one host in a minute, at most.
const FETCHES_PER_HOST_MAX: u32 = 10;
const MINUTE: Duration = Duration::from_secs(60);

/// What is known of addresses.
pub struct DocumentCache<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    documents: HashMap<String, (Cached<T>, Duration)>,
    /// When the minute of each host began, and how often it was asked since.
    hosts: HashMap<String, (Duration, u32)>,
}

/// What was found at an address.
#[derive(Debug)]
pub enum Cached<T> {
    /// What its document says.
    Found(Arc<T>),
    /// Nothing.
    Failure,
}

impl<T> Clone for Cached<T> {
    fn clone(&self) -> Cached<T> {
        match self {
            Cached::Found(found) => Cached::Found(found.clone()),
            Cached::Failure => Cached::Failure,
        }
    }
}

impl<T> Default for DocumentCache<T> {
    fn default() -> DocumentCache<T> {
        let (documents, hosts) = (HashMap::new(), HashMap::new());
        DocumentCache {
            state: Mutex::new(State { documents, hosts }),
        }
    }
}

impl<T> DocumentCache<T> {
    /// What is known of an address now.
    pub fn get(&self, url: &str, now: Duration) -> Option<Cached<T>> {
        let state = self.lock();
        let (cached, until) = state.documents.get(url)?;
        (now < *until).then(|| cached.clone())
    }

    /// Keeps what a document says until that is stale.
    pub fn insert(&self, url: &str, found: &Arc<T>, until: Duration, now: Duration) {
        self.put(url, Cached::Found(found.clone()), until, now);
    }

    /// Keeps for a while that nothing is to be had.
    pub fn insert_failure(&self, url: &str, now: Duration) {
        self.put(url, Cached::Failure, now + FAILURE_TTL, now);
    }

    /// Whether another document may be fetched from this host, and counts it.
    pub fn may_fetch(&self, host: &str, now: Duration) -> bool {
        let mut state = self.lock();
        if state.hosts.len() >= ENTRIES_MAX {
            state.hosts.retain(|_, (began, _)| now - *began < MINUTE);
        }
        let full = state.hosts.len() >= ENTRIES_MAX;
        match state.hosts.get_mut(host) {
            Some((began, count)) if now - *began < MINUTE => {
                *count += 1;
                *count <= FETCHES_PER_HOST_MAX
            }
            Some(window) => {
                *window = (now, 1);
                true
            }
            None if full => false,
            None => {
                state.hosts.insert(host.to_owned(), (now, 1));
                true
            }
        }
    }

    fn put(&self, url: &str, cached: Cached<T>, until: Duration, now: Duration) {
        let mut state = self.lock();
        if state.documents.len() >= ENTRIES_MAX && !state.documents.contains_key(url) {
            state.documents.retain(|_, (_, end)| now < *end);
        }
        if state.documents.len() >= ENTRIES_MAX && !state.documents.contains_key(url) {
            let soonest = state.documents.iter().min_by_key(|(_, (_, end))| *end);
            let soonest = soonest.map(|(url, _)| url.clone());
            soonest.and_then(|url| state.documents.remove(&url));
        }
        state.documents.insert(url.to_owned(), (cached, until));
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Every change is one insertion or removal.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn document() -> Arc<u32> {
        Arc::new(7)
    }

    #[test]
    fn a_document_is_kept_while_it_is_fresh_and_a_failure_for_a_minute() {
        let cache = DocumentCache::default();
        cache.insert("a", &document(), secs(300), secs(0));
        cache.insert_failure("b", secs(0));
        assert!(matches!(cache.get("a", secs(299)), Some(Cached::Found(_))));
        assert!(
            cache.get("a", secs(300)).is_none(),
            "not in an outage either"
        );
        assert!(matches!(cache.get("b", secs(59)), Some(Cached::Failure)));
        assert!(cache.get("b", secs(60)).is_none());
    }

    #[test]
    fn variations_of_addresses_fill_nothing_and_a_host_is_asked_ten_times_a_minute() {
        let cache = DocumentCache::default();
        for number in 0..3 * ENTRIES_MAX {
            cache.insert(&number.to_string(), &document(), secs(300), secs(0));
            cache.may_fetch(&number.to_string(), secs(0));
        }
        assert_eq!(cache.lock().documents.len(), ENTRIES_MAX);
        assert_eq!(cache.lock().hosts.len(), ENTRIES_MAX);
        let cache = DocumentCache::<()>::default();
        let asked = |at: u64| (0..15).filter(|_| cache.may_fetch("h", secs(at))).count();
        assert_eq!(asked(0), 10);
        assert_eq!(asked(59), 0);
        assert_eq!(asked(60), 10);
    }
}
