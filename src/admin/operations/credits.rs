//! Credits: grants, corrections and balances.

use http::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tollgate_clock::Timestamp;
use tollgate_filter::ApiError;
use tollgate_ledger::Credited;
use tollgate_money::Micros;
use tollgate_store::Reader;

use super::operation::{Operation, Run};
use crate::admin::api::call::{Call, LIMIT, cursor};
use crate::admin::api::endpoint::{Endpoint, Route, schema};
use crate::admin::api::state::ApiState;
use crate::admin::changes::ChangeError;
use crate::admin::views::{BalanceView, Credits, lines_before};

/// Books credits granted by the operator.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Grant {
    /// The account's id.
    pub(crate) account: String,
    /// The amount, as a decimal number of credits.
    pub(crate) amount: String,
    /// The idempotency key.
    pub(crate) reference: String,
}

/// Books a correction by the operator. A correction adds or removes credits.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Correct {
    /// The account's id.
    pub(crate) account: String,
    /// The amount, as a decimal number of credits; below zero to remove credits.
    pub(crate) amount: String,
    /// The idempotency key.
    pub(crate) reference: String,
}

/// The result of a booking.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Booking {
    /// The id of the operation.
    pub(crate) operation: String,
    /// Whether the reference had been booked before. A repeated booking changes no balance.
    pub(crate) repeated: bool,
    /// The account's available balance, as a decimal number of credits.
    pub(crate) available: String,
}

impl From<Credited> for Booking {
    fn from(booked: Credited) -> Booking {
        Booking {
            operation: booked.operation.to_string(),
            repeated: booked.repeated,
            available: booked.available.to_string(),
        }
    }
}

impl Operation for Grant {
    type Output = Booking;
    const NAME: &'static str = "credits_grant";
    const RESULT: &'static str = "credits";
    const SUBJECT: Option<&'static str> = Some("account");

    async fn run(self, run: &Run<'_>) -> Result<Booking, ChangeError> {
        let service = run.service;
        let credit = service.credit(&self.account, &self.amount, self.reference)?;
        service.undeleted(&self.account).await?;
        let attached = vec![run.recorder.part()];
        let booked = service.ledger.grant_with(credit, attached).await?;
        run.recorder.set_recorded();
        Ok(booked.into())
    }
}

impl Operation for Correct {
    type Output = Booking;
    const NAME: &'static str = "credits_correct";
    const RESULT: &'static str = "credits";
    const SUBJECT: Option<&'static str> = Some("account");

    async fn run(self, run: &Run<'_>) -> Result<Booking, ChangeError> {
        let service = run.service;
        let credit = service.credit(&self.account, &self.amount, self.reference)?;
        if credit.amount > Micros::ZERO {
            service.undeleted(&self.account).await?;
        }
        let attached = vec![run.recorder.part()];
        let booked = service.ledger.correct_with(credit, attached).await?;
        run.recorder.set_recorded();
        Ok(booked.into())
    }
}

/// Grants credits or corrects a balance, at a single address of the admin API.
pub(in crate::admin) struct Book;

/// Credits to book.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CreditsRequest {
    /// `grant` by default.
    #[serde(default)]
    kind: CreditsKind,
    /// A decimal number of credits as a text, such as `12.5`; of a correction, below zero to remove credits.
    amount: String,
}

/// Whether credits are a gift, or put a balance right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum CreditsKind {
    #[default]
    Grant,
    Correction,
}

/// Booked credits.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::admin) struct Booked {
    /// The account.
    account: String,
    /// The id of the booking.
    operation: String,
    /// Whether it had been booked before under this key, so that nothing changed now.
    repeated: bool,
    /// The available balance in credits.
    available: Credits,
}

impl Endpoint for Book {
    type Answer = Booked;
    const ROUTE: Route = Route::change(
        "bookCredits",
        Method::POST,
        "/accounts/{account}/credits",
        "Grant credits, or correct a balance. The `Idempotency-Key` is the reference in the ledger: a repetition with the same amount \
         changes nothing, one with another amount is refused with 409.",
    )
    .body(schema!(CreditsRequest))
    .idempotent();

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<Booked, ApiError> {
        let reference = call.idempotency_key()?;
        let CreditsRequest { kind, amount } = call.message()?;
        let account = call.name().to_owned();
        let booking = match kind {
            CreditsKind::Grant => {
                let grant = Grant {
                    account,
                    amount,
                    reference,
                };
                api.perform(grant, call).await?
            }
            CreditsKind::Correction => {
                let correct = Correct {
                    account,
                    amount,
                    reference,
                };
                api.perform(correct, call).await?
            }
        };
        let available: Micros = booking.available.parse().map_err(ChangeError::from)?;
        Ok(Booked {
            account: call.name().to_owned(),
            operation: booking.operation,
            repeated: booking.repeated,
            available: available.into(),
        })
    }
}

/// Shows a balance with a page of ledger entries.
pub(in crate::admin) struct Show;

/// A balance with a page of entries.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::admin) struct BalancePage {
    #[serde(flatten)]
    balance: BalanceView,
    /// The cursor of the next page of `lines`; null on the last.
    next: Option<String>,
}

impl Endpoint for Show {
    type Answer = BalancePage;
    const ROUTE: Route = Route::read(
        "getCredits",
        "/accounts/{account}/credits",
        "Show the balance of an account, and a page of the ledger entries that changed it, newest first.",
    )
    .query(&[LIMIT, ("before", "The `next` of the page before.")]);

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<BalancePage, ApiError> {
        let limit = call.limit()?;
        let before = match call.parameter("before") {
            None => Timestamp::MAX,
            Some(text) => Timestamp::from_micros(text.parse().map_err(|_| cursor("before"))?),
        };
        let row = api.find(call.name()).await?;
        let id = row.id;
        let read = move |store: &Reader| lines_before(store, id, before, limit);
        let (lines, next) = api.read(read).await?;
        Ok(BalancePage {
            balance: BalanceView::of(&row, &lines),
            next: next.map(|at| at.as_micros().to_string()),
        })
    }
}
