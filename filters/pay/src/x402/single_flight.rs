//! Single flight within this process: one attempt at a time for each payment. Concurrent requests with the payment wait for the attempt and
//! get its outcome. The stored row shows another node's attempt (`X402::is_submitted_elsewhere`).

use std::future::Future;
use std::sync::Arc;

use tollgate_flight::{Abandoned, Rules, Waiter};
use tollgate_money::AccountId;
use tollgate_purchase::PurchaseTasks;
use tollgate_store::AuthorizationKey;

/// A cancelled attempt ends every wait: its outcome is found in the stored row.
const FLIGHTS: Rules = Rules {
    shards: 1,
    abandoned: Abandoned::EndAll,
};

/// Attempts in progress.
pub(crate) struct SingleFlight<T> {
    runtime: PurchaseTasks,
    open: Arc<tollgate_flight::SingleFlight<AuthorizationKey, T, FlightKey>>,
}

/// Identifies an attempt: its account and payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlightKey {
    pub(crate) account: AccountId,
    pub(crate) digest: [u8; 32],
}

/// Resolves when an attempt has finished; without a value when it was cancelled.
pub(crate) type Completion<T> = Waiter<AuthorizationKey, T, FlightKey>;

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
            open: Arc::new(tollgate_flight::SingleFlight::new(FLIGHTS)),
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
        use tollgate_flight::Joined as Role;
        let leader = match self.open.join(key.clone(), flight_key) {
            Role::Leads(leader) => leader,
            Role::Follows(completion, of) if of == flight_key => return Joined::Same(completion),
            Role::Follows(completion, _) => return Joined::Other(completion),
        };
        let completion = leader.follow();
        let attempt = attempt();
        self.runtime.spawn(async move {
            let outcome = attempt.await;
            // The attempt is over before its outcome is known: a later request finds the stored outcome.
            leader.complete(outcome);
        });
        Joined::Started(completion)
    }

    /// Whether an attempt is in progress.
    pub(crate) fn has(&self, key: &AuthorizationKey) -> bool {
        self.open.has(key)
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;
    use tollgate_flight::value;

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
        assert_eq!(value(first).await, Some(7));
        assert_eq!(value(second).await, Some(7));
        assert_eq!(value(third).await, Some(7));
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
        assert_eq!(value(completion).await, None);
        assert!(!single_flight.has(&key()));
    }
}
