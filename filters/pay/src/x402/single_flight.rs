//! Single flight within this process: one attempt at a time for each payment. Concurrent requests with the payment wait for the attempt and
//! get its outcome. The stored row shows another node's attempt (`Context::is_submitted_elsewhere`).

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tollgate_money::AccountId;
use tollgate_purchase::PurchaseTasks;
use tollgate_store::AuthorizationKey;

/// Attempts in progress.
pub(crate) struct SingleFlight<T> {
    runtime: PurchaseTasks,
    open: Arc<Mutex<HashMap<AuthorizationKey, Flight<T>>>>,
}

/// Identifies an attempt: its account and payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlightKey {
    pub(crate) account: AccountId,
    pub(crate) digest: [u8; 32],
}

struct Flight<T> {
    flight_key: FlightKey,
    completion: Completion<T>,
}

/// Resolves when an attempt has finished; without a value when it was cancelled.
pub(crate) type Completion<T> = watch::Receiver<Option<T>>;

/// The result of joining.
pub(crate) enum Joined<T> {
    /// A new attempt was started.
    Started(Completion<T>),
    /// This attempt is in progress.
    Same(Completion<T>),
    /// An attempt by another account or with another signature is in progress.
    Other(Completion<T>),
}

impl<T: Clone + Send + Sync + 'static> SingleFlight<T> {
    /// An empty set.
    pub(crate) fn new(runtime: PurchaseTasks) -> SingleFlight<T> {
        SingleFlight {
            runtime,
            open: Arc::default(),
        }
    }

    /// Starts an attempt as a separate task, or joins the attempt in progress.
    pub(crate) fn join<F>(
        &self,
        key: &AuthorizationKey,
        flight_key: FlightKey,
        attempt: impl FnOnce() -> F,
    ) -> Joined<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut open = lock(&self.open);
        if let Some(flight) = open.get(key) {
            let completion = flight.completion.clone();
            return match flight.flight_key == flight_key {
                true => Joined::Same(completion),
                false => Joined::Other(completion),
            };
        }
        let (sender, completion) = watch::channel(None);
        let removal = RemoveOnDrop {
            open: Arc::clone(&self.open),
            key: key.clone(),
        };
        let attempt = attempt();
        self.runtime.spawn(async move {
            let outcome = attempt.await;
            // Removed first: a later request finds the stored outcome.
            drop(removal);
            sender.send_replace(Some(outcome));
        });
        open.insert(
            key.clone(),
            Flight {
                flight_key,
                completion: completion.clone(),
            },
        );
        Joined::Started(completion)
    }

    /// Whether an attempt is in progress.
    pub(crate) fn has(&self, key: &AuthorizationKey) -> bool {
        lock(&self.open).contains_key(key)
    }
}

/// Removes an attempt on drop, also after a panic.
struct RemoveOnDrop<T> {
    open: Arc<Mutex<HashMap<AuthorizationKey, Flight<T>>>>,
    key: AuthorizationKey,
}

impl<T> Drop for RemoveOnDrop<T> {
    fn drop(&mut self) {
        lock(&self.open).remove(&self.key);
    }
}

/// Waits for the outcome of an attempt; `None` after a cancellation.
pub(crate) async fn finished<T: Clone>(mut completion: Completion<T>) -> Option<T> {
    let outcome = completion.wait_for(Option::is_some).await.ok()?;
    outcome.clone()
}

fn lock<K, V>(map: &Mutex<HashMap<K, V>>) -> MutexGuard<'_, HashMap<K, V>> {
    map.lock()
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

    fn flight_key(account: u8) -> FlightKey {
        FlightKey {
            account: AccountId::from_bytes([account; 16]),
            digest: [0; 32],
        }
    }

    #[tokio::test]
    async fn the_same_payment_joins_the_attempt_and_another_one_waits() {
        let single_flight: SingleFlight<u32> =
            SingleFlight::new(PurchaseTasks::new(Handle::current()));
        let (release, released) = tokio::sync::oneshot::channel::<()>();
        let Joined::Started(first) = single_flight.join(&key(), flight_key(1), || async move {
            released.await.expect("the test releases it");
            7
        }) else {
            panic!("no attempt is in progress");
        };
        let Joined::Same(second) = single_flight.join(&key(), flight_key(1), || async { 8 }) else {
            panic!("the attempt is the same");
        };
        let Joined::Other(third) = single_flight.join(&key(), flight_key(2), || async { 9 }) else {
            panic!("the attempt is another account's");
        };
        release.send(()).expect("the attempt waits");
        assert_eq!(finished(first).await, Some(7));
        assert_eq!(finished(second).await, Some(7));
        assert_eq!(finished(third).await, Some(7));
        assert!(!single_flight.has(&key()));
    }

    #[tokio::test]
    async fn an_attempt_that_panics_is_removed() {
        let single_flight: SingleFlight<u32> =
            SingleFlight::new(PurchaseTasks::new(Handle::current()));
        let Joined::Started(completion) =
            single_flight.join(&key(), flight_key(1), || async { panic!("a bug") })
        else {
            panic!("no attempt is in progress");
        };
        assert_eq!(finished(completion).await, None);
        assert!(!single_flight.has(&key()));
    }
}
