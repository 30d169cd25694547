//! `POST /webhooks/paypal`: a notice is checked, stored, and answered.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tollgate_filter::{ApiError, ErrorCode, Exchange, Outcome, Reply, ReplyBody, Step};
use tollgate_paypal::{Client, NoticeError};
use tollgate_purchase::{Notice, TopUps};
use tollgate_store::Ring;

use crate::counters::Counters;

/// What notices of PayPal's need.
#[derive(Clone, Debug)]
pub struct PayPal {
    /// Who can tell a notice from a forgery.
    pub client: Client,
    /// Who is told.
    pub top_ups: TopUps,
}

/// Takes the notices of a payment provider.
pub(crate) struct Notices {
    paypal: Option<PayPal>,
    counters: Arc<Counters>,
}

impl Notices {
    /// Without PayPal there is nothing at its address.
    pub(crate) fn new(paypal: Option<PayPal>) -> Notices {
        Notices {
            paypal,
            counters: Arc::default(),
        }
    }

    /// What became of notices.
    pub(crate) fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// The answer to a notice.
    pub(crate) fn answer<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let Some(paypal) = &self.paypal else {
            return Step::now(Outcome::refuse(ApiError::new(
                ErrorCode::NotFound,
                "Nothing is paid with PayPal here.",
            )));
        };
        Step::later(async move {
            let request = &exchange.request;
            let status = self.hear(paypal, &request.headers, &request.body).await;
            // Without a body: whoever sends forgeries learns nothing.
            Ok(Outcome::reply(Reply {
                status,
                headers: HeaderMap::new(),
                body: ReplyBody::Whole(Bytes::new()),
            }))
        })
    }

    async fn hear(&self, paypal: &PayPal, headers: &HeaderMap, body: &Bytes) -> StatusCode {
        let counters = &self.counters;
        let notice = match paypal.client.notice(headers, body).await {
            Ok(notice) => notice,
            Err(NoticeError::Refused(why)) => {
                Counters::one(&counters.refused);
                tracing::warn!(why, "a notice that claims to be PayPal's is not believed");
                return StatusCode::BAD_REQUEST;
            }
            Err(NoticeError::Undecided(error)) => {
                Counters::one(&counters.undecided);
                tracing::warn!(%error, "a notice could not be checked; it has to come again");
                return StatusCode::SERVICE_UNAVAILABLE;
            }
        };
        let (id, kind) = (notice.id.clone(), notice.kind.clone());
        let heard = paypal.top_ups.hear(Notice {
            about: about(&notice),
            id: notice.id,
            kind: notice.kind,
        });
        match heard.await {
            Ok(new) => {
                let counter = if new {
                    &counters.stored
                } else {
                    &counters.known
                };
                Counters::one(counter);
                tracing::info!(notice = id, kind, new, "a notice of PayPal's");
                StatusCode::OK
            }
            Err(error) => {
                Counters::one(&counters.undecided);
                tracing::warn!(%error, "a notice could not be stored; it has to come again");
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }
}

/// The purchase a notice seems to be about. It was told by PayPal, and is used to find a row and for nothing else.
fn about(notice: &tollgate_paypal::Notice) -> Option<Ring> {
    let is_payment = ["CHECKOUT.ORDER.", "PAYMENT.CAPTURE."]
        .iter()
        .any(|kind| notice.kind.starts_with(kind));
    if !is_payment {
        return None;
    }
    let resource = &notice.resource;
    // A refund has the number of the bill at most, and else only a link to the payment.
    let mut names = [&resource.custom_id, &resource.invoice_id]
        .into_iter()
        .flatten();
    let by_id = names.find_map(|id| id.parse().ok());
    let order = resource.order.as_deref();
    let capture = resource.capture.as_deref();
    by_id
        .map(Ring::TopUp)
        .or_else(|| order.map(|order| Ring::Order(order.into())))
        .or_else(|| capture.map(|capture| Ring::Capture(capture.into())))
}
