//! One asynchronous lock for each key, within this process: its work on the same purchase or account is serialized, other work is not.
//! Nodes are kept apart by the versions of rows (`conflict.rs`) and by claimed idempotency keys.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// A lock for each key, of this process alone. A key takes memory only while it is locked or waited for.
#[derive(Debug)]
pub struct KeyedLock<K> {
    locks: Mutex<HashMap<K, Weak<AsyncMutex<()>>>>,
}

impl<K> Default for KeyedLock<K> {
    fn default() -> KeyedLock<K> {
        KeyedLock {
            locks: Mutex::default(),
        }
    }
}

impl<K: Eq + Hash> KeyedLock<K> {
    /// Acquires the lock of a key, in the order of the calls.
    pub async fn acquire(&self, key: K) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock();
            locks.retain(|_, lock| lock.strong_count() > 0);
            let known = locks.get(&key).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let lock = Arc::new(AsyncMutex::new(()));
                locks.insert(key, Arc::downgrade(&lock));
                lock
            })
        };
        lock.lock_owned().await
    }
}
