//! What has to be done now and then, whoever asks for something or not.

use std::sync::Arc;
use std::time::Duration;

use tollgate_filter::{Clock, Entropy};
use tollgate_identity::{Credentials, Signin};
use tollgate_ledger::Ledger;
use tollgate_store::{Admission, OAuthPart, Part, Store, UnitOfWork, commit};

use crate::proxy::Proxy;

/// How often holds that outlived their operation and counters nobody uses are looked for, and freed memory is given back.
const SWEEP: Duration = Duration::from_secs(10);

/// How often it is written down which credentials have been used.
const NOTE_USES: Duration = Duration::from_secs(60);

/// Uses that are written in one unit: what waits behind it must not wait long.
const USES_AT_ONCE: usize = 500;

/// How often credits promised at sign-up are looked for that are not booked yet.
const PROMISES: Duration = Duration::from_secs(60);

/// Fewer exchanges than this at once leave nothing behind that is worth giving back.
const CROWD: usize = 100;

/// Something that has to be done now and then, at once and without blocking.
pub(crate) type Chore = Box<dyn Fn() + Send>;

/// What has to be done now and then while the gateway serves.
pub(crate) async fn keep_house(
    proxy: Arc<Proxy>,
    ledger: Ledger,
    clock: Clock,
    chores: Vec<Chore>,
) {
    let mut most_open = 0;
    loop {
        tokio::time::sleep(SWEEP).await;
        let expired = ledger.sweep(clock.steady_micros());
        if expired > 0 {
            tracing::warn!(
                holds = expired,
                "released holds that outlived their requests"
            );
        }
        chores.iter().for_each(|chore| chore());
        let open = proxy.open_exchanges();
        most_open = most_open.max(proxy.take_crowd());
        if most_open >= CROWD && open < most_open / 2 {
            most_open = open;
            proxy.give_back();
        }
    }
}

/// Writes down which credentials have been used. Nobody waits for it, and nobody is worse off when some of it is lost.
pub(crate) async fn note_uses(credentials: Arc<Credentials>, store: Arc<dyn Store>) {
    loop {
        tokio::time::sleep(NOTE_USES).await;
        for uses in credentials.take_uses().chunks(USES_AT_ONCE) {
            let part = Part::OAuth(Box::new(OAuthPart::NoteUses(uses.to_vec())));
            if let Err(error) = commit(&*store, UnitOfWork::of(part, Admission::Notes)).await {
                tracing::debug!(%error, "the last uses of credentials were not noted");
                break;
            }
        }
    }
}

/// Forgets sessions, codes and counters that have ended.
pub(crate) fn sweep_signin(signin: &Signin, clock: &Clock) -> Chore {
    let (signin, clock) = (signin.clone(), clock.clone());
    Box::new(move || signin.sweep(clock.unix_micros()))
}

/// Books credits promised at sign-up that an earlier run, or a store that was busy, has left.
pub(crate) async fn keep_promises(signin: Signin, ledger: Ledger, clock: Clock, entropy: Entropy) {
    loop {
        tollgate_portal::book_signup_grants(&signin, &ledger, &clock, &entropy).await;
        tokio::time::sleep(PROMISES).await;
    }
}
