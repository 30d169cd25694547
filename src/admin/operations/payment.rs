//! Payments by x402 whose outcome is not proved.

use http::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tollgate_filter::ApiError;
use tollgate_pay::x402::{Resolution, close_payment};

use super::operation::{Done, Operation, Run};
use crate::admin::api::call::{Call, invalid};
use crate::admin::api::endpoint::{Endpoint, Route, schema};
use crate::admin::api::state::ApiState;
use crate::admin::changes::ChangeError;
use crate::admin::views::{PaymentView, open_payments};

/// Resolves a payment whose outcome is not proved, by the operator's decision.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Close {
    /// The payment's id in the list.
    pub(crate) payment: String,
    /// The transaction of the payment; `None` for a payment without a transfer, now and later.
    pub(crate) paid: Option<String>,
    /// Whether the transaction has a separate transfer for the payment, beside the transfer for another payment.
    #[serde(default)]
    pub(crate) shared_transaction: bool,
}

impl Operation for Close {
    type Output = Done;
    const NAME: &'static str = "payment_close";
    const SUBJECT: Option<&'static str> = Some("payment");

    async fn run(self, run: &Run<'_>) -> Result<Done, ChangeError> {
        let verdict = match self.paid {
            None => Resolution::NotMoved,
            Some(hash) => Resolution::Paid {
                transaction: hash.parse().map_err(|_| {
                    ChangeError::invalid(format!(
                        "`{hash}` is not a transaction hash; use `0x` and 64 hex digits"
                    ))
                })?,
                is_shared: self.shared_transaction,
            },
        };
        let books = (&run.service.store, run.service.plans()?);
        let attached = vec![run.recorder.part()];
        if close_payment(books, run.now, &self.payment, verdict, attached).await? {
            run.recorder.set_recorded();
        }
        Ok(Done {})
    }
}

/// The outcome of a payment.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ClosePaymentRequest {
    /// Its id in the list.
    payment: String,
    outcome: PaymentOutcomeWord,
    /// The transaction in which it was paid.
    transaction: Option<String>,
    /// Allows a transaction that has paid for another payment, and has a separate transfer for this one.
    #[serde(default)]
    shared_transaction: bool,
}

/// Whether a payment was paid, in `transaction`, or has moved nothing and never will.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum PaymentOutcomeWord {
    Paid,
    NotMoved,
}

/// A closed payment.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::admin) struct Closed {
    /// Its id.
    payment: String,
    /// `closed`.
    status: &'static str,
}

impl Endpoint for Close {
    type Answer = Closed;
    const ROUTE: Route = Route::change(
        "closePayment",
        Method::POST,
        "/payments/close",
        "Record the outcome of such a payment as a block explorer shows it.",
    )
    .body(schema!(ClosePaymentRequest));

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<Closed, ApiError> {
        let wanted: ClosePaymentRequest = call.message()?;
        let is_paid = wanted.outcome == PaymentOutcomeWord::Paid;
        if is_paid != wanted.transaction.is_some() {
            let message = "`transaction` belongs to the outcome `paid`, and only to that.";
            return Err(invalid(message).param("transaction"));
        }
        let payment = wanted.payment;
        let close = Close {
            payment: payment.clone(),
            paid: wanted.transaction,
            shared_transaction: wanted.shared_transaction,
        };
        api.perform(close, call).await?;
        Ok(Closed {
            payment,
            status: "closed",
        })
    }
}

/// Lists open payments.
pub(in crate::admin) struct List;

/// Payments.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::admin) struct PaymentList {
    data: Vec<PaymentView>,
}

impl Endpoint for List {
    type Answer = PaymentList;
    const ROUTE: Route = Route::read(
        "listPayments",
        "/payments",
        "List the payments by x402 whose outcome is not proved, oldest first.",
    );

    async fn answer(api: &ApiState, _: &Call<'_>) -> Result<PaymentList, ApiError> {
        let now = api.deps.clock.now();
        let open = api.read(open_payments).await?;
        let data = open.iter().map(|row| PaymentView::of(row, now)).collect();
        Ok(PaymentList { data })
    }
}
