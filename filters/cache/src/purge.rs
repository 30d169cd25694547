//! Purges of an operator, and of other nodes by the feed of changes.

use std::sync::{Arc, Weak};

use tollgate_clock::Timestamp;
use tollgate_filter::CacheEntryId;
use tollgate_store::{ChangeKind, ChangeRow, Effect, Observer, Part, ReadError};

use crate::Cache;
use crate::entry::Entry;

/// The entries of an operator's purge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purge {
    /// The entry with this id.
    Entry(CacheEntryId),
    /// Every entry of this model.
    Model(Arc<str>),
    /// Every entry.
    All,
}

impl Purge {
    /// The part that announces the purge to the nodes of a cluster.
    pub fn part(&self, at: Timestamp) -> Part {
        let (kind, subject) = match self {
            Purge::Entry(id) => (ChangeKind::CacheEntry, id.0),
            Purge::Model(model) => (ChangeKind::CacheOfModel, digest(model)),
            Purge::All => (ChangeKind::Cache, [0; 16]),
        };
        Part::PurgeCache { kind, subject, at }
    }

    pub(crate) fn matches(&self, entry: &Entry) -> bool {
        match self {
            Purge::Entry(id) => entry.id == *id,
            Purge::Model(model) => entry.model == *model,
            Purge::All => true,
        }
    }
}

/// The feed's name for a model: a subject of the feed has 16 bytes.
fn digest(model: &str) -> [u8; 16] {
    let mut subject = [0; 16];
    subject.copy_from_slice(&blake3::hash(model.as_bytes()).as_bytes()[..16]);
    subject
}

/// Removes the entries purged by other nodes.
pub(crate) struct Follower(pub(crate) Weak<Cache>);

impl Observer for Follower {
    fn committed(&self, _: &Part, _: Effect) {}

    fn changed(&self, change: &ChangeRow) -> Result<(), ReadError> {
        if let Some(cache) = self.0.upgrade() {
            let subject = change.subject;
            match change.kind {
                ChangeKind::Cache => cache.purge_where(|_| true),
                ChangeKind::CacheOfModel => {
                    cache.purge_where(|entry| digest(&entry.model) == subject)
                }
                ChangeKind::CacheEntry => cache.purge_where(|entry| entry.id.0 == subject),
                _ => 0,
            };
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use tollgate_clock::{Clock, Entropy};
    use tollgate_openai::Family;

    use super::*;
    use crate::entry::Answer;
    use crate::key::Key;
    use crate::{CacheDeps, CacheSettings};

    /// Reads a purge in the feed of the store.
    pub(crate) fn follow(cache: &Arc<Cache>, purge: &Purge) {
        let Part::PurgeCache { kind, subject, .. } = purge.part(Timestamp::UNIX_EPOCH) else {
            panic!("a purge");
        };
        let change = ChangeRow {
            number: 1,
            kind,
            subject,
        };
        let follower = Follower(Arc::downgrade(cache));
        follower.changed(&change).expect("it reads nothing");
    }

    #[test]
    fn what_another_node_purges_is_removed_and_nothing_else() {
        let all = [(1, "a"), (2, "a"), (3, "b")];
        for (purge, left) in [
            (Purge::Entry(CacheEntryId([2; 16])), 2),
            (Purge::Model("a".into()), 1),
            (Purge::Model("c".into()), 3),
            (Purge::All, 0),
        ] {
            let cache = Arc::new(Cache::new(CacheDeps {
                settings: CacheSettings::default(),
                bytes_max: 1 << 20,
                service: "svc",
                root: &[0; 32],
                clock: Clock::system(),
                entropy: Entropy::system(),
            }));
            for (number, model) in all {
                let entry = Entry {
                    id: CacheEntryId([number; 16]),
                    model: model.into(),
                    tokens: None,
                    expires: Duration::MAX,
                    family: Family::CHAT,
                    answer: Answer::as_sent(b"{}"),
                    events: [None, None],
                };
                cache
                    .first_level()
                    .insert(Key([number; 32]), Arc::new(entry));
            }
            follow(&cache, &purge);
            assert_eq!(cache.totals().entries, left, "{purge:?}");
        }
    }
}
