//! Deletion of an account: credentials end, personal data is removed, and rows of money stay.

use std::sync::Arc;

use http::Method;
use serde::{Deserialize, Serialize};
use tollgate_clock::Timestamp;
use tollgate_filter::ApiError;
use tollgate_ledger::Credit;
use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_purchase::mandates::{current_mandate, may_charge};
use tollgate_store::{
    AccountChange, AccountRow, AccountStatus, Admission, CredentialRow, OAuthPart, Part, ReadError,
    Reader, SigninPart, UnitOfWork, commit, reading,
};

use super::operation::{Done, Operation, Run};
use crate::admin::api::call::Call;
use crate::admin::api::endpoint::{Endpoint, Route};
use crate::admin::api::state::ApiState;
use crate::admin::changes::ChangeError;
use crate::admin::views::AccountView;

/// The reference of the correction for forfeited credit. A deleted account may receive credit later; the reference of a later correction
/// begins with `REFERENCE`, and ends with the operation id.
const REFERENCE: &str = "account/deleted";

/// Maximum number of purchases read, and of mandates read.
const ROWS_MAX: usize = 1000;

/// The state of an account before a deletion.
struct Found {
    row: AccountRow,
    credentials: Vec<CredentialRow>,
    /// Why the account cannot be deleted yet.
    obstacle: Option<&'static str>,
}

/// Closes an account for good, and removes the personal data, in a single unit of work.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Delete {
    /// The account's id.
    pub(crate) account: String,
    /// Whether remaining credit is forfeited.
    pub(crate) forfeit: bool,
}

impl Operation for Delete {
    type Output = Done;
    const NAME: &'static str = "account_delete";
    const SUBJECT: Option<&'static str> = Some("account");

    async fn run(self, run: &Run<'_>) -> Result<Done, ChangeError> {
        let (service, now) = (run.service, run.now);
        let account: AccountId = self.account.parse()?;
        let found = reading(&service.store, move |store| find(store, account)).await?;
        let found = found
            .ok_or_else(|| ChangeError::not_found(format!("there is no account `{account}`")))?;
        if let Some(obstacle) = found.obstacle {
            return Err(ChangeError::conflict(obstacle));
        }
        let available = found.row.available;
        if available != Micros::ZERO && !self.forfeit {
            return Err(ChangeError::conflict(format!(
                "the account has {available} credits, which would be lost; return what they were paid with, or use `--forfeit`"
            )));
        }
        let mut parts = parts(account, &found.credentials, now);
        parts.push(run.recorder.part());
        if available == Micros::ZERO {
            let unit = UnitOfWork::of_all(parts, Admission::Normal);
            commit(&*service.store, unit).await?;
        } else {
            let operation = OperationId::generate(now, &service.entropy);
            let reference = match found.row.status {
                AccountStatus::Closed => format!("{REFERENCE}/{operation}").into(),
                _ => Arc::from(REFERENCE),
            };
            let credit = Credit {
                operation,
                account,
                amount: Micros::ZERO - available,
                reference,
                at: now,
            };
            service.ledger.correct_with(credit, parts).await?;
        }
        run.recorder.set_recorded();
        Ok(Done {})
    }
}

impl Endpoint for Delete {
    type Answer = AccountView;
    const ROUTE: Route = Route::change(
        "deleteAccount",
        Method::DELETE,
        "/accounts/{account}",
        "Delete an account for good: its credentials and sessions end, addresses and names are removed. Its ledger entries and payments \
         stay, under its id alone. Refused with 409 while it has credit, requests, or a subscription that may be charged.",
    )
    .query(&[("forfeit", "`true`: the credit that it has is forfeited.")]);

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<AccountView, ApiError> {
        let delete = Delete {
            account: call.name().to_owned(),
            forfeit: call.parameter("forfeit") == Some("true"),
        };
        api.perform(delete, call).await?;
        api.account(call.name()).await
    }
}

/// The parts of a deletion. Other nodes learn of the first three kinds.
fn parts(account: AccountId, credentials: &[CredentialRow], at: Timestamp) -> Vec<Part> {
    let mut parts = vec![
        Part::ChangeAccount(Box::new(AccountChange {
            id: account,
            status: Some(AccountStatus::Closed),
            class: None,
            cache_scope: None,
            at,
        })),
        Part::OAuth(Box::new(OAuthPart::RevokeGrants {
            account,
            client: None,
            at,
        })),
        Part::Signin(Box::new(SigninPart::EndSessions { account })),
    ];
    let live = credentials.iter().filter(|key| is_live(key));
    parts.extend(live.map(|key| Part::RevokeCredential {
        id: key.made.id,
        at,
    }));
    parts.push(Part::EraseAccount(account));
    parts
}

fn is_live(key: &CredentialRow) -> bool {
    key.revoked_at.is_none()
}

fn find(store: &Reader, account: AccountId) -> Result<Option<Found>, ReadError> {
    let Some(row) = store.account(account)? else {
        return Ok(None);
    };
    let mandates = store.mandates_of(account, ROWS_MAX)?;
    let top_ups = store.top_ups_of(account, Timestamp::MAX, ROWS_MAX)?;
    let credentials = store.account_credentials(account)?;
    let is_usable = credentials.iter().any(is_live);
    let has_nothing = row.available == Micros::ZERO && row.held == Micros::ZERO && !is_usable;
    let obstacle = if row.status == AccountStatus::Closed && has_nothing {
        Some("the account is deleted already")
    } else if row.held != Micros::ZERO {
        Some(
            "requests of the account are under way; suspend it, and repeat this when they have ended",
        )
    } else if current_mandate(mandates).is_some_and(|row| may_charge(&row)) {
        Some(
            "its subscription at PayPal may be charged; end it with `tollgate account suspend --end-plan`, and repeat this once it has ended",
        )
    } else if top_ups.iter().any(|row| row.next_attempt_at.is_some()) {
        Some("a purchase of credits has no outcome yet; repeat this when it has")
    } else if store.authorization_open(account)?.is_some() {
        Some(
            "a payment by x402 has no outcome yet (`tollgate payment list`); repeat this when it has",
        )
    } else {
        None
    };
    Ok(Some(Found {
        credentials,
        row,
        obstacle,
    }))
}
