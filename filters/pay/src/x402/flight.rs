//! Single flight: one attempt at a time for each payment. Concurrent requests with the same payment wait for the attempt and get its
//! outcome.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tollgate_money::AccountId;
use tollgate_purchase::PurchaseTasks;
use tollgate_store::AuthorizationKey;

/// Attempts in progress.
pub(crate) struct Flights<T> {
    runtime: PurchaseTasks,
    open: Arc<Mutex<HashMap<AuthorizationKey, Flight<T>>>>,
}

/// Identifies an attempt: its account and payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) account: AccountId,
    pub(crate) digest: [u8; 32],
}

struct Flight<T> {
    mark: Mark,
    end: End<T>,
}

/// Resolves when an attempt has finished; without a value when it was cancelled.
pub(crate) type End<T> = watch::Receiver<Option<T>>;

/// The result of joining.
pub(crate) enum Boarded<T> {
    /// A new attempt was started.
    Begun(End<T>),
    /// The same attempt is in progress.
    Same(End<T>),
    /// An attempt by another account or with another signature is in progress.
    Other(End<T>),
}

impl<T: Clone + Send + Sync + 'static> Flights<T> {
    /// An empty set.
    pub(crate) fn new(runtime: PurchaseTasks) -> Flights<T> {
        Flights {
            runtime,
            open: Arc::default(),
        }
    }

    /// Starts an attempt as a task of its own, or joins the one in progress.
    pub(crate) fn board<F>(
        &self,
        key: &AuthorizationKey,
        mark: Mark,
        attempt: impl FnOnce() -> F,
    ) -> Boarded<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut open = lock(&self.open);
        if let Some(flight) = open.get(key) {
            let end = flight.end.clone();
            return match flight.mark == mark {
                true => Boarded::Same(end),
                false => Boarded::Other(end),
            };
        }
        let (tell, end) = watch::channel(None);
        let landing = Landing {
            open: Arc::clone(&self.open),
            key: key.clone(),
        };
        let attempt = attempt();
        self.runtime.spawn(async move {
            let told = attempt.await;
            // Removed first: a later request finds the stored outcome.
            drop(landing);
            tell.send_replace(Some(told));
        });
        open.insert(
            key.clone(),
            Flight {
                mark,
                end: end.clone(),
            },
        );
        Boarded::Begun(end)
    }

    /// Whether an attempt is in progress.
    pub(crate) fn has(&self, key: &AuthorizationKey) -> bool {
        lock(&self.open).contains_key(key)
    }
}

/// Removes an attempt on drop, also after a panic.
struct Landing<T> {
    open: Arc<Mutex<HashMap<AuthorizationKey, Flight<T>>>>,
    key: AuthorizationKey,
}

impl<T> Drop for Landing<T> {
    fn drop(&mut self) {
        lock(&self.open).remove(&self.key);
    }
}

/// Waits for the outcome of an attempt; `None` when it was cancelled.
pub(crate) async fn landed<T: Clone>(mut end: End<T>) -> Option<T> {
    let told = end.wait_for(Option::is_some).await.ok()?;
    told.clone()
}

fn lock<K, V>(map: &Mutex<HashMap<K, V>>) -> MutexGuard<'_, HashMap<K, V>> {
    map.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;

    use super::*;

    fn key() -> AuthorizationKey {
        AuthorizationKey {
            network: Arc::from("eip155:8453"),
            asset: [1; 20],
            payer: [2; 20],
            nonce: [3; 32],
        }
    }

    fn mark(account: u8) -> Mark {
        Mark {
            account: AccountId::from_bytes([account; 16]),
            digest: [0; 32],
        }
    }

    #[tokio::test]
    async fn who_brings_the_same_payment_hears_the_same_and_others_wait() {
        let flights: Flights<u32> = Flights::new(PurchaseTasks::new(Handle::current()));
        let (open, opened) = tokio::sync::oneshot::channel::<()>();
        let Boarded::Begun(first) = flights.board(&key(), mark(1), || async move {
            opened.await.expect("it is opened");
            7
        }) else {
            panic!("nobody is at it");
        };
        let Boarded::Same(second) = flights.board(&key(), mark(1), || async { 8 }) else {
            panic!("it is the same");
        };
        let Boarded::Other(third) = flights.board(&key(), mark(2), || async { 9 }) else {
            panic!("it is another account's");
        };
        open.send(()).expect("somebody waits");
        assert_eq!(landed(first).await, Some(7));
        assert_eq!(landed(second).await, Some(7));
        assert_eq!(landed(third).await, Some(7));
        assert!(!flights.has(&key()));
    }

    #[tokio::test]
    async fn an_attempt_that_panics_is_over() {
        let flights: Flights<u32> = Flights::new(PurchaseTasks::new(Handle::current()));
        let Boarded::Begun(end) = flights.board(&key(), mark(1), || async { panic!("a bug") })
        else {
            panic!("nobody is at it");
        };
        assert_eq!(landed(end).await, None);
        assert!(!flights.has(&key()));
    }
}
