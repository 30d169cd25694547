//! Documents that were fetched, while they are fresh.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most addresses that are remembered.
const KEPT_MAX: usize = 1000;

/// A failure is remembered for so long, and no longer.
const FAILURE: Duration = Duration::from_secs(60);

/// Documents fetched from one host in a minute, at most.
const PER_HOST: u32 = 10;
const MINUTE: Duration = Duration::from_secs(60);

/// What is known of addresses.
pub struct Shelf<T> {
    inside: Mutex<Inside<T>>,
}

struct Inside<T> {
    kept: HashMap<String, (Kept<T>, Duration)>,
    /// When the minute of each host began, and how often it was asked since.
    hosts: HashMap<String, (Duration, u32)>,
}

/// What was found at an address.
#[derive(Debug)]
pub enum Kept<T> {
    /// What its document says.
    Found(Arc<T>),
    /// Nothing.
    Failure,
}

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Kept<T> {
        match self {
            Kept::Found(found) => Kept::Found(found.clone()),
            Kept::Failure => Kept::Failure,
        }
    }
}

impl<T> Default for Shelf<T> {
    fn default() -> Shelf<T> {
        let (kept, hosts) = (HashMap::new(), HashMap::new());
        Shelf {
            inside: Mutex::new(Inside { kept, hosts }),
        }
    }
}

impl<T> Shelf<T> {
    /// What is known of an address now.
    pub fn get(&self, url: &str, now: Duration) -> Option<Kept<T>> {
        let inside = self.lock();
        let (kept, until) = inside.kept.get(url)?;
        (now < *until).then(|| kept.clone())
    }

    /// Keeps what a document says until that is stale.
    pub fn keep(&self, url: &str, found: &Arc<T>, until: Duration, now: Duration) {
        self.put(url, Kept::Found(found.clone()), until, now);
    }

    /// Keeps for a while that nothing is to be had.
    pub fn keep_failure(&self, url: &str, now: Duration) {
        self.put(url, Kept::Failure, now + FAILURE, now);
    }

    /// Whether another document may be fetched from this host, and counts it.
    pub fn may_fetch(&self, host: &str, now: Duration) -> bool {
        let mut inside = self.lock();
        if inside.hosts.len() >= KEPT_MAX {
            inside.hosts.retain(|_, (began, _)| now - *began < MINUTE);
        }
        let full = inside.hosts.len() >= KEPT_MAX;
        match inside.hosts.get_mut(host) {
            Some((began, count)) if now - *began < MINUTE => {
                *count += 1;
                *count <= PER_HOST
            }
            Some(place) => {
                *place = (now, 1);
                true
            }
            None if full => false,
            None => {
                inside.hosts.insert(host.to_owned(), (now, 1));
                true
            }
        }
    }

    fn put(&self, url: &str, kept: Kept<T>, until: Duration, now: Duration) {
        let mut inside = self.lock();
        if inside.kept.len() >= KEPT_MAX && !inside.kept.contains_key(url) {
            inside.kept.retain(|_, (_, end)| now < *end);
        }
        if inside.kept.len() >= KEPT_MAX && !inside.kept.contains_key(url) {
            let soonest = inside.kept.iter().min_by_key(|(_, (_, end))| *end);
            let soonest = soonest.map(|(url, _)| url.clone());
            soonest.and_then(|url| inside.kept.remove(&url));
        }
        inside.kept.insert(url.to_owned(), (kept, until));
    }

    fn lock(&self) -> MutexGuard<'_, Inside<T>> {
        // Every change is one insertion or removal.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
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
        let shelf = Shelf::default();
        shelf.keep("a", &document(), secs(300), secs(0));
        shelf.keep_failure("b", secs(0));
        assert!(matches!(shelf.get("a", secs(299)), Some(Kept::Found(_))));
        assert!(
            shelf.get("a", secs(300)).is_none(),
            "not in an outage either"
        );
        assert!(matches!(shelf.get("b", secs(59)), Some(Kept::Failure)));
        assert!(shelf.get("b", secs(60)).is_none());
    }

    #[test]
    fn variations_of_addresses_fill_nothing_and_a_host_is_asked_ten_times_a_minute() {
        let shelf = Shelf::default();
        for number in 0..3 * KEPT_MAX {
            shelf.keep(&number.to_string(), &document(), secs(300), secs(0));
            shelf.may_fetch(&number.to_string(), secs(0));
        }
        assert_eq!(shelf.lock().kept.len(), KEPT_MAX);
        assert_eq!(shelf.lock().hosts.len(), KEPT_MAX);
        let shelf = Shelf::<()>::default();
        let asked = |at: u64| (0..15).filter(|_| shelf.may_fetch("h", secs(at))).count();
        assert_eq!(asked(0), 10);
        assert_eq!(asked(59), 0);
        assert_eq!(asked(60), 10);
    }
}
