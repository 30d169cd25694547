//! Cache of fetched documents: fresh entries, negative entries, and a rate limit for each host.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

/// Entries in each table.
const ENTRIES_MAX: usize = 1000;

/// Lifetime of a negative entry.
const FAILURE_TTL: Duration = Duration::from_secs(60);

/// Fetches from one host per minute.
const FETCHES_PER_HOST_MAX: u32 = 10;
const MINUTE: Duration = Duration::from_secs(60);

/// The cache, by URL.
pub struct DocumentCache<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    documents: HashMap<String, (Cached<T>, Duration)>,
    /// Start of each host's window, and the fetches within.
    hosts: HashMap<String, (Duration, u32)>,
}

/// A cache entry.
#[derive(Debug)]
pub enum Cached<T> {
    /// The parsed document.
    Found(Arc<T>),
    /// A negative entry: the fetch failed.
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
    /// The fresh entry for a URL.
    pub fn get(&self, url: &str, now: Duration) -> Option<Cached<T>> {
        let state = self.lock();
        let (cached, until) = state.documents.get(url)?;
        (now < *until).then(|| cached.clone())
    }

    /// Stores a document until `until`.
    pub fn insert(&self, url: &str, found: &Arc<T>, until: Duration, now: Duration) {
        self.put(url, Cached::Found(found.clone()), until, now);
    }

    /// Stores a negative entry.
    pub fn insert_failure(&self, url: &str, now: Duration) {
        self.put(url, Cached::Failure, now + FAILURE_TTL, now);
    }

    /// Whether the rate limit of this host allows another fetch, and counts the fetch. Of too many hosts, the host with the earliest window
    /// is forgotten: fetches have a separate bound, and a client with many hosts does not keep other clients from their hosts.
    pub fn may_fetch(&self, host: &str, now: Duration) -> bool {
        let mut state = self.lock();
        if state.hosts.len() >= ENTRIES_MAX && !state.hosts.contains_key(host) {
            let oldest = state.hosts.iter().min_by_key(|(_, (began, _))| *began);
            let oldest = oldest.map(|(host, _)| host.clone());
            oldest.and_then(|host| state.hosts.remove(&host));
        }
        let window = state.hosts.entry(host.to_owned()).or_insert((now, 0));
        if now - window.0 >= MINUTE {
            *window = (now, 0);
        }
        window.1 += 1;
        window.1 <= FETCHES_PER_HOST_MAX
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
        // Every change is a single insertion or removal, so a poisoned lock holds consistent state.
        self.state.lock()
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
    fn a_document_is_cached_while_it_is_fresh_and_a_failure_for_a_minute() {
        let cache = DocumentCache::default();
        cache.insert("a", &document(), secs(300), secs(0));
        cache.insert_failure("b", secs(0));
        assert!(matches!(cache.get("a", secs(299)), Some(Cached::Found(_))));
        assert!(
            cache.get("a", secs(300)).is_none(),
            "stale entries are not served"
        );
        assert!(matches!(cache.get("b", secs(59)), Some(Cached::Failure)));
        assert!(cache.get("b", secs(60)).is_none());
    }

    #[test]
    fn the_cache_is_bounded_and_a_host_is_fetched_ten_times_a_minute() {
        let cache = DocumentCache::default();
        for number in 0..3 * ENTRIES_MAX {
            cache.insert(&number.to_string(), &document(), secs(300), secs(0));
            assert!(cache.may_fetch(&number.to_string(), secs(0)), "{number}");
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
