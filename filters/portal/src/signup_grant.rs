//! Credits promised at sign-up.

use std::sync::Arc;

use tollgate_filter::{Clock, Entropy};
use tollgate_identity::Signin;
use tollgate_ledger::{Credit, Ledger};

/// What they are booked under: once for an account, however often it is tried.
const REFERENCE: &str = "sign-up";

/// Books what was promised to new accounts and is not booked yet. The promise is written with the account; whoever dies between that and
/// the booking leaves it to the next run.
pub async fn book_signup_grants(
    signin: &Signin,
    ledger: &Ledger,
    clock: &Clock,
    entropy: &Entropy,
) {
    let owed = match signin.grants_owed().await {
        Ok(owed) => owed,
        Err(error) => {
            tracing::error!(%error, "credits promised at sign-up could not be looked up");
            return;
        }
    };
    for (account, amount) in owed {
        let credit = Credit {
            operation: entropy.operation_id(clock),
            account,
            amount,
            reference: Arc::from(REFERENCE),
            at: clock.unix_micros(),
        };
        let booked = match ledger.grant(credit).await {
            Ok(_) => signin
                .grant_booked(account)
                .await
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = booked {
            tracing::error!(%account, error, "credits promised at sign-up are not booked yet");
        }
    }
}
