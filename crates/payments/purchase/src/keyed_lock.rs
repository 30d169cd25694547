//! One asynchronous lock for each key, within this process. Work on one purchase or account is serialized, other work is not. Row versions
//! (`conflict.rs`) and claimed idempotency keys separate nodes.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// A lock for each key, of this process alone. A key takes memory only while locked or awaited.
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
