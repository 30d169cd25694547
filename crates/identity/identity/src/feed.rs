//! The feed of changes: the index rereads rows committed by other nodes of a cluster.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tollgate_clock::Clock;
use tollgate_money::{AccountId, CredentialId, GrantId};
use tollgate_store::{ChangeKind, ChangeRow, Effect, Observer, Part, ReadError, Store};

use crate::credentials::Credentials;

/// For how long the feed may be silent before credentials count as unknown.
const AGE_MAX: Duration = Duration::from_secs(2);

/// Reads the changes of other nodes.
pub(crate) struct Follower {
    credentials: Weak<Credentials>,
    store: Weak<dyn Store>,
}

impl Credentials {
    /// Subscribes the index to commits of other nodes of a cluster. No effect on a lone node.
    pub fn follow(self: &Arc<Self>, store: &Arc<dyn Store>, clock: &Clock) {
        if store.has_allotments() {
            self.set_feed(FeedAge {
                store: Arc::downgrade(store),
                clock: clock.clone(),
            });
            store.observe(Arc::new(Follower {
                credentials: Arc::downgrade(self),
                store: Arc::downgrade(store),
            }));
        }
    }
}

/// The age of a node's knowledge of other nodes' changes, by the clock of the store's gauges.
pub(crate) struct FeedAge {
    store: Weak<dyn Store>,
    clock: Clock,
}

impl FeedAge {
    /// Whether the feed has been read within [`AGE_MAX`].
    pub(crate) fn is_recent(&self) -> bool {
        let Some(store) = self.store.upgrade() else {
            return false;
        };
        let read = store.gauges().feed_read_us.load(Ordering::Relaxed);
        read != 0 && self.clock.elapsed() < Duration::from_micros(read) + AGE_MAX
    }
}

impl Observer for Follower {
    // The index itself observes the commits of this node.
    fn committed(&self, _: &Part, _: Effect) {}

    fn changed(&self, change: &ChangeRow) -> Result<(), ReadError> {
        match (self.credentials.upgrade(), self.store.upgrade()) {
            (Some(credentials), Some(store)) => apply(&credentials, &*store, change),
            _ => Ok(()),
        }
    }
}

fn apply(
    credentials: &Credentials,
    store: &dyn Store,
    change: &ChangeRow,
) -> Result<(), ReadError> {
    // Before the look-up in memory: a load under way either has stored the subject in memory, or is repeated.
    credentials.note_change(change.kind, &change.subject);
    match change.kind {
        ChangeKind::Account => {
            let id = AccountId::from_bytes(change.subject);
            if credentials.has_account(id)
                && let Some(row) = store.posted_account(id)?
            {
                credentials.reload_account(&row);
            }
        }
        ChangeKind::Credential => {
            let id = CredentialId::from_bytes(change.subject);
            if credentials.has_credential(id) {
                credentials.reload_credential(id, store.credential(id)?);
            }
        }
        ChangeKind::Grant => {
            let account = AccountId::from_bytes(change.subject);
            let grant = GrantId::from_bytes(change.subject);
            for id in credentials.of_grant(account, grant) {
                credentials.reload_credential(id, store.credential(id)?);
            }
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tollgate_clock::Timestamp;
    use tollgate_store::{RootSecret, sqlite};

    use super::*;

    #[test]
    fn the_feed_is_recent_for_less_than_two_seconds_after_each_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = sqlite::Options::new(Timestamp::from_secs(1), RootSecret([7; 32]));
        let store = sqlite::open(&folder.path().join("t.db"), options).expect("a store");
        let (clock, hand) = Clock::manual(Timestamp::from_secs(1));
        let feed = FeedAge {
            store: Arc::downgrade(&store),
            clock: clock.clone(),
        };
        hand.advance(Duration::from_secs(3600));
        assert!(!feed.is_recent(), "it was never read");
        for _ in 0..2 {
            let now = clock.elapsed().as_micros() as u64;
            let read = &store.gauges().feed_read_us;
            read.store(now, Ordering::Relaxed);
            hand.advance(AGE_MAX - Duration::from_micros(1));
            assert!(feed.is_recent());
            hand.advance(Duration::from_micros(1));
            assert!(!feed.is_recent(), "two seconds");
            hand.advance(AGE_MAX);
            assert!(!feed.is_recent(), "until it is read again");
        }
        let now = clock.elapsed().as_micros() as u64;
        store.gauges().feed_read_us.store(now, Ordering::Relaxed);
        assert!(feed.is_recent());
        store.close();
        drop(store);
        assert!(!feed.is_recent(), "without a store");
    }
}
