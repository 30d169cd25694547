//! Sign-up grants: credits for new accounts.

use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::{Clock, Entropy};
use tollgate_identity::Signin;
use tollgate_ledger::{Credit, Ledger};
use tollgate_money::OperationId;

/// Reference of the ledger entry: one grant per account, however often booking is retried.
const REFERENCE: &str = "sign-up";

/// Interval of the check for grants that an earlier run, or a busy store, has left pending.
const INTERVAL: Duration = Duration::from_secs(60);

/// Books pending sign-up grants again and again, until dropped.
pub(crate) async fn run(signin: Signin, ledger: Ledger, clock: Clock, entropy: Entropy) {
    loop {
        book_signup_grants(&signin, &ledger, &clock, &entropy).await;
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Books pending sign-up grants. The grant is recorded together with the account; if the process ends before the booking, the next run
/// books the grant.
pub(crate) async fn book_signup_grants(
    signin: &Signin,
    ledger: &Ledger,
    clock: &Clock,
    entropy: &Entropy,
) {
    let owed = match signin.grants_owed().await {
        Ok(owed) => owed,
        Err(error) => {
            tracing::error!(%error, "reading pending sign-up grants failed");
            return;
        }
    };
    for (account, amount) in owed {
        let credit = Credit {
            operation: OperationId::generate(clock.now(), entropy),
            account,
            amount,
            reference: Arc::from(REFERENCE),
            at: clock.now(),
        };
        let booked = match ledger.grant(credit).await {
            Ok(_) => signin
                .grant_booked(account)
                .await
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = booked {
            tracing::error!(%account, error, "booking sign-up grant failed, retrying later");
        }
    }
}
